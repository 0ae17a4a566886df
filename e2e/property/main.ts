// `make property`: runs schemathesis over the whole document on a separate stack, as a tenant administrator, a viewer,
// a device and the platform administrator, each in a separate tenant.
//
//   ONLY=admin|viewer|device|platform   runs only one of them
//   EXAMPLES=n                          generated requests per permitted operation (default 80)
//   SEED=n                              random seed
import { mkdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { checkout } from '../../dev/stack/paths.ts';
import { startStack } from '../../dev/stack/stack.ts';
import { makeSubject } from '../fuzz/subject.ts';
import { callerNames, type Document } from './callers.ts';
import { runPass } from './pass.ts';
import { schemathesisProgram } from './schemathesis.ts';

const examples = Number(process.env['EXAMPLES'] ?? 80);
const closedExamples = Math.min(examples, 5);

const report = (line: string): void => console.log(`  ${line}`);
const folder = join(checkout, '.kellet/property');
const only = process.env['ONLY'];
const chosen = callerNames.filter((name) => !only || name === only);
if (chosen.length === 0) throw new Error(`ONLY must be one of ${callerNames.join(', ')}`);

const program = await schemathesisProgram(report);
const stack = await startStack({
  stateFolder: folder,
  fresh: true,
  report,
  environment: {
    KELLET_REST_PORT: '0',
    KELLET_GRPC_PORT: '0',
    KELLET_CONTROL_PORT: '0',
    KELLET_METRICS_PORT: '0',
    KELLET_DASHBOARD_PORT: '0',
    KELLET_MQTT_PORT: '0',
    KELLET_ARTIFACTS_PORT: '0',
    KELLET_BATCH_SECONDS: '2',
    KELLET_DEVCHAIN_BLOCK_MS: '500',
  },
});
try {
  await mkdir(folder, { recursive: true });
  const document = JSON.parse(await readFile(join(checkout, 'proto/gen/openapi.json'), 'utf8')) as Document;
  const lines: string[] = [];
  for (const name of chosen) {
    report(`as ${name}`);
    const { admin, viewer, deviceKey, ids, spare } = await makeSubject(stack.info, { isWhole: true });
    const caller = { admin, viewer, device: { key: deviceKey }, platform: stack.info.platform }[name];
    const seed = Number(process.env['SEED'] ?? 1);
    const url = stack.info.rest;
    const pass = await runPass({
      program,
      document,
      name,
      caller,
      ids,
      spare,
      examples,
      closedExamples,
      seed,
      url,
      folder,
    });
    if (!pass.passed) process.exitCode = 1;
    lines.push(...pass.lines);
  }
  for (const line of lines) console.log(line);
} finally {
  await stack.stop();
}
