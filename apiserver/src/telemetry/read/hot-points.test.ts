import { AsyncLocalStorage } from 'node:async_hooks';
import { createHash } from 'node:crypto';
import { expect } from 'chai';
import pg from 'pg';
import { insertTenant } from '../../auth/testing/test-fixtures.ts';
import { Database, type Transaction } from '../../platform/database/database.ts';
import { newId } from '../../platform/ids.ts';
import { createLogger } from '../../platform/observability/logger.ts';
import { createTestDatabase, type TestDatabase } from '../../platform/testing/test-database.ts';
import { pageSlots, readTurns } from '../cold/slow-read.ts';
import { withoutStore } from '../testing/test-cold.ts';
import { indexNextSegment } from '../write/segments.ts';
import { type PointCursor, readPoints } from './history.ts';
import { addToPage, findHotPoint, type HotPage, inOrder, mayPrecede, type SegmentPoint } from './hot-points.ts';

const hashOf = (text: string) => createHash('sha256').update(text).digest();

describe('segments', () => {
  const segment = (id: bigint, least: bigint | null, greatest: bigint | null) => {
    return { segment_id: id, least_time: least, greatest_time: greatest };
  };

  it('are read from the one that may have the first point, those of unknown times first', () => {
    const all = [segment(1n, 5n, 6n), segment(2n, null, null), segment(3n, 1n, 9n), segment(4n, 5n, 7n)];
    const ids = (descending: boolean) => inOrder(all, descending).map((each) => each.segment_id);
    expect(ids(false)).to.deep.equal([2n, 3n, 1n, 4n]);
    expect(ids(true)).to.deep.equal([2n, 3n, 4n, 1n]);
  });

  it('are left out if they begin after the end of a page', () => {
    const edge = { time: 5n, dataHash: hashOf('edge') };
    const cases = [
      { times: [5n, 9n], ascending: true, descending: true },
      { times: [6n, 9n], ascending: false, descending: true },
      { times: [1n, 4n], ascending: true, descending: false },
      { times: [null, null], ascending: true, descending: true },
    ] as const;
    for (const { times, ascending, descending } of cases) {
      const each = segment(1n, ...(times as [bigint | null, bigint | null]));
      expect(mayPrecede(each, edge, false), String(times)).to.equal(ascending);
      expect(mayPrecede(each, edge, true), String(times)).to.equal(descending);
    }
  });
});

describe('a page of points of segments', () => {
  const row = (segment: bigint, time: bigint, cut = false, payload = '{}'): SegmentPoint => {
    return { segment, time, data_hash: hashOf(String(time)), payload, batches: [`batch ${segment}`], cut };
  };
  const empty: HotPage = { points: [], isComplete: true };
  const large = { rows: 100, bytes: 1000 };
  const timesOf = (page: HotPage) => page.points.map(({ time }) => Number(time));

  it('has the points of all in order, each once with all its batches', () => {
    const first = addToPage(empty, [row(1n, 1n), row(1n, 4n), row(2n, 2n), row(2n, 4n)], large, false);
    const page = addToPage(first, [row(3n, 3n), row(3n, 4n)], large, false);
    expect(timesOf(page)).to.deep.equal([1, 2, 3, 4]);
    expect(page.points[3]!.batches).to.deep.equal(['batch 1', 'batch 2', 'batch 3']);
    expect(page.isComplete).to.equal(true);
    expect(timesOf(addToPage(empty, [row(1n, 4n), row(1n, 1n), row(2n, 2n)], large, true))).to.deep.equal([4, 2, 1]);
  });

  it('ends where the first segment was cut, also if that was cut in a group before', () => {
    const cut = [row(1n, 1n, true), row(1n, 3n, true), row(2n, 2n), row(2n, 9n), row(4n, 4n, true)];
    const first = addToPage(empty, cut, large, false);
    expect([timesOf(first), first.isComplete]).to.deep.equal([[1, 2, 3], false]);
    const page = addToPage(first, [row(3n, 2n), row(3n, 3n), row(3n, 5n)], large, false);
    expect([timesOf(page), page.isComplete]).to.deep.equal([[1, 2, 3], false]);
    expect(page.points[2]!.batches).to.deep.equal(['batch 1', 'batch 3']);
  });

  it('ends where it is full of points or bytes, but never before the first point', () => {
    const four = [row(1n, 1n), row(1n, 2n), row(1n, 3n), row(1n, 4n)];
    const pages = [
      { size: { rows: 3, bytes: 1000 }, times: [1, 2, 3], isComplete: false },
      { size: { rows: 4, bytes: 1000 }, times: [1, 2, 3, 4], isComplete: true },
      { size: { rows: 9, bytes: 3 }, times: [1, 2], isComplete: false },
      { size: { rows: 9, bytes: 0 }, times: [1], isComplete: false },
    ];
    for (const { size, times, isComplete } of pages) {
      const page = addToPage(empty, four, size, false);
      expect([timesOf(page), page.isComplete], JSON.stringify(size)).to.deep.equal([times, isComplete]);
    }
  });
});

