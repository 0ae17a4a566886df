// Points of a mebibyte each, of which there are few for their number of rows: whatever reads many of them holds few in memory.
import { mkdtemp, rm } from 'node:fs/promises';
import { Agent } from 'node:http';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { pathToFileURL } from 'node:url';
import { expect } from 'chai';
import { newId } from './platform/ids.ts';
import { eventually } from './platform/testing/eventually.ts';
import { createTestDatabase, type TestDatabase } from './platform/testing/test-database.ts';
import { insertDevicesAndKey, sendPoints } from './testing/test-points.ts';
import { TestProcesses } from './testing/test-process.ts';

const tenant = 'acme';
const smallPoints = 8000;
const largePoints = 300;
/** Those of one device, with one time. */
const pointsAtOnce = 300;
/** Texts of one value repeated, which take 30 KB in the database. */
const largeValues = Object.fromEntries(Array.from({ length: 250 }, (_, n) => [`text${n}`, 'a'.repeat(4000)]));
/** Less than the points take, and more than the process does. */
const heap = { NODE_OPTIONS: '--max-old-space-size=320' };

describe('points that are large', function () {
  this.timeout(180_000);
  let test: TestDatabase;
  let processes: TestProcesses;
  let key: string;
  let folder: string;
  /** The first has sent all small points, each of the others a large one, and the last then those of one time. */
  const deviceIds = Array.from({ length: 1 + largePoints }, () => newId());
  const agent = new Agent({ keepAlive: true, maxSockets: 4 });
  let sent = 0;

  before(async () => {
    test = await createTestDatabase();
    folder = await mkdtemp(path.join(tmpdir(), 'kellet-large-points-'));
    processes = await TestProcesses.create(test.url);
    key = await insertDevicesAndKey(test.database, tenant, deviceIds);
    const { ports, child, ended } = await processes.start({});
    // What was fetched of the small ones tells nothing of the large ones that follow.
    while (sent < smallPoints) await send(ports.restPort, 1000, {});
    const sender = async (): Promise<void> => {
      while (sent < smallPoints + largePoints + pointsAtOnce)
        await send(ports.restPort, 3, { string_values: largeValues });
    };
    await Promise.all([sender(), sender()]);
    child.kill('SIGKILL');
    await ended;
  });
  after(async () => {
    agent.destroy();
    await processes.kill();
    await processes.remove();
    await rm(folder, { recursive: true, force: true });
    await test.drop();
  });

  /** Sends points in one request, all of which must be acknowledged. */
  async function send(port: number, count: number, values: object): Promise<void> {
    const points = Array.from({ length: count }, () => {
      sent += 1;
      const device_id = deviceIds[Math.min(Math.max(0, sent - smallPoints), largePoints)];
      const time = 1_790_000_000_000 + Math.min(sent, smallPoints + largePoints) * 1000;
      return { device_id, timestamp: new Date(time).toISOString(), numeric_values: { sent }, ...values };
    });
    await sendPoints({ port, agent, key }, points);
  }

  const count = async (sql: string): Promise<number> => {
    const { rows } = await test.database.system((tx) =>
      tx.query<{ n: number }>(`SELECT count(*)::int4 AS n FROM ${sql}`),
    );
    return rows[0]!.n;
  };

  it('do not end the process that reads the tail of a killed one', async () => {
    expect(await count('telemetry_points')).to.equal(sent);
    const { rows } = await test.database.system((tx) =>
      tx.query<{ writer_id: string }>('SELECT writer_id FROM telemetry_tails'),
    );
    expect(rows, 'the tails of the killed process').not.to.deep.equal([]);
    const { child, log, ended } = await processes.start(heap);
    const left = `telemetry_tails WHERE writer_id IN (${rows.map((row) => `'${row.writer_id}'`).join()})`;
    await eventually(async () => {
      if (child.exitCode !== null || child.signalCode !== null) throw new Error(log().slice(-2000));
      return (await count(left)) === 0;
    }, 90_000);
    expect(await count('telemetry_latest')).to.equal(deviceIds.length);
    child.kill('SIGTERM');
    expect((await ended).end, log()).to.equal(0);
  });

  it('do not end a check, which also compares the latest values with them', async () => {
    await processes.run(['fsck'], heap);
  });

  it('do not end the export of their tenant', async () => {
    await processes.run(['tenant', 'export', tenant, '--to', path.join(folder, 'tenant'), '--serving'], heap);
  });

  it('do not end a backup', async () => {
    await processes.run(['backup', path.join(folder, 'backup')], heap);
  });

  it('do not end the process that turns them cold', async () => {
    const cold = { KELLET_COLD_URL: pathToFileURL(path.join(folder, 'cold')).href };
    await processes.run(['cold', 'run', '--all'], { ...heap, ...cold });
    expect(await count(`telemetry_segments WHERE state <> 'cold' AND rows > 0`)).to.equal(0);
    await processes.run(['fsck'], { ...heap, ...cold });
  });
});
