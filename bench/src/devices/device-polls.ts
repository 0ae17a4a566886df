// device-polls: polls per second of CPU time by devices that have no commands, on a complete apiserver, PostgreSQL included.
// Compared with bare node:http that returns the same JSON.
import { cpuMicroseconds } from '../cpu-time.ts';
import { startEnvironment } from '../environment.ts';
import { costOf } from '../gateway/cost.ts';
import { getRequest, HttpLoad, type Load } from '../gateway/http-load.ts';
import { MeasuredServer } from '../gateway/measured-server.ts';
import type { Benchmark } from '../harness.ts';
import { mintKeys } from '../streams/device-keys.ts';

const devices = 1000;

/** hawkBit 0.9.0 with its in-memory database: polls per second of targets without actions, measured apart. */
const hawkBit = 311;

/** The benchmark. */
export const devicePolls: Benchmark = {
  name: 'device-polls',
  unit: 'polls/s per core',
  baseline: 'node:http, JSON',
  rounds: 5,
  prepare: async () => {
    const node = await MeasuredServer.start('node-server.ts');
    const environment = await startEnvironment((line) => console.error(line), devices);
    const keys = await mintKeys(environment);
    const generator = new HttpLoad();
    const load = (at: { host: string; port: number }, requests: string[]): Load => ({
      ...at,
      ...{ requests, expected: '{"commands":[]}', connections: 64, seconds: 3 },
    });
    const bare = load({ host: '127.0.0.1', port: node.port }, [getRequest('/commands', { 'X-API-Key': keys[0]! })]);
    const whole = load(
      environment.rest,
      environment.deviceIds.map((id, index) =>
        getRequest(`/api/v1/devices/${id}/rpc/pending?wait_seconds=0`, { 'X-API-Key': keys[index]! }),
      ),
    );
    let remarks = {};
    return {
      baseline: async () => 1e6 / (await costOf(generator, bare, [() => node.cpu()])).microseconds[0]!,
      ours: async () => {
        const processes = ['apiserver', 'postgres'].map((name) => () => cpuMicroseconds(environment.pids[name]!));
        const { microseconds, perSecond, p99 } = await costOf(generator, whole, processes);
        const [server, postgres] = microseconds as [number, number];
        remarks = {
          ...{ 'polls per second': perSecond, "times hawkBit's": perSecond / hawkBit, 'p99 ms': p99 },
          ...{ 'apiserver µs per poll': server, 'PostgreSQL µs per poll': postgres },
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