/** Counts the segments that a transaction of a tenant holds locks of, with their indexes. */
class WatchedDatabase extends Database {
  mostLocks = 0;
  transactions = 0;

  override tenant<T>(tenantId: string, work: (tx: Transaction) => Promise<T>): Promise<T> {
    return super.tenant(tenantId, async (tx) => {
      const result = await work(tx);
      const { rows } = await tx.query<{ locks: number }>(
        `SELECT count(*)::int4 AS locks FROM pg_locks
         WHERE pid = pg_backend_pid() AND relation::regclass::text ~ '^telemetry_segment_[0-9]'`,
      );
      this.mostLocks = Math.max(this.mostLocks, rows[0]!.locks);
      this.transactions += 1;
      return result;
    });
  }
}

describe('reads of points in hundreds of segments', function () {
  this.timeout(120_000);
  const segments = 150;
  const pointsOfSegment = 8;
  /** Of a segment and its index, of which 16 are read at once. */
  const fewLocks = 32;
  const minute = 60_000_000_000n;
  const deviceId = newId();
  const batch = newId();
  let test: TestDatabase;
  let client: pg.Client;
  let database: WatchedDatabase;
  const ids: bigint[] = [];

  before(async () => {
    test = await createTestDatabase();
    for (const tenant of ['acme', 'other']) await insertTenant(test.database, tenant);
    client = new pg.Client({ connectionString: test.url });
    await client.connect();
    for (let n = 1; n <= segments; n += 1) {
      const opened = await client.query<{ id: bigint }>('SELECT telemetry_open_hot_segment($1) AS id', [newId()]);
      const id = opened.rows[0]!.id;
      ids.push(id);
      // Points of ten minutes, so that ten segments overlap; each third point is in the next segment too, and all are another tenant's too.
      await client.query(
        `INSERT INTO telemetry_segment_${id} (time, device_id, batch_id, leaf_index, tenant_id, data_hash, payload, received)
         SELECT place * $3::int8, $1, CASE WHEN $2 = 1 THEN $4::uuid ELSE gen_random_uuid() END, 0, tenant, sha256(place::text::bytea),
           '{"numeric_values":{"n":' || place || '},"string_values":{}}', 0
         FROM generate_series(1, ${pointsOfSegment}) AS n, (VALUES ('acme'), ('other')) AS t (tenant),
           LATERAL (SELECT $2 * 10 + n * 10 / ${pointsOfSegment} + CASE WHEN n % 3 = 0 THEN 10 ELSE 0 END AS place) AS p`,
        [deviceId, n, minute, batch],
      );
      if (n === segments) continue;
      await client.query(
        `UPDATE telemetry_segments SET state = 'sealed', sealed_at = now(), (rows, least_time, greatest_time) =
           (SELECT count(*), min(time), max(time) FROM telemetry_segment_${id}) WHERE segment_id = $1`,
        [id],
      );
    }
    while (await indexNextSegment(test.database));
    database = new WatchedDatabase(test.url, createLogger('silent'), { maximumConnections: 2 });
  });
  after(async () => {
    await database.close();
    await client.end();
    await test.drop();
  });
  beforeEach(() => {
    database.mostLocks = 0;
    database.transactions = 0;
  });

  const range = { tenantId: 'acme', deviceId, start: 0n, end: 10n ** 18n, keys: [] as string[], limit: 100 };
  const source = () => ({ database, cold: withoutStore(), turns: readTurns(8), pages: pageSlots() });

  for (const descending of [false, true])
    it(`return each point once, page by page, with few locks (${descending ? 'latest' : 'oldest'} first)`, async () => {
      const stored = await client.query<{ time: bigint }>(
        `SELECT DISTINCT time FROM telemetry_points WHERE tenant_id = 'acme' ORDER BY time ${descending ? 'DESC' : ''}`,
      );
      const read: bigint[] = [];
      let after: PointCursor | undefined;
      do {
        const { rows } = await readPoints(source(), { ...range, descending }, after);
        read.push(...rows.map(({ time }) => time));
        const last = rows.at(-1);
        after = last && { time: String(last.time), hash: last.dataHash.toString('hex') };
      } while (after);
      expect(read).to.deep.equal(stored.rows.map(({ time }) => time));
      expect(database.mostLocks).to.be.within(1, fewLocks);
    });

  it('are read for few pages of a tenant at a time, as each holds what it has read while it waits for another turn', async () => {
    const calls = new AsyncLocalStorage<number>();
    const begun = new Set<number>();
    let most = 0;
    const watched = Object.assign(Object.create(database) as typeof database, {
      read: (...given: Parameters<typeof database.read>) => {
        most = Math.max(most, begun.add(calls.getStore()!).size);
        return database.read(...given);
      },
    });
    const parts = { ...source(), database: watched };
    for (const limit of [100, 1000]) {
      most = 0;
      const one = async (n: number): Promise<void> => {
        await readPoints(parts, { ...range, descending: false, limit }, undefined);
        begun.delete(n);
      };
      await Promise.all(Array.from({ length: 20 }, (_, n) => calls.run(n, () => one(n))));
      expect(most).to.be.within(1, 4);
    }
  });

  it('find only points with a key that is asked for', async () => {
    const { rows } = await readPoints(source(), { ...range, keys: ['n'], descending: true }, undefined);
    expect(rows).to.have.length(100);
    expect((await readPoints(source(), { ...range, keys: ['m'], descending: true }, undefined)).rows).to.deep.equal([]);
  });

  it('end in time', async () => {
    const inNoTime = { ...source(), readMilliseconds: 0 };
    const none = { ...range, keys: ['m'], descending: true };
    const error = await readPoints(inNoTime, none, undefined).catch((thrown: unknown) => thrown);
    expect(error).to.include({ code: 'DEADLINE_EXCEEDED' });
  });

  it('look only into segments that may have what is asked for', async () => {
    const { rows } = await readPoints(source(), { ...range, descending: true, limit: 10 }, undefined);
    expect(rows).to.have.length(10);
    // One for the segments, and one for the batches of the points.
    expect(database.transactions).to.equal(2);
    await client.query('BEGIN');
    await client.query(
      `LOCK TABLE ${ids
        .slice(0, 100)
        .map((id) => `telemetry_segment_${id}`)
        .join(', ')}`,
    );
    const late = { ...range, start: 1200n * minute, descending: false };
    expect((await readPoints(source(), late, undefined)).rows).to.have.length(100);
    await client.query('ROLLBACK');
  });

  it('find the point of a batch with few locks', async () => {
    const wanted = { deviceId, batchId: batch, dataHash: hashOf('11'), from: 0n, to: 10n ** 18n };
    expect(await findHotPoint(database, 'acme', wanted)).to.include({ time: 11n * minute });
    expect(database.transactions).to.equal(1);
    expect(await findHotPoint(database, 'acme', { ...wanted, batchId: newId() })).to.equal(undefined);
    expect(database.mostLocks).to.be.within(1, fewLocks);
  });

  it('pass over a segment that is dropped meanwhile', async () => {
    await client.query(`DROP TABLE telemetry_segment_${ids[0]}`);
    const wanted = { deviceId, batchId: batch, dataHash: hashOf('11'), from: 0n, to: 10n ** 18n };
    expect(await findHotPoint(database, 'acme', wanted)).to.equal(undefined);
    expect((await readPoints(source(), { ...range, descending: false }, undefined)).rows).to.have.length(100);
  });

  it('are of rows that autovacuum freezes once they are indexed, and not while they are written', async () => {
    const { rows } = await client.query<{ name: string; options: string[] }>(
      `SELECT relname AS name, reloptions AS options FROM pg_class WHERE relname ~ '^telemetry_segment_[0-9]' AND relkind = 'r'`,
    );
    expect(rows).to.have.length(segments - 1);
    for (const { name, options } of rows)
      if (name === `telemetry_segment_${ids.at(-1)}`) expect(options).to.deep.equal(['autovacuum_enabled=false']);
      else
        expect(options).to.have.members([
          ...['autovacuum_enabled=true', 'autovacuum_freeze_min_age=0'],
          ...['autovacuum_vacuum_insert_threshold=0', 'autovacuum_vacuum_insert_scale_factor=0'],
        ]);
  });
});
