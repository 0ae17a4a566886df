// `make plans`: fills an empty database with a year of data, checks the plan of each recorded statement there, and that what two of
// the tenants have stored is sound.
//
//   node bench/src/year/main.ts [--complete]
//
// SCALE (default 0.01) is the size of the database, STATEMENTS the folder with the recorded statements. --complete: all unit tests
// were recorded, so exceptions that no statement needs are errors too.
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { ed25519PrivateKey, randomHexKey } from '../../../dev/stack/secrets.ts';
import { startDatabase } from '../environment.ts';
import { checkSample } from './check-sample.ts';
import { coldSettings, fillInstallation } from './installation.ts';
import { checkPlans } from './plans.ts';
import { sizesOf } from './sizes.ts';

const { values } = parseArgs({ options: { complete: { type: 'boolean', default: false } } });
const folder = process.env['STATEMENTS'] ?? join(import.meta.dirname, '../../../.kellet/gate/statements');
if (!existsSync(folder)) {
  console.error(`no statements are recorded in ${folder}: run make test ONLY=unit first`);
  process.exit(1);
}
const report = (line: string) => console.log(line);
const sizes = sizesOf(Number(process.env['SCALE'] ?? 0.01));
const { folder: stackFolder, databaseUrl, superuserUrl, restart, close } = await startDatabase(report);
const coldFolder = join(stackFolder, 'cold');
try {
  await fillInstallation({ databaseUrl, superuserUrl, coldFolder, restart }, sizes, report);
  const { planned, findings, failed, unused, unset } = await checkPlans(superuserUrl, folder);
  for (const { file, scope, reads, text } of findings)
    report(`${file} (${scope}) reads ${reads.join(' and ')}:\n    ${text.replace(/\s+/g, ' ').trim()}\n`);
  for (const table of unset) report(`${table} grows and has no settings of autovacuum\n`);
  for (const text of failed) report(`cannot be planned: ${text}\n`);
  if (values.complete)
    for (const { file, start } of unused) report(`no statement needs the exception: ${file}: ${start}\n`);
  const settings = {
    ...{ KELLET_ENVIRONMENT: 'development', KELLET_NETWORK: 'local', KELLET_DATABASE_URL: databaseUrl },
    // Required, but not used by fsck.
    ...{ KELLET_NATS_URL: 'nats://127.0.0.1:1', KELLET_JWT_PRIVATE_KEY: ed25519PrivateKey() },
    ...{ KELLET_CONTROL_SECRET: randomHexKey(), KELLET_CALLBACK_HMAC_SECRET: randomHexKey() },
    ...coldSettings({ coldFolder }),
  };
  const areSound = await checkSample(settings, sizes, report);
  const problems = findings.length + failed.length + unset.length + (values.complete ? unused.length : 0);
  report(`${planned} statements planned, ${problems} problems`);
  if (problems > 0 || planned === 0 || !areSound) process.exitCode = 1;
} finally {
  await close();
}
