import { expect } from 'chai';
import pg from 'pg';
import { insertTenant } from './auth/testing/test-fixtures.ts';
import { MovableClock } from './auth/testing/test-platform.ts';
import {
  claimDue,
  claimSealedBatch,
  type Lane,
  overtakenTransactions,
  readLanes,
  type SealedBatch,
  settleDeep,
} from './chain-anchor/transactions/anchor-store.ts';
import { readBalance } from './chain-anchor/wallet/wallet-store.ts';
import { addUpChanges } from './device-registry/devices/device-counts.ts';
import { searchDevices } from './device-registry/devices/device-search.ts';
import { createDevice } from './device-registry/devices/devices.ts';
import { DeviceDirectory } from './device-registry/devices/directory.ts';
import { Liveness } from './device-registry/liveness/liveness.ts';
import { sleep } from './platform/clock.ts';
import { Database } from './platform/database/database.ts';
import { Broker } from './platform/events/broker.ts';
import { OutboxRelay } from './platform/events/outbox.ts';
import { newId } from './platform/ids.ts';
import { createLogger } from './platform/observability/logger.ts';
import { createMetrics } from './platform/observability/metrics.ts';
import { eventually } from './platform/testing/eventually.ts';
import { rowsRead, totalOf } from './platform/testing/rows-read.ts';
import { createTestDatabase, type TestDatabase } from './platform/testing/test-database.ts';

