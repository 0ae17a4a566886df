// fanout-vs-ws: messages delivered per second of the apiserver's CPU time to 1,000 subscribers of one device, from the request
// with the point to their sockets. Compared with bare `ws` that sends one shared frame to as many
// clients. Both run at the same rate, which saturates neither.
import { setTimeout as sleep } from 'node:timers/promises';
import { cpuMicroseconds } from '../cpu-time.ts';
import { startEnvironment } from '../environment.ts';
import { HttpLoad, type Load, postRequest } from '../gateway/http-load.ts';
import { MeasuredServer } from '../gateway/measured-server.ts';
import type { Benchmark } from '../harness.ts';
import { samplePoint } from '../samples/sample-points.ts';
import { signIn } from '../sign-in.ts';
import { Subscribers } from './subscribers.ts';

/** A user may have 100 connections. */
const users = 10;
const connectionsOfUser = 100;
const connections = users * connectionsOfUser;
/** As many as a core delivers beside others: the time includes what a process does at any rate, and the ingest of the points. */
const messagesPerSecond = 60;
const seconds = 5;

/** The benchmark. */
export const fanoutVsWs: Benchmark = {
  name: 'fanout-vs-ws',
  unit: 'deliveries/s per core',
  baseline: 'ws, one shared frame',
  rounds: 5,
  prepare: async () => {
    const environment = await startEnvironment((line) => console.error(line), 1);
    const bare = await MeasuredServer.start('../live/websocket-server.ts');
    const generator = new HttpLoad();
    const { rest, apiKey, deviceIds } = environment;
    const tokens = await signIn(environment, 'viewer', users);
    const ours = await Subscribers.open({
      port: rest.port,
      paths: tokens.flatMap((token) => Array.from({ length: connectionsOfUser }, () => `/ws?token=${token}`)),
      subscribe: JSON.stringify({ subscribe: 'telemetry.live', device_id: deviceIds[0] }),
    });
    const theirs = await Subscribers.open({
      ...{ port: bare.port, subscribe: '' },
      paths: Array.from({ length: connections }, () => '/'),
    });
    let sent = 0;
    let sample = '';
    const bodies = (): string[] =>
      Array.from({ length: messagesPerSecond * seconds }, () =>
        JSON.stringify({ points: [samplePoint(deviceIds[0]!, (sent += 1))] }),
      );
    const load = (at: Pick<Load, 'host' | 'port'>, requests: string[]): Load => ({
      ...at,
      ...{ requests, connections: 4, seconds, perSecond: messagesPerSecond },
    });
    /** Returns the CPU time per delivery of each process in microseconds, once all have arrived. */
    const measure = async (processes: readonly (() => number)[], by: Load, subscribers: Subscribers) => {
      const before = processes.map((cpu) => cpu());
      const { replies, p99 } = await generator.run(by);
      await subscribers.expect(replies * connections);
      return { p99, costs: processes.map((cpu, index) => (cpu() - before[index]!) / (replies * connections)) };
    };
    const onBare = async (path: string): Promise<number> => {
      const by = load({ host: '127.0.0.1', port: bare.port }, [postRequest(path, {}, sample)]);
      return 1e6 / (await measure([() => bare.cpu()], by, theirs)).costs[0]!;
    };
    const processes = ['apiserver', 'postgres'].map((name) => () => cpuMicroseconds(environment.pids[name]!));
    const ingest = (requests: readonly string[]): Load =>
      load(
        rest,
        requests.map((body) => postRequest('/api/v1/telemetry', { 'X-API-Key': apiKey }, body)),
      );
    // What is delivered has the same length on both sides.
    await generator.run({ ...ingest(bodies()), seconds: 1 });
    await sleep(1000);
    const { received, sample: first } = await ours.count();
    sample = first;
    if (received === 0) throw new Error('nothing was delivered');
    await ours.expect(received);
    let remarks = {};
    return {
      baseline: () => onBare('/shared'),
      ours: async () => {
        const { costs, p99 } = await measure(processes, ingest(bodies()), ours);
        const [server, postgres] = costs as [number, number];
        remarks = {
          ...{ 'message bytes': sample.length, 'response of the request p99 ms': p99 },
          ...{ 'apiserver µs per delivery': server, 'PostgreSQL µs per delivery': postgres },
        };
        return 1e6 / server;
      },
      beside: { 'ws, send for each': () => onBare('/') },
      remarks: () => remarks,
      close: async () => {
        for (const part of [generator, ours, theirs, bare]) part.close();
        await environment.close();
      },
    };
  },
};
