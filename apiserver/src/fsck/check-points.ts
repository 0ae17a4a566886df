// Checks the points of hot segments: hashes, places in batches, numbers of rows, the index of leaves, and the latest values.
import type { Transaction } from '../platform/database/database.ts';
import { sqlState } from '../platform/errors.ts';
import { readCursor, sizedPieces } from '../platform/statements/cursor.ts';
import { purgeBegunSince } from '../policies/tenant-reader.ts';
import { leafHash } from '../telemetry/points/leaf-hashes.ts';
import type { SegmentRow } from '../telemetry/write/segments.ts';
import { type Check, type CheckParts, checkPlaces, Findings, nothing, type Outcome, snapshot } from './check.ts';
import { LatestChecks } from './check-latest.ts';

const pieces = sizedPieces(5000, 'octet_length(payload)');
const batchesAtOnce = 200;

/** PostgreSQL's code for a table that does not exist. */
const undefinedTable = '42P01';

interface PointRow extends Omit<SegmentRow, 'received'> {
  place: string;
  received: bigint | null;
}

/** Yields a check for each segment with points in the database, and for each table of leaves that an earlier version left. */
export async function* pointChecks(parts: CheckParts): AsyncGenerator<Check> {
  for (let after = 0n; ;) {
    const { rows } = await parts.database.systemRead((tx) =>
      tx.query<{ segment_id: bigint; state: string; has_leaves: boolean }>(
        `SELECT segment_id, state, has_leaves FROM telemetry_segments
         WHERE segment_id > $1 AND (state <> 'cold' OR has_leaves) ORDER BY segment_id LIMIT 1000`,
        [after],
      ),
    );
    if (rows.length === 0) break;
    for (const { segment_id: id, state, has_leaves: hasLeaves } of rows) {
      if (state !== 'cold') yield () => checkSegment(parts, id);
      if (hasLeaves) yield () => checkLeafIndex(parts, `leaf_index_${id}`);
    }
    after = rows.at(-1)!.segment_id;
  }
  // Batches that were sealed while no segment was open, or by another process than their writer.
  yield () => checkLeafIndex(parts, 'ONLY leaf_index');
}

interface SegmentFacts {
  state: string;
  rows: bigint | null;
  was_swept: boolean;
  tenants_recorded: boolean;
  exists: boolean;
  has_arrival: boolean;
  since: bigint | null;
}

function checkSegment(parts: CheckParts, id: bigint): Promise<Outcome> {
  return snapshot(parts.database, async (tx) => {
    const { rows } = await tx.query<SegmentFacts>(
      `SELECT state, rows, tenants_recorded, expired_at > '-infinity' OR ${purgeBegunSince('s.opened_at')} AS was_swept,
         to_regclass('telemetry_segment_' || segment_id) IS NOT NULL AS exists,
         EXISTS (SELECT FROM pg_attribute WHERE attrelid = to_regclass('telemetry_segment_' || segment_id)
           AND attname = 'received' AND NOT attisdropped) AS has_arrival,
         (SELECT since FROM telemetry_tails t WHERE t.writer_id = s.writer_id) AS since
       FROM telemetry_segments s WHERE segment_id = $1`,
      [id],
    );
    const [facts] = rows;
    if (!facts || facts.state === 'cold') return nothing;
    const findings = new Findings();
    if (!facts.exists) {
      findings.add('segment', String(id), '', 'its table of points is missing');
      return { checked: { segments: 1 }, findings: findings.all };
    }
    const latest = new LatestChecks(facts.since);
    const points = await checkRows(tx, { id, facts, tenantId: parts.tenantId }, findings, latest);
    const latestValues = await latest.run(tx, `telemetry_segment_${id}`, findings);
    const expected = facts.rows === null || parts.tenantId !== undefined ? points : Number(facts.rows);
    // Points past their retention are removed from complete segments, and those of purged tenants.
    if (points > expected || (points < expected && !facts.was_swept)) {
      findings.add('segment', String(id), '', `it has ${points} points instead of ${expected}`);
    }
    return { checked: { segments: 1, points, latest_values: latestValues }, findings: findings.all };
  });
}