/** What is done all the time reads and writes what it is about, in tables with much more. */
describe('the rows that are read', function () {
  this.timeout(120_000);
  const devices = 5000;
  const transactions = 10_000;
  let test: TestDatabase;
  let client: pg.Client;
  let deviceIds: string[];
  const logger = createLogger('silent');
  const profiles = { get: async () => undefined };

  before(async () => {
    test = await createTestDatabase();
    const limits = { quotas: { devices: 1_000_000 }, defaults: { offline_after_seconds: 60 } };
    await insertTenant(test.database, 'acme', limits);
    client = new pg.Client({ connectionString: test.url });
    await client.connect();
    const { rows } = await client.query<{ device_id: string }>(
      `INSERT INTO devices (tenant_id, device_id, name, hardware_id)
       SELECT 'acme', gen_random_uuid(), 'device', 'hw-' || md5(n::text) FROM generate_series(1, ${devices}) AS n RETURNING device_id`,
    );
    deviceIds = rows.map((row) => row.device_id);
    await client.query(
      `INSERT INTO block_headers (height, block_hash, header)
       SELECT n, 'block-' || n, decode(repeat('00', 80), 'hex') FROM generate_series(1, 1000) AS n`,
    );
    for (const [state, height] of [
      ['final', '1 + n % 800'],
      ['pending', 'NULL'],
    ])
      await client.query(
        `INSERT INTO chain_transactions (txid, purpose, lease, raw_tx, attempt, state, block_height, block_hash, created_at, next_poll_at)
         SELECT '${state}-' || n, 'anchor', '${state}-' || n, '', 1, '${state}', ${height}, 'block-' || ${height}, now() - interval '1 hour',
           now() + interval '1 hour' * CASE WHEN n % 2 = 0 THEN 1 ELSE -1 END FROM generate_series(1, ${transactions}) AS n`,
      );
    await client.query('VACUUM ANALYZE');
    while ((await test.database.system((tx) => addUpChanges(tx))) > 0);
  });
  after(async () => {
    await client.end();
    await test.drop();
  });

  const describeRows = (rows: ReadonlyMap<string, number>): string => JSON.stringify([...rows]);

  it('by the creation of a device are as many however large the fleet', async () => {
    const rows = await rowsRead(test.url, (database) =>
      database.tenant('acme', (tx) =>
        createDevice(tx, {
          ...{ tenantId: 'acme', deviceId: newId(), name: 'new', hardwareId: newId(), profileId: '', groupIds: [] },
          credentialType: 'api_key',
        }),
      ),
    );
    expect(totalOf(rows), describeRows(rows)).to.be.lessThan(50);
  });

  it('by a search are the devices that are found, however large the fleet', async () => {
    let found: readonly string[] | undefined;
    const rows = await rowsRead(test.url, (database) =>
      database.tenant('acme', async (tx) => (found = await searchDevices(tx, 'acme', 'c4ca4238a0b92382', undefined))),
    );
    expect(found).to.have.length(1);
    // A sample of 300 devices tells whether the text is frequent.
    expect(totalOf(rows), describeRows(rows)).to.be.within(300, 400);
  });

  it('by a search are few blocks of the index, also after many devices were created', async () => {
    await client.query(
      `INSERT INTO devices (tenant_id, device_id, name, hardware_id)
       SELECT 'acme', gen_random_uuid(), 'device', 'new-' || md5(n::text) FROM generate_series(1, 3000) AS n`,
    );
    await client.query('BEGIN');
    try {
      await client.query('SET LOCAL enable_seqscan = off');
      await client.query('SET LOCAL enable_indexscan = off');
      const { rows } = await client.query<{ 'QUERY PLAN': [{ Plan: Record<string, unknown> }] }>(
        `EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON)
         SELECT FROM devices WHERE tenant_id = 'acme' AND deleted_at IS NULL AND (name || E'\\n' || hardware_id) ILIKE '%c4ca42%'`,
      );
      const { Plan: plan } = rows[0]!['QUERY PLAN'][0];
      expect(JSON.stringify(plan)).to.include('devices_by_text');
      expect(Number(plan['Shared Hit Blocks']) + Number(plan['Shared Read Blocks'])).to.be.lessThan(150);
    } finally {
      await client.query('ROLLBACK');
    }
  });

  it('for the balance of the wallet are the coins that are not spent', async () => {
    await client.query(
      `INSERT INTO wallet_outputs (txid, output_index, public_key, satoshis, state)
       SELECT n::text, 0, 'key', 1, CASE WHEN n <= 20 THEN 'free' ELSE 'spent' END FROM generate_series(1, 5000) AS n`,
    );
    await client.query('VACUUM ANALYZE wallet_outputs');
    let coins = 0;
    const rows = await rowsRead(test.url, (database) =>
      database.system(async (tx) => (coins = (await readBalance(tx, 'key', { least: 1n, most: 10n })).anchorCoins)),
    );
    expect(coins).to.equal(20);
    expect(totalOf(rows), describeRows(rows)).to.be.lessThan(100);
  });

  it('to choose what is anchored next are one of each tenant, however many batches wait for a quota', async () => {
    const waiting = 5000;
    const tenants = ['over-1', 'over-2', 'ready'];
    for (const tenantId of tenants) {
      const quota = tenantId === 'ready' ? {} : { anchors_per_day: 1 };
      await insertTenant(test.database, tenantId, { quotas: quota });
      await client.query(
        `INSERT INTO anchor_batches (tenant_id, batch_id, anchor_mode, status, writer_id, count, leaves, merkle_root, sealed_at)
         SELECT $1, gen_random_uuid(), 'merkle', 'sealed', gen_random_uuid(), 1, hash, hash, now()
         FROM (SELECT sha256(n::text::bytea) AS hash FROM generate_series(1, $2::int4) AS n)`,
        [tenantId, tenantId === 'ready' ? 1 : waiting],
      );
      await client.query(
        `INSERT INTO anchor_usage (tenant_id, day, used) VALUES ($1, (now() AT TIME ZONE 'UTC')::date, 1)`,
        [tenantId],
      );
    }
    await client.query('VACUUM ANALYZE anchor_batches, anchor_usage, tenants');
    let lanes: Lane[] = [];
    let claimed: SealedBatch | undefined;
    const rows = await rowsRead(test.url, (database) =>
      database.system(async (tx) => {
        lanes = await readLanes(tx, '', 100);
        claimed = await claimSealedBatch(tx, lanes[0]!);
      }),
    );
    // A tenant that has used up its anchors for the day keeps no other from its turn.
    expect(lanes).to.deep.equal([{ tenantId: 'ready', isPerEvent: false }]);
    expect(claimed).to.include({ tenantId: 'ready' });
    expect(totalOf(rows), describeRows(rows)).to.be.lessThan(100);
  });

  it('by the directory are the devices that were asked for, also of a fleet that does not fit into it', async () => {
    const lookups = 40;
    const perLookup = 50;
    const rows = await rowsRead(test.url, async (database) => {
      // Room for some hundred devices, of which each is used once in a cycle.
      const directory = new DeviceDirectory(database, profiles, 500_000);
      for (let n = 0; n < lookups; n += 1) {
        const asked = deviceIds.slice((n % 20) * perLookup, ((n % 20) + 1) * perLookup);
        expect((await directory.lookup('acme', asked)).size).to.equal(perLookup);
      }
    });
    expect(rows.get('devices'), describeRows(rows)).to.be.within(lookups * perLookup, 2 * lookups * perLookup);
  });

  it('and written by signs of life are those that are due, once for many signs', async () => {
    const clock = new MovableClock();
    const fleet = deviceIds.slice(0, 500);
    const directory = new DeviceDirectory(test.database, profiles);
    // One connection, whose statistics can be had at once.
    const database = new Database(test.url, logger, { maximumConnections: 1 });
    const liveness = new Liveness(database, directory, clock, logger);
    const updates = async (): Promise<number> => {
      await database.system((tx) => tx.query('SELECT pg_stat_force_next_flush()'));
      const { rows } = await client.query<{ updates: number }>(
        `SELECT n_tup_upd::int4 AS updates FROM pg_stat_user_tables WHERE relname = 'devices'`,
      );
      return rows[0]!.updates;
    };
    const written = async () => {
      const { rows } = await client.query<{ latest: number }>(
        `SELECT count(*)::int4 AS latest FROM devices WHERE device_id = ANY($1) AND status = 'online'`,
        [fleet],
      );
      return rows[0]!.latest;
    };
    liveness.start();
    try {
      const atFirst = await updates();
      for (const id of fleet) liveness.seen('acme', id, clock.now(), 'telemetry');
      await eventually(async () => (await written()) === fleet.length, 20_000);
      await sleep(1500);
      const before = await updates();
      expect(before - atFirst, 'the first sign of each').to.be.at.least(fleet.length);
      // A sign of each device every second, for ten.
      for (let second = 0; second < 10; second += 1) {
        clock.advance(1000);
        for (const id of fleet) liveness.seen('acme', id, clock.now(), 'telemetry');
        await sleep(500);
      }
      await sleep(1500);
      expect((await updates()) - before, '5,000 signs').to.be.at.most(fleet.length / 2);
      expect(liveness.position).to.equal(11 * fleet.length);
    } finally {
      await liveness.stop();
      await database.close();
    }
    expect(liveness.writtenPosition).to.equal(11 * fleet.length);
  });

  it('by the watcher are the transactions that it claims, however many are pending', async () => {
    const claimed = 16;
    let found = 0;
    const rows = await rowsRead(test.url, (database) =>
      database.system(
        async (tx) =>
          (found = (await claimDue(tx, claimed, { pollMilliseconds: 1000, mostPollMilliseconds: 1000 })).length),
      ),
    );
    expect(found).to.equal(claimed);
    expect(totalOf(rows), describeRows(rows)).to.be.within(claimed, 4 * claimed);
  });

  it('for new headers are the transactions that are mined and not final', async () => {
    const mined = 40;
    await client.query(
      `INSERT INTO chain_transactions (txid, purpose, lease, raw_tx, attempt, state, block_height, block_hash)
       SELECT 'mined-' || n, 'anchor', 'mined-' || n, '', 1, 'mined', 800 + n, 'block-' || CASE WHEN n = 7 THEN 0 ELSE 800 + n END
       FROM generate_series(1, ${mined}) AS n`,
    );
    const overtaken: string[] = [];
    const rows = await rowsRead(test.url, (database) =>
      database.system(async (tx) => {
        overtaken.push(...(await overtakenTransactions(tx, 100)).map(({ txid }) => txid));
        await settleDeep(tx, 930, 100);
      }),
    );
    expect(overtaken).to.deep.equal(['mined-7']);
    const { rows: left } = await client.query<{ count: number }>(
      `SELECT count(*)::int4 AS count FROM chain_transactions WHERE state = 'mined'`,
    );
    // Up to the height of 830, but for the one that was overtaken.
    expect(left[0]!.count).to.equal(mined - 29);
    expect(totalOf(rows), describeRows(rows)).to.be.lessThan(6 * mined);
  });

  it('by the relay of events are the same for each event, however many were left while the broker was away', async () => {
    const broker = new Broker(process.env['KELLET_TEST_NATS_URL']!, logger);
    try {
      await eventually(() => broker.isConnected, 20_000);
      const costs: number[] = [];
      for (const backlog of [1000, 6000]) {
        await client.query(
          `INSERT INTO outbox (event_id, tenant_id, subject, payload, not_before)
           SELECT gen_random_uuid(), 'acme', 'device.status.acme.' || n % 100,
             jsonb_build_object('id', n, 'subject', 'r' || n % 100)::text, now() FROM generate_series(1, ${backlog}) AS n`,
        );
        const drain = async (database: Database) => {
          const relay = new OutboxRelay(database, broker, logger, createMetrics());
          await eventually(async () => (await client.query('SELECT FROM outbox LIMIT 1')).rowCount === 0, 60_000);
          await relay.close();
        };
        const rows = await rowsRead(test.url, drain);
        costs.push((rows.get('outbox') ?? 0) / backlog);
      }
      expect(costs[0]).to.be.at.least(1);
      // If each round read the whole backlog, six times as many. A slow broker has some read again.
      expect(costs[1], `${costs[0]} rows an event of a short backlog`).to.be.lessThan(3 * costs[0]!);
    } finally {
      await broker.close();
    }
  });
});
