// latest-vs-node: reads of a device's latest values per second of CPU time, on a complete apiserver, PostgreSQL included.
// Compared with bare node:http that returns the same JSON.
import { cpuMicroseconds } from '../cpu-time.ts';
import { type Environment, startEnvironment } from '../environment.ts';
import { costOf } from '../gateway/cost.ts';
import { getRequest, HttpLoad, type Load } from '../gateway/http-load.ts';
import { MeasuredServer } from '../gateway/measured-server.ts';
import type { Benchmark } from '../harness.ts';
import { samplePoint } from '../samples/sample-points.ts';

const devices = 1000;

/** The benchmark. */
export const latestVsNode: Benchmark = {
  name: 'latest-vs-node',
  unit: 'reads/s per core',
  baseline: 'node:http, JSON',
  rounds: 5,
  prepare: async () => {
    const node = await MeasuredServer.start('node-server.ts');
    const environment = await startEnvironment((line) => console.error(line), devices);
    const generator = new HttpLoad();
    const { rest, apiKey, deviceIds } = environment;
    await sendPoints(environment);
    const load = (at: { host: string; port: number }, requests: string[]): Load => ({
      ...at,
      ...{ requests, connections: 64, seconds: 3 },
      // Of every sample point, so that no empty response counts.
      expected: '"firmware":"1.4.2"',
    });
    const bare = load({ host: '127.0.0.1', port: node.port }, [getRequest('/latest', { 'X-API-Key': apiKey })]);
    const whole = load(
      rest,
      deviceIds.map((id) => getRequest(`/api/v1/telemetry/${id}/latest`, { 'X-API-Key': apiKey })),
    );
    let remarks = {};
    return {
      baseline: async () => {
        const { microseconds } = await costOf(generator, bare, [() => node.cpu()]);
        return 1e6 / microseconds[0]!;
      },
      ours: async () => {
        const processes = ['apiserver', 'postgres'].map((name) => () => cpuMicroseconds(environment.pids[name]!));
        const result = await costOf(generator, whole, processes);
        const [server, postgres] = result.microseconds as [number, number];
        remarks = {
          ...{ 'reads per second': result.perSecond, 'p99 ms': result.p99 },
          ...{ 'apiserver µs per read': server, 'PostgreSQL µs per read': postgres },
        };
        return 1e6 / (server + postgres);
      },
      remarks: () => remarks,
      close: async () => {
        generator.close();
        node.close();
        await environment.close();
      },
    };
  },
};

/** Sends a point of each device, and checks that reads return it. */
async function sendPoints({ rest, apiKey, deviceIds }: Environment): Promise<void> {
  const base = `http://${rest.host}:${rest.port}/api/v1/telemetry`;
  const points = deviceIds.map((id, n) => samplePoint(id, n));
  const headers = { 'X-API-Key': apiKey, 'content-type': 'application/json' };
  const sent = await fetch(base, { method: 'POST', headers, body: JSON.stringify({ points }) });
  const { accepted } = (await sent.json()) as { accepted: number };
  if (accepted !== points.length) throw new Error(`only ${accepted} of ${points.length} points were accepted`);
  for (const { device_id: id, numeric_values: values } of points.filter((_, index) => index % 100 === 0)) {
    const read = (await (await fetch(`${base}/${id}/latest`, { headers })).json()) as { numeric_values: object };
    if (JSON.stringify(read.numeric_values) !== JSON.stringify(values)) {
      throw new Error(`the latest values of ${id} are ${JSON.stringify(read)}`);
    }
  }
}
