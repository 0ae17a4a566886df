// `make bench`: runs benchmarks on this machine, each with its baseline in the same run.
//
//   node bench/src/main.ts [PREFIX]      runs only benchmarks with this prefix, like the variable ONLY
import { mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { machine, runBenchmark, table, type Result } from './harness.ts';
import { chunkVsNode } from './devices/chunk-vs-node.ts';
import { deviceImport } from './devices/device-import.ts';
import { devicePolls } from './devices/device-polls.ts';
import { gatewayGetVsNode, gatewayPostVsNode } from './gateway/gateway-vs-node.ts';
import { rateLimitCost } from './gateway/rate-limit-cost.ts';
import { historyColdVsIndex } from './history/history-cold-vs-index.ts';
import { ingestVsCopy } from './ingest-vs-copy.ts';
import { membershipChange } from './operator/membership-change.ts';
import { operator10k } from './operator/operator-10k.ts';
import { reportCrossing } from './rollouts/report-crossing.ts';
import { rolloutSchedule } from './rollouts/rollout-schedule.ts';
import { rpcRoundTrip } from './streams/rpc-round-trip.ts';
import { streamMemory } from './streams/stream-memory.ts';

const benchmarks = [
  ingestVsCopy,
  gatewayGetVsNode,
  gatewayPostVsNode,
  rateLimitCost,
  historyColdVsIndex,
  reportCrossing,
  chunkVsNode,
];

const suites = [
  ...[operator10k, membershipChange, rolloutSchedule, streamMemory],
  ...[rpcRoundTrip, devicePolls, deviceImport],
];

const only = process.argv[2] ?? process.env['ONLY'] ?? '';
const chosen = benchmarks.filter((benchmark) => benchmark.name.startsWith(only));
const chosenSuites = suites.filter((suite) => suite.name.startsWith(only));
if (chosen.length + chosenSuites.length === 0) {
  const names = [...benchmarks, ...suites].map(({ name }) => name);
  console.error(`no benchmark starts with ${only}; there are: ${names.join(', ')}`);
  process.exit(1);
}
const results: Result[] = [];
for (const benchmark of chosen) results.push(await runBenchmark(benchmark, (line) => console.log(line)));
for (const suite of chosenSuites) results.push(...(await suite.run((line) => console.log(line))));
console.log(`\n${table(results)}`);

const folder = join(import.meta.dirname, '../../.kellet');
await mkdir(folder, { recursive: true, mode: 0o700 });
await writeFile(join(folder, 'bench.json'), `${JSON.stringify({ machine: machine(), results }, null, 2)}\n`);
