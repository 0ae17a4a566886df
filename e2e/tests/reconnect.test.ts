// kill -9 of the data plane under many connected devices: all return, spread over time, and nothing acknowledged is lost.
// `make reconnect DEVICES=5000` runs it with a fleet; the gate with few.
import { Device, MemoryBuffer, openProtocol } from '@kellet/device';
import { expect } from 'chai';
import { stack } from '../../dev/stack/testing/test-stack.ts';
import { waitUntil } from '../../dev/stack/wait.ts';
import { admin, unique } from '../testing/fixtures.ts';

const fleetSize = Number(process.env['KELLET_TEST_RECONNECT_DEVICES'] || 40);
const protocols = ['mqtt', 'grpc'] as const;
/** Devices whose history and commands are compared one by one. */
const samples = Math.min(fleetSize, 40);
const timeoutMilliseconds = 60_000 + fleetSize * 100;

describe(`kill -9 of the data plane under ${fleetSize} connected devices`, function () {
  this.timeout(4 * timeoutMilliseconds);

  /** Registers devices by an import, and returns their identities. */
  async function register(): Promise<{ device_id: string; api_key: string }[]> {
    const prefix = unique('returning');
    const lines = Array.from({ length: fleetSize }, (_, n) => JSON.stringify({ hardware_id: `${prefix}-${n}` }));
    const { body } = await (
      await admin()
    ).send<string>('POST', '/api/v1/devices/import', {
      ...{ body: lines.join('\n'), headers: { 'content-type': 'application/x-ndjson' } },
    });
    const made = body.split('\n').filter((line) => line.includes('api_key'));
    return made.map((line) => JSON.parse(line) as { device_id: string; api_key: string });
  }

  it('ends with all connected again, spread over time, without a lost point or command', async () => {
    const identities = await register();
    expect(identities).to.have.length(fleetSize);
    const { mqtt, grpc } = stack().info;
    const opened = {
      mqtt: await openProtocol(mqtt),
      grpc: await openProtocol(`grpc://${grpc}`, { connections: Math.ceil(fleetSize / 500) }),
    };
    const stop = new AbortController();
    const backoff = { firstMilliseconds: 1000, longestMilliseconds: 10_000 };
    /** The last error of each device, to say why one stays away. */
    const errors = new Map<number, string>();
    const devices = identities.map((identity, index) => {
      const transport = opened[protocols[index % protocols.length]!].open(identity);
      const buffer = new MemoryBuffer();
      const onError = (error: unknown): void => void errors.set(index, String(error));
      return new Device({ ...{ identity, transport, buffer, backoff, onError }, onCommand: () => ({ done: true }) });
    });
    const running = devices.map((device, index) =>
      device.run(stop.signal).catch((error: unknown) => errors.set(index, `ended: ${String(error)}`)),
    );
    const connected = () => devices.filter((device) => device.connected).length;
    const all = { timeoutMilliseconds };
    await waitUntil(() => connected() === fleetSize, { what: 'all connections', ...all });

    let count = 0;
    const begin = Date.UTC(2026, 0, 1);
    const record = () => {
      for (const device of devices) device.record({ count }, new Date(begin + count));
      count += 1;
    };
    const recording = setInterval(record, Math.max(100, fleetSize));
    const returns: number[] = [];
    try {
      await waitUntil(() => count > 5, { what: 'points', ...all });
      const sampled = devices.slice(0, samples);
      // As a client does: a server that is busy may refuse a request, which is repeated with its key.
      const send = ({ identity }: Device) =>
        waitUntil(
          async () =>
            (await admin()).post<{ correlation_id: string }>(`/api/v1/devices/${identity.device_id}/rpc`, {
              ...{ method: 'look', persistent: true, idempotency_key: identity.device_id },
            }),
          { what: 'a command', ...all },
        );
      const sent = await Promise.all(sampled.map(send));
      // While points and responses are on their way.
      await stack().kill('apiserver');
      await waitUntil(() => connected() === 0, { what: 'the end of all connections', ...all });
      const wasBack = new Set<Device>();
      const watching = setInterval(() => {
        for (const device of devices) {
          if (!device.connected || wasBack.has(device)) continue;
          wasBack.add(device);
          returns.push(performance.now());
        }
      }, 20);
      try {
        await waitUntil(() => wasBack.size === fleetSize, { what: 'all devices to return', ...all });
      } catch (error) {
        const away = devices.flatMap((device, index) =>
          wasBack.has(device) ? [] : [`${protocols[index % protocols.length]}: ${errors.get(index) ?? 'no error'}`],
        );
        const tally = [...Map.groupBy(away, (one) => one)].map(([what, all]) => `${all.length} on ${what}`);
        throw new Error(`away: ${tally.join('; ')}`, { cause: error });
      } finally {
        clearInterval(watching);
      }
      clearInterval(recording);
      await Promise.all(devices.map((device) => device.flush()));
      for (const { telemetry } of devices) expect(telemetry).to.deep.equal({ waiting: 0, dropped: 0 });
      for (const [index, { identity }] of sampled.entries()) {
        const path = `/api/v1/telemetry/${identity.device_id}`;
        const points = await waitUntil(
          async () =>
            (await admin()).list<{ numeric_values: { count: number } }>(path, 'points', { page_size: 10_000 }),
          { what: 'the points', ...all },
        );
        expect(points.map((point) => point.numeric_values.count)).to.deep.equal(
          Array.from({ length: count }, (_, n) => n),
        );
        const command = await waitUntil(
          async () => {
            const found = await (
              await admin()
            ).get<{ status: string; response: unknown }>(`/api/v1/devices/rpc/${sent[index]!.correlation_id}`);
            return found.status !== 'queued' && found.status !== 'sent' && found;
          },
          { what: 'a response', intervalMilliseconds: 1000, ...all },
        );
        expect(command).to.deep.include({ status: 'successful', response: { done: true } });
      }
    } finally {
      clearInterval(recording);
      stop.abort();
      await Promise.allSettled(running);
      await Promise.all([...devices, ...Object.values(opened)].map((one) => one.close()));
    }
    // Without jitter most would return at once. Few devices may, on a machine that is busy.
    const busiest = Math.max(...returns.map((at) => returns.filter((time) => time >= at && time < at + 100).length));
    process.stderr.write(
      `    ${fleetSize} devices returned within ${Math.round(Math.max(...returns) - Math.min(...returns))} ms, at most ${busiest} in 100 ms\n`,
    );
    if (fleetSize >= 1000) expect(busiest).to.be.below(fleetSize / 2);
  });
});
