// gateway-get-vs-node, gateway-post-vs-node: CPU time per request of routing, authentication and transcoding, compared
// with bare node:http and JSON with the same bodies. The whole path is measured too.
import { cpuMicroseconds } from '../cpu-time.ts';
import { startEnvironment } from '../environment.ts';
import { type Benchmark, type Prepared } from '../harness.ts';
import { deviceId, telemetryBodies } from '../samples/request-bodies.ts';
import { costOf } from './cost.ts';
import { startGrpcGateway } from './grpc-gateway.ts';
import { getRequest, HttpLoad, type Load, postRequest } from './http-load.ts';
import { MeasuredServer } from './measured-server.ts';

const seconds = 2;
const connections = 32;
const distinctRequests = 20;

/** Requests of a measurement. */
interface Asked {
  /** For the gateway alone, and for the whole path, which uses other devices and another key. */
  readonly ours: (apiKey: string, deviceIds: readonly string[]) => string[];
  readonly baseline: string[];
  /** Alternative baselines, by name. */
  readonly alternatives: Readonly<Record<string, string[]>>;
  /**
   * Requests per second, the same for both servers and below their capacity: a saturated server has cheaper wake-ups
   * than one that waits for the generator, which would distort the comparison.
   */
  readonly perSecond: number;
}

const rounds = 5;
const apiKey = `sk_live_${'a'.repeat(36)}`;
const bodies = telemetryBodies([deviceId], distinctRequests);

/** `GET device`. */
export const gatewayGetVsNode: Benchmark = {
  name: 'gateway-get-vs-node',
  unit: 'µs CPU',
  baseline: 'node:http, JSON',
  rounds,
  prepare: () =>
    prepare({
      ours: (key, deviceIds) => deviceIds.map((id) => getRequest(`/api/v1/devices/${id}`, { 'X-API-Key': key })),
      baseline: [getRequest('/device', { 'X-API-Key': apiKey })],
      alternatives: {},
      perSecond: 4000,
    }),
};

/** `POST telemetry` with 100 points. */
export const gatewayPostVsNode: Benchmark = {
  name: 'gateway-post-vs-node',
  unit: 'µs CPU',
  baseline: 'node:http, JSON echo',
  rounds,
  prepare: () =>
    prepare({
      ours: (key, deviceIds) =>
        (key === apiKey ? bodies : telemetryBodies(deviceIds, distinctRequests)).map((body) =>
          postRequest('/api/v1/telemetry', { 'X-API-Key': key }, body),
        ),
      baseline: bodies.map((body) => postRequest('/echo', { 'X-API-Key': apiKey }, body)),
      alternatives: {
        'parsed, not echoed': bodies.map((body) => postRequest('/count', { 'X-API-Key': apiKey }, body)),
      },
      perSecond: 800,
    }),
};

async function prepare(asked: Asked): Promise<Prepared> {
  const generator = new HttpLoad();
  const node = await MeasuredServer.start('node-server.ts');
  const gateway = await MeasuredServer.start('gateway-server.ts');
  const peer = await startGrpcGateway();
  const whole = await startEnvironment((line) => console.error(line), 20);
  const load = (port: number, requests: readonly string[], perSecond?: number): Load => ({
    host: '127.0.0.1',
    port,
    requests,
    connections,
    seconds,
    perSecond,
  });
  const ours = asked.ours(apiKey, [deviceId]);
  const cost = async (server: Pick<MeasuredServer, 'port' | 'cpu'>, requests: readonly string[]) => {
    const result = await costOf(generator, load(server.port, requests, asked.perSecond), [() => server.cpu()]);
    return { microseconds: result.microseconds[0]!, p99: result.p99 };
  };
  let plainP99 = NaN;
  let measured = 0;
  // Warm up both at full speed until their code is compiled.
  await generator.run(load(node.port, asked.baseline));
  await generator.run(load(gateway.port, ours));
  let remarks: Record<string, number> = {};
  return {
    baseline: async () => {
      const { microseconds, p99 } = await cost(node, asked.baseline);
      plainP99 = p99;
      return microseconds;
    },
    ours: async () => {
      const { microseconds, p99 } = await cost(gateway, ours);
      remarks = { 'p99 ms': p99, 'node:http p99 ms': plainP99 };
      // Once, after all measurements, because a full collection discards compiled code.
      if ((measured += 1) > rounds) remarks['heap MB'] = (await gateway.heap()) / 1e6;
      return microseconds;
    },
    beside: {
      ...Object.fromEntries(
        Object.entries(asked.alternatives).map(([name, requests]) => [
          name,
          async () => (await cost(node, requests)).microseconds,
        ]),
      ),
      ...(peer && { 'grpc-gateway': async () => (await cost(peer, ours)).microseconds }),
      'the whole path (apiserver)': async () => {
        const requests = asked.ours(whole.apiKey, whole.deviceIds);
        const { microseconds } = await costOf(generator, load(whole.rest.port, requests), [
          () => cpuMicroseconds(whole.pids['apiserver']!),
          () => cpuMicroseconds(whole.pids['postgres']!),
        ]);
        remarks["PostgreSQL's share of the whole path µs"] = microseconds[1]!;
        return microseconds[0]!;
      },
    },
    remarks: () => remarks,
    close: async () => {
      generator.close();
      node.close();
      gateway.close();
      peer?.close();
      await whole.close();
    },
  };
}
