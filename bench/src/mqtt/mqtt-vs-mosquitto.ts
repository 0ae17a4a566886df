// mqtt-vs-mosquitto: publishes with QoS 1 per second, each with ten points that are durable before PUBACK, on a complete
// apiserver. Compared with a broker that stores nothing: Mosquitto if PEERS=1, else a bare server on mqtt-packet.
import { cpuMicroseconds } from '../cpu-time.ts';
import { startEnvironment } from '../environment.ts';
import { MeasuredServer } from '../gateway/measured-server.ts';
import type { Benchmark } from '../harness.ts';
import { samplePoint } from '../samples/sample-points.ts';
import { mintKeys } from '../streams/device-keys.ts';
import { StoredPoints } from '../telemetry/stored-points.ts';
import { startMosquitto } from './mosquitto.ts';
import { publishAll } from './mqtt-load.ts';

const devices = 64;
const pointsPerMessage = 10;
const seconds = 3;
/** Different payloads of a device in a round; both servers get the same ones. */
const messages = 300;
const settings = { KELLET_MQTT_RATE: '1000000' };
const hasPeers = process.env['PEERS'] === '1';

/** The benchmark. */
export const mqttVsMosquitto: Benchmark = {
  name: 'mqtt-vs-mosquitto',
  unit: 'publishes/s',
  baseline: hasPeers ? 'Mosquitto' : 'mqtt-packet alone, no Mosquitto (PEERS=1)',
  rounds: 5,
  prepare: async () => {
    const environment = await startEnvironment((line) => console.error(line), devices, { settings });
    const bare = await MeasuredServer.start('../mqtt/packet-server.ts');
    const mosquitto = await startMosquitto();
    const stored = await StoredPoints.open(environment);
    const keys = await mintKeys(environment);
    const credentials = environment.deviceIds.map((username, index) => ({ username, password: keys[index]! }));
    let first = 0;
    let payloads: string[][] = [];
    const publish = async (port: number, cpu: () => number) => {
      const before = cpu();
      const load = { topic: 'kellet/v1/telemetry', devices: credentials, payloads, window: 4, seconds };
      const result = await publishAll({ ...load, port });
      return { ...result, microseconds: (cpu() - before) / result.acknowledged };
    };
    const onBare = async (): Promise<number> => (await publish(bare.port, () => bare.cpu())).perSecond;
    let peerMicroseconds = NaN;
    let remarks = {};
    return {
      baseline: async () => {
        payloads = Array.from({ length: devices }, () =>
          Array.from({ length: messages }, () => payloadOf((first += 10))),
        );
        if (!mosquitto) return onBare();
        const { perSecond, microseconds } = await publish(mosquitto.port, () => mosquitto.cpu());
        peerMicroseconds = microseconds;
        return perSecond;
      },
      ours: async () => {
        const processes = ['apiserver', 'postgres'].map((name) => environment.pids[name]!);
        const cpu = (): number => processes.reduce((sum, pid) => sum + cpuMicroseconds(pid), 0);
        const result = await publish(environment.mqtt.port, cpu);
        await stored.expect(result.acknowledged * pointsPerMessage);
        remarks = {
          ...{ 'p50 ms': result.p50, 'p99 ms': result.p99, "the load generator's cores": result.cores },
          ...{ 'apiserver and PostgreSQL µs per publish': result.microseconds },
          ...(mosquitto && { 'Mosquitto µs per publish': peerMicroseconds }),
        };
        return result.perSecond;
      },
      ...(mosquitto && { beside: { 'mqtt-packet alone': onBare } }),
      remarks: () => remarks,
      close: async () => {
        bare.close();
        await mosquitto?.close();
        await stored.close();
        await environment.close();
      },
    };
  },
};

/** A batch of points, of the device that publishes it. */
function payloadOf(first: number): string {
  const points = Array.from({ length: pointsPerMessage }, (_, offset) => {
    const { timestamp, numeric_values, string_values } = samplePoint('', first + offset);
    return { timestamp, numeric_values, string_values };
  });
  return JSON.stringify({ points });
}
