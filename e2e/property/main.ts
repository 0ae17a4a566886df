// `make property`: a stack of its own, and schemathesis over the whole document as an administrator, a viewer and a device.
//
//   ONLY=admin|viewer|device|users   one run
//   EXAMPLES=n                       requests for each operation and kind of test (default 20)
//   SEED=n                           which ones
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { makeSubject } from '../fuzz/subject.ts';
import { checkout } from '../stack/paths.ts';
import { startStack } from '../stack/stack.ts';
import { runSchemathesis, schemathesisProgram, type PropertyRun } from './schemathesis.ts';

const report = (line: string): void => console.log(`  ${line}`);
const folder = join(checkout, '.kellet/property');

/** What ends sessions or locks their owner out is tried in a run of its own. */
const dangerous = ['Logout', 'DeleteSession', 'UpdateUser', 'DeleteUser'];
const without = dangerous.flatMap((id) => ['--exclude-operation-id', id]);
const onlyThose = dangerous.flatMap((id) => ['--include-operation-id', id]);

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
    KELLET_ARTIFACTS_PORT: '0',
    KELLET_BATCH_SECONDS: '2',
    KELLET_DEVCHAIN_BLOCK_MS: '500',
  },
});
let failed = 0;
try {
  const { admin, viewer, deviceKey } = await makeSubject(stack.info);
  const runs: PropertyRun[] = [
    { name: 'viewer', caller: viewer, operations: without },
    { name: 'device', caller: { key: deviceKey }, operations: without },
    { name: 'admin', caller: admin, operations: without },
    { name: 'users', caller: admin, operations: onlyThose },
  ];
  await mkdir(folder, { recursive: true });
  const only = process.env['ONLY'];
  const summary: string[] = [];
  for (const run of runs.filter(({ name }) => !only || name === only)) {
    report(`as ${run.name}`);
    const { passed, statuses } = await runSchemathesis(program, stack.info.rest, run, {
      examples: Number(process.env['EXAMPLES'] ?? 20),
      seed: Number(process.env['SEED'] ?? 1),
      folder,
    });
    // A run in which nothing succeeded has tested the door alone.
    const isReal = (statuses['200'] ?? 0) > 0;
    if (!passed || !isReal) failed += 1;
    const total = Object.values(statuses).reduce((sum, count) => sum + count, 0);
    summary.push(`${run.name}: ${passed && isReal ? 'ok' : 'FAILED'}, ${total} requests ${JSON.stringify(statuses)}`);
  }
  for (const line of summary) console.log(line);
} finally {
  await stack.stop();
}
process.exitCode = failed > 0 ? 1 : 0;
