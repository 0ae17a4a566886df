// Stops an apiserver whose devices all have newest values that are only in its memory: it ends in time, and the next process writes what
// it left. DEVICES=100000 is the full size.
import { Agent } from 'node:http';
import { expect } from 'chai';
import { newId } from './platform/ids.ts';
import { eventually } from './platform/testing/eventually.ts';
import { createTestDatabase, type TestDatabase } from './platform/testing/test-database.ts';
import { insertDevicesAndKey, sendPoints } from './testing/test-points.ts';
import { TestProcesses } from './testing/test-process.ts';

const tenant = 'acme';
const deviceCount = Number(process.env['DEVICES'] ?? 10_000);
const pointsAtOnce = 500;

/** From SIGTERM to the end of the process. Kubernetes waits for terminationGracePeriodSeconds, which is longer. */
const mostMilliseconds = 10_000;

describe('kellet-apiserver with values that are not written', function () {
  this.timeout(60_000 + deviceCount * 10);
  let test: TestDatabase;
  let processes: TestProcesses;
  let key: string;
  const ids = Array.from({ length: deviceCount }, () => newId());
  const agent = new Agent({ keepAlive: true, maxSockets: 8 });

  before(async () => {
    test = await createTestDatabase();
    processes = await TestProcesses.create(test.url);
    key = await insertDevicesAndKey(test.database, tenant, ids);
  });
  after(async () => {
    agent.destroy();
    await processes.kill();
    await processes.remove();
    await test.drop();
  });

  const count = async (sql: string): Promise<number> => {
    const { rows } = await test.database.system((tx) =>
      tx.query<{ n: number }>(`SELECT count(*)::int4 AS n FROM ${sql}`),
    );
    return rows[0]!.n;
  };

  /** Sends a request with a point of each of these devices. Returns how many points were acknowledged. */
  async function send(port: number, devices: readonly string[], n: number): Promise<number> {
    const timestamp = new Date(1_790_000_000_000 + n * 1000).toISOString();
    const points = devices.map((id) => ({ device_id: id, timestamp, numeric_values: { n } }));
    return sendPoints({ port, agent, key }, points);
  }

  /** Sends a point of every device, several requests at a time. */
  async function sendAll(port: number, n: number): Promise<number> {
    let next = 0;
    let accepted = 0;
    const sender = async (): Promise<void> => {
      while (next < ids.length) {
        const devices = ids.slice(next, (next += pointsAtOnce));
        const more = await send(port, devices, n);
        accepted += more;
      }
    };
    await Promise.all(Array.from({ length: 8 }, sender));
    return accepted;
  }

  it('stops within ten seconds of SIGTERM, and loses nothing that was acknowledged', async function () {
    const { ports, child, ended, log } = await processes.start({});
    expect(await sendAll(ports.restPort, 1)).to.equal(deviceCount);
    // Whatever was written meanwhile, each device has a newer value.
    expect(await sendAll(ports.restPort, 2)).to.equal(deviceCount);
    const newest = `telemetry_latest WHERE time = 1790000002000000000`;
    expect(await count(newest), 'values that are written before the end').to.be.below(deviceCount / 2);
    const signalled = performance.now();
    child.kill('SIGTERM');
    const { end, at } = await ended;
    expect(end, log()).to.equal(0);
    expect(at - signalled).to.be.below(mostMilliseconds);
    expect(await count('telemetry_points')).to.equal(2 * deviceCount);
    const left = deviceCount - (await count(newest));
    if (left > 0) {
      // Those that there was no time for are read again from the points.
      expect(await count('telemetry_tails')).to.equal(1);
      await processes.start({});
      // Once everything is written, the tail of a closed writer is gone.
      const tails = 'telemetry_tails JOIN telemetry_writers USING (writer_id) WHERE epoch > 0';
      await eventually(async () => (await count(tails)) === 0, 30_000 + deviceCount * 2);
    }
    expect(await count(newest)).to.equal(deviceCount);
    expect(await count('devices WHERE last_seen IS NOT NULL')).to.equal(deviceCount);
    this.test!.title += ` (${deviceCount} devices: ${Math.round(at - signalled)} ms, ${left} values left to the next process)`;
  });
});
