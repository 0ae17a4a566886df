// ingest-single-vs-node: requests of one point per second of CPU time, durable and in anchor batches, on a complete
// apiserver, PostgreSQL included. Compared with bare node:http that parses the same bodies and stores nothing.
import { cpuMicroseconds } from '../cpu-time.ts';
import { startEnvironment } from '../environment.ts';
import { costOf } from '../gateway/cost.ts';
import { HttpLoad, type Load, postRequest } from '../gateway/http-load.ts';
import { MeasuredServer } from '../gateway/measured-server.ts';
import type { Benchmark } from '../harness.ts';
import { telemetryBodies } from '../samples/request-bodies.ts';
import { StoredPoints } from './stored-points.ts';

const devices = 1000;
const requestsPerRound = 50_000;

/** The benchmark. */
export const ingestSingleVsNode: Benchmark = {
  name: 'ingest-single-vs-node',
  unit: 'requests/s per core',
  baseline: 'node:http, JSON',
  rounds: 5,
  prepare: async () => {
    const node = await MeasuredServer.start('node-server.ts');
    const environment = await startEnvironment((line) => console.error(line), devices);
    const stored = await StoredPoints.open(environment);
    const generator = new HttpLoad();
    const { rest, apiKey, deviceIds } = environment;
    const load = (at: { host: string; port: number }, path: string, bodies: readonly string[]): Load => ({
      ...at,
      requests: bodies.map((body) => postRequest(path, { 'X-API-Key': apiKey }, body)),
      expected: '"accepted":1,',
      ...{ connections: 64, seconds: 3 },
    });
    let firstPoint = 0;
    let bodies: string[] = [];
    let remarks = {};
    return {
      baseline: async () => {
        bodies = telemetryBodies(deviceIds, requestsPerRound, firstPoint, 1);
        firstPoint += requestsPerRound;
        const bare = load({ host: '127.0.0.1', port: node.port }, '/count', bodies);
        const { microseconds } = await costOf(generator, bare, [() => node.cpu()]);
        return 1e6 / microseconds[0]!;
      },
      ours: async () => {
        const processes = ['apiserver', 'postgres'].map((name) => () => cpuMicroseconds(environment.pids[name]!));
        const result = await costOf(generator, load(rest, '/api/v1/telemetry', bodies), processes);
        await stored.expect(result.replies);
        const [server, postgres] = result.microseconds as [number, number];
        remarks = {
          ...{ 'requests per second': result.perSecond, 'p50 ms': result.p50, 'p99 ms': result.p99 },
          ...{ 'apiserver µs per request': server, 'PostgreSQL µs per request': postgres },
          "the load generator's cores": result.cores,
        };
        return 1e6 / (server + postgres);
      },
      remarks: () => remarks,
      close: async () => {
        generator.close();
        node.close();
        await stored.close();
        await environment.close();
      },
    };
  },
};
