// Which segments of points a purge and an export read: those that have points of the tenant, and those of which that is not known.
import { expect } from 'chai';
import pg from 'pg';
import { insertTenant } from '../auth/testing/test-fixtures.ts';
import { ArtifactStores } from '../device-link/ota/artifacts/artifact-stores.ts';
import { newId } from '../platform/ids.ts';
import { createTestDatabase, type TestDatabase } from '../platform/testing/test-database.ts';
import { testDeviceId } from '../telemetry/testing/test-devices.ts';
import { dropColdTables, expireNextSegment, indexNextSegment, markCold } from '../telemetry/write/segments.ts';
import { deleteTenantRows, remainingTables } from './row-purge.ts';
import { exportTenant } from './tenant-export.ts';
import { type Line, pointsTable } from './transfer-format.ts';

describe('segments of points, and the purge and the export of a tenant', function () {
  this.timeout(60_000);
  let test: TestDatabase;
  let client: pg.Client;
  before(async () => {
    test = await createTestDatabase();
    client = new pg.Client({ connectionString: test.url });
    await client.connect();
    for (const tenant of ['acme', 'other', 'third']) await insertTenant(test.database, tenant);
  });
  after(async () => {
    await client.end();
    await test.drop();
  });
  afterEach(async () => {
    for (const tenant of ['acme', 'other', 'third']) await purge(tenant);
    await client.query(`UPDATE telemetry_segments SET expired_at = now()`);
  });

  const query = async <Row extends pg.QueryResultRow>(text: string, values: unknown[] = []) =>
    (await client.query<Row>(text, values)).rows;
  /** Opens a segment and adds so many points of each tenant, of the times 1, 2, …, each of one of ten devices. Returns its id. */
  const openSegment = async (points: Readonly<Record<string, number>>) => {
    const [{ id } = { id: '' }] = await query<{ id: string }>('SELECT telemetry_open_hot_segment($1)::text AS id', [
      newId(),
    ]);
    await addPoints(id, points);
    return id;
  };
  const addPoints = async (id: string, points: Readonly<Record<string, number>>) => {
    for (const [tenant, count] of Object.entries(points))
      await query(
        `INSERT INTO telemetry_segment_${id} (time, device_id, batch_id, leaf_index, tenant_id, data_hash, payload, received)
         SELECT n, ($3::uuid[])[1 + n % 10], gen_random_uuid(), 0, $1, sha256(n::text::bytea), '{}', 1
         FROM generate_series(1, $2::int4) AS n`,
        [tenant, count, Array.from({ length: 10 }, (_, n) => testDeviceId(n))],
      );
  };
  const seal = (id: string) =>
    query(
      `UPDATE telemetry_segments SET state = 'sealed', sealed_at = now(), (rows, least_time, greatest_time) =
         (SELECT count(*), min(time), max(time) FROM telemetry_segment_${id}) WHERE segment_id = $1`,
      [id],
    );
  const indexedSegment = async (points: Readonly<Record<string, number>>) => {
    const id = await openSegment(points);
    await seal(id);
    while (await indexNextSegment(test.database));
    return id;
  };
  const purge = (tenantId: string, deleted: (table: string, rows: number) => void = () => undefined) =>
    deleteTenantRows(test.database, tenantId, deleted, new AbortController().signal);
  const remaining = (tenantId: string) => remainingTables(test.database, tenantId);
  const pointsOf = async (id: string, tenant: string) =>
    (await query(`SELECT FROM telemetry_segment_${id} WHERE tenant_id = $1`, [tenant])).length;
  const recorded = async (id: string) =>
    Object.fromEntries(
      (
        await query<{ tenant_id: string; points: number }>(
          'SELECT tenant_id, points::int4 AS points FROM telemetry_tenant_segments WHERE segment_id = $1 ORDER BY tenant_id',
          [id],
        )
      ).map(({ tenant_id: tenant, points }) => [tenant, points]),
    );
  /** Does something while nobody can read these segments. */
  const whileLocked = async (ids: readonly string[], work: () => Promise<void>) => {
    await query('BEGIN');
    try {
      for (const id of ids) await query(`LOCK TABLE telemetry_segment_${id} IN ACCESS EXCLUSIVE MODE`);
      await work();
    } finally {
      await query('ROLLBACK');
    }
  };

  it('records the tenants of a segment when it is indexed, and not before', async () => {
    const id = await openSegment({ acme: 3, other: 5 });
    await seal(id);
    expect(await recorded(id)).to.deep.equal({});
    while (await indexNextSegment(test.database));
    expect(await recorded(id)).to.deep.equal({ acme: 3, other: 5 });
  });

  it('reads no indexed segment without points of the tenant', async () => {
    const own = await indexedSegment({ acme: 3, other: 5 });
    const foreign = [await indexedSegment({ other: 5 }), await indexedSegment({ other: 2, third: 2 })];
    const tables: string[] = [];
    await whileLocked(foreign, async () => {
      await purge('acme', (table) => tables.push(table));
      expect(await remaining('acme')).to.deep.equal([]);
    });
    expect(tables.filter((table) => table.startsWith('telemetry_segment_'))).to.deep.equal([
      `telemetry_segment_${own}`,
    ]);
    expect(await pointsOf(own, 'acme')).to.equal(0);
    expect(await recorded(own)).to.deep.equal({ other: 5 });
    for (const id of [own, foreign[0]!]) expect(await pointsOf(id, 'other')).to.equal(5);
    expect(await recorded(foreign[1]!)).to.deep.equal({ other: 2, third: 2 });
  });

  it('reads segments that are open, sealed, or indexed by an earlier version', async () => {
    const earlier = await indexedSegment({ acme: 4, other: 1 });
    await query('UPDATE telemetry_segments SET tenants_recorded = false WHERE segment_id = $1', [earlier]);
    await query('DELETE FROM telemetry_tenant_segments WHERE segment_id = $1', [earlier]);
    const sealed = await openSegment({ acme: 3, other: 1 });
    await seal(sealed);
    const open = await openSegment({ acme: 2, other: 1 });
    const ids = [earlier, sealed, open];
    expect(await remaining('acme')).to.include.members(ids.map((id) => `telemetry_segment_${id}`));
    await purge('acme');
    expect(await remaining('acme')).to.deep.equal([]);
    for (const id of ids) expect([await pointsOf(id, 'acme'), await pointsOf(id, 'other')]).to.deep.equal([0, 1]);
    await seal(open);
    while (await indexNextSegment(test.database));
  });

  it('finds points that were written and indexed after it has passed their segment', async () => {
    const id = await openSegment({ acme: 2, other: 1 });
    expect(await purge('acme')).to.equal(2);
    await addPoints(id, { acme: 1 });
    await seal(id);
    while (await indexNextSegment(test.database));
    expect(await remaining('acme')).to.include.members(['telemetry_tenant_segments']);
    await purge('acme');
    expect(await remaining('acme')).to.deep.equal([]);
    expect([await pointsOf(id, 'acme'), await pointsOf(id, 'other')]).to.deep.equal([0, 1]);
  });

  it('deletes the points of devices that the usage does not have, and many points in parts', async () => {
    const few = await indexedSegment({ acme: 20, other: 1 });
    const many = await indexedSegment({ acme: 150_000, other: 1 });
    await query('DELETE FROM telemetry_usage WHERE tenant_id = $1 AND device_id = $2', ['acme', testDeviceId(3)]);
    const sizes: number[] = [];
    await purge('acme', (table, rows) => {
      if (table.startsWith('telemetry_segment_')) sizes.push(rows);
    });
    expect(sizes.slice(0, 2)).to.deep.equal([18, 2]);
    expect(sizes.slice(2).reduce((sum, rows) => sum + rows, 0)).to.equal(150_000);
    expect(sizes.length).to.be.above(3);
    expect(await remaining('acme')).to.deep.equal([]);
    for (const id of [few, many]) {
      expect([await pointsOf(id, 'acme'), await pointsOf(id, 'other')]).to.deep.equal([0, 1]);
      expect(await recorded(id)).to.deep.equal({ other: 1 });
    }
  });

  it('continues where it was interrupted', async () => {
    const id = await indexedSegment({ acme: 20, other: 1 });
    const killed = () => {
      throw new Error('killed');
    };
    // After the points, before the record of them.
    expect(await purge('acme', killed).catch((error: Error) => error.message)).to.equal('killed');
    expect([await pointsOf(id, 'acme'), await recorded(id)]).to.deep.equal([0, { acme: 20, other: 1 }]);
    expect(await remaining('acme')).to.include.members(['telemetry_tenant_segments']);
    await purge('acme');
    expect(await remaining('acme')).to.deep.equal([]);
    expect(await recorded(id)).to.deep.equal({ other: 1 });
  });

  /** Returns the times of the exported points of a tenant, in order: those that its usage includes, and the others. */
  const exportedTimes = async (tenantId: string) => {
    const lines: Line[] = [];
    const parts = {
      ...{ database: test.database, coldStore: undefined, controlSecret: 'secret' },
      artifacts: new ArtifactStores('postgres', { endpoint: '', region: '', accessKey: '', secretKey: '' }),
      write: (line: Line) => Promise.resolve(void lines.push(line)),
    };
    await exportTenant(parts, tenantId);
    const times: [number[], number[]] = [[], []];
    let into: number[] | undefined;
    for (const line of lines) {
      if ('table' in line) into = line.table === pointsTable ? times[line.counted ? 0 : 1] : undefined;
      else if (Array.isArray(line)) into?.push(Number((line as readonly string[])[0]));
    }
    return times.map((some) => some.toSorted((a, b) => a - b));
  };
  const upTo = (count: number) => Array.from({ length: count }, (_, index) => index + 1);

  it('exports the points of segments that have some of the tenant, and reads no other indexed ones', async () => {
    await indexedSegment({ acme: 3, other: 5 });
    const foreign = [await indexedSegment({ other: 5 }), await indexedSegment({ other: 2, third: 2 })];
    const earlier = await indexedSegment({ acme: 1, other: 1 });
    await query('UPDATE telemetry_segments SET tenants_recorded = false WHERE segment_id = $1', [earlier]);
    await query('DELETE FROM telemetry_tenant_segments WHERE segment_id = $1', [earlier]);
    const open = await openSegment({ acme: 4, other: 1 });
    await whileLocked(foreign, async () => {
      expect(await exportedTimes('acme')).to.deep.equal([[1, 1, 2, 3], upTo(4)]);
    });
    await seal(open);
    while (await indexNextSegment(test.database));
  });

  it('exports all points, of many too and of devices that the usage does not have', async () => {
    await indexedSegment({ acme: 20, other: 1 });
    await query('DELETE FROM telemetry_usage WHERE tenant_id = $1 AND device_id = $2', ['acme', testDeviceId(3)]);
    expect(await exportedTimes('acme')).to.deep.equal([upTo(20), []]);
    await purge('acme');
    await indexedSegment({ acme: 20_001, other: 1 });
    expect(await exportedTimes('acme')).to.deep.equal([upTo(20_001), []]);
  });

  it('forgets what is past its retention, and segments that are dropped', async () => {
    const id = await indexedSegment({ acme: 10, other: 4, third: 2 });
    await query('UPDATE telemetry_segments SET recorded = true');
    const expire = (kept: readonly [string, bigint][]) => expireNextSegment(test.database, new Map(kept));
    const due = [
      ['acme', 4n],
      ['third', 100n],
    ] as const;
    expect(await expire(due.map(([tenant, start]) => [tenant, start]))).to.equal(true);
    expect(await recorded(id)).to.deep.equal({ acme: 7, other: 4 });
    await test.database.maintenance((tx) => markCold(tx, [BigInt(id)]));
    await dropColdTables(test.database);
    expect(await recorded(id)).to.deep.equal({});
    // What another process had recorded of a segment whose table is gone.
    await query(`INSERT INTO telemetry_tenant_segments (tenant_id, segment_id, points) VALUES ('acme', $1, 7)`, [id]);
    await purge('acme');
    expect(await remaining('acme')).to.deep.equal([]);
  });
});
