// `make plans`: fills an empty database with a year of data and checks the plan of each recorded statement there.
//
//   node bench/src/year/main.ts [--complete]
//
// SCALE (default 0.003) is the size of the database, STATEMENTS the folder with the recorded statements. --complete: all unit tests
// were recorded, so exceptions that no statement needs are errors too.
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { startDatabase } from '../environment.ts';
import { fillInstallation } from './installation.ts';
import { checkPlans } from './plans.ts';
import { sizesOf } from './sizes.ts';

const { values } = parseArgs({ options: { complete: { type: 'boolean', default: false } } });
const folder = process.env['STATEMENTS'] ?? join(import.meta.dirname, '../../../.kellet/gate/statements');
if (!existsSync(folder)) {
  console.error(`no statements are recorded in ${folder}: run make test ONLY=unit first`);
  process.exit(1);
}
const report = (line: string) => console.log(line);
const { folder: stackFolder, databaseUrl, superuserUrl, close } = await startDatabase(report);
try {
  await fillInstallation(
    { databaseUrl, superuserUrl, coldFolder: join(stackFolder, 'cold') },
    sizesOf(Number(process.env['SCALE'] ?? 0.003)),
    report,
  );
  const { planned, findings, failed, unused } = await checkPlans(superuserUrl, folder);
  for (const { file, scope, reads, text } of findings)
    report(`${file} (${scope}) reads ${reads.join(' and ')}:\n    ${text.replace(/\s+/g, ' ').trim()}\n`);
  for (const text of failed) report(`cannot be planned: ${text}\n`);
  if (values.complete)
    for (const { file, start } of unused) report(`no statement needs the exception: ${file}: ${start}\n`);
  const problems = findings.length + failed.length + (values.complete ? unused.length : 0);
  report(`${planned} statements planned, ${problems} problems`);
  if (problems > 0 || planned === 0) process.exitCode = 1;
} finally {
  await close();
}