/** Checks each point of a segment and returns their number. */
async function checkRows(
  tx: Transaction,
  segment: { readonly id: bigint; readonly facts: SegmentFacts; readonly tenantId: string | undefined },
  findings: Findings,
  latest: LatestChecks,
): Promise<number> {
  const { id, facts, tenantId } = segment;
  const condition = tenantId === undefined ? '' : 'WHERE tenant_id = $1';
  const text = `SELECT tenant_id, device_id, time, payload, data_hash, batch_id, leaf_index, ctid::text AS place,
       ${facts.has_arrival ? 'received' : 'NULL::int8 AS received'}, ${pieces.column} FROM telemetry_segment_${id} ${condition}`;
  const values = tenantId === undefined ? [] : [tenantId];
  const tenants = new Map<string, number>();
  for await (const rows of readCursor<PointRow>(tx, { name: 'points', text, values }, pieces.count)) {
    const problems = await checkPlaces(
      tx,
      rows.map((row) => ({
        ...{ tenantId: row.tenant_id, batchId: row.batch_id },
        ...{ leafIndex: row.leaf_index, dataHash: row.data_hash },
      })),
    );
    for (const [index, row] of rows.entries()) {
      tenants.set(row.tenant_id, (tenants.get(row.tenant_id) ?? 0) + 1);
      const hash = leafHash(row.tenant_id, row.device_id, Number(row.time / 1_000_000_000n), row.payload);
      const isRight = hash === row.data_hash.toString('latin1');
      const problem = isRight ? problems[index] : 'its values do not have its hash';
      if (problem !== undefined) {
        findings.add('point', `${row.device_id}/${row.time}`, row.tenant_id, `in segment ${id}: ${problem}`);
      } else latest.add(row);
    }
  }
  if (facts.tenants_recorded) await checkTenants(tx, id, tenants, findings);
  return [...tenants.values()].reduce((sum, points) => sum + points, 0);
}

/** Checks that a purge finds the points of each tenant in a segment. */
async function checkTenants(
  tx: Transaction,
  id: bigint,
  tenants: ReadonlyMap<string, number>,
  findings: Findings,
): Promise<void> {
  const { rows } = await tx.query<{ tenant_id: string; points: bigint }>(
    'SELECT tenant_id, points FROM telemetry_tenant_segments WHERE segment_id = $1',
    [id],
  );
  const recorded = new Map(rows.map((row) => [row.tenant_id, Number(row.points)]));
  for (const [tenant, points] of tenants) {
    const known = recorded.get(tenant) ?? 0;
    if (points > known) {
      findings.add(
        'segment',
        String(id),
        tenant,
        `it has ${points} points of the tenant, of which ${known} are recorded`,
      );
    }
  }
}

async function checkLeafIndex({ database, tenantId }: CheckParts, table: string): Promise<Outcome> {
  try {
    return await snapshot(database, (tx) => checkEntries(tx, table, tenantId));
  } catch (error) {
    // Dropped with an empty segment.
    if (sqlState(error) === undefinedTable) return nothing;
    throw error;
  }
}

interface IndexedBatch {
  batch_id: string;
  tenant_id: string;
  places: number[];
  prefixes: Buffer;
}

/** Compares the entries of a table of the index with the leaves of their batches. */
async function checkEntries(tx: Transaction, table: string, tenantId: string | undefined): Promise<Outcome> {
  const findings = new Findings();
  let entries = 0;
  const condition = tenantId === undefined ? '' : 'WHERE tenant_id = $1';
  // A batch is indexed in one table: its entries are all here, or none is.
  const text = `SELECT batch_id, tenant_id, array_agg(leaf_index ORDER BY leaf_index) AS places,
       string_agg(int8send(prefix), ''::bytea ORDER BY leaf_index) AS prefixes
     FROM ${table} ${condition} GROUP BY batch_id, tenant_id`;
  const values = tenantId === undefined ? [] : [tenantId];
  for await (const rows of readCursor<IndexedBatch>(tx, { name: 'entries', text, values }, batchesAtOnce)) {
    for (const row of rows) {
      entries += row.places.length;
      const { rows: batches } = await tx.query<{ tenant_id: string; leaves: Buffer | null }>(
        'SELECT tenant_id, leaves FROM anchor_batches WHERE batch_id = $1',
        [row.batch_id],
      );
      const problem = entriesProblem(row, batches[0]);
      if (problem !== undefined) findings.add('leaf_index', row.batch_id, row.tenant_id, problem);
    }
  }
  return { checked: { leaf_index_entries: entries }, findings: findings.all };
}

function entriesProblem(
  { tenant_id: tenantId, places, prefixes }: IndexedBatch,
  batch: { readonly tenant_id: string; readonly leaves: Buffer | null } | undefined,
): string | undefined {
  if (!batch?.leaves || batch.tenant_id !== tenantId) return 'the index names a batch that does not exist';
  const count = batch.leaves.length / 32;
  if (places.length !== count || places.some((place, index) => place !== index)) {
    return `the index has ${places.length} of its ${count} leaves`;
  }
  const wrong = places.find(
    (place) => batch.leaves!.compare(prefixes, place * 8, place * 8 + 8, place * 32, place * 32 + 8) !== 0,
  );
  return wrong === undefined ? undefined : `the index has another hash for leaf ${wrong}`;
}
