// SQL of the verifier: confirmed batches and their leaves. Unconfirmed batches are invisible here.
import { type AnchorMode, fromHex } from '@kellet/verify';
import type { Database, Transaction } from '../platform/database/database.ts';
import { nilId } from '../platform/ids.ts';
import { pagesOf } from '../platform/pages-of.ts';
import type { LeafPosition } from '../telemetry/leaves/device-leaves.ts';
import { devicesOf, leavesOfHash } from '../telemetry/leaves/leaf-store.ts';
import type { ProvenBatch } from './proof.ts';

interface BatchRow {
  batch_id: string;
  anchor_mode: AnchorMode;
  leaves: Buffer;
  segments: { device_id: string; previous_head: string; first_leaf: number; leaf_count: number }[] | null;
  merkle_root: Buffer;
  count: number;
  txid: string;
  raw_tx: Buffer;
  bump: Buffer;
  block_height: number;
  block_hash: string;
  created_at: Date;
  sealed_at: Date;
  confirmed_at: Date;
}

const batchColumns = ['batch_id', 'anchor_mode', 'leaves', 'segments', 'merkle_root', 'count', 'txid', 'raw_tx', 'bump']
  .concat('block_height', 'block_hash', 'created_at', 'sealed_at', 'confirmed_at')
  .map((column) => `batch.${column}`)
  .join(', ');

const toBatch = (row: BatchRow): ProvenBatch => ({
  batchId: row.batch_id,
  mode: row.anchor_mode,
  leaves: row.leaves,
  segments: (row.segments ?? []).map((segment) => ({
    deviceId: segment.device_id,
    previousHead: fromHex(segment.previous_head),
    firstLeaf: segment.first_leaf,
    leafCount: segment.leaf_count,
  })),
  merkleRoot: row.merkle_root,
  count: row.count,
  txid: row.txid,
  rawTx: row.raw_tx,
  bump: row.bump,
  blockHeight: row.block_height,
  blockHash: row.block_hash,
  openedAt: row.created_at,
  sealedAt: row.sealed_at,
  confirmedAt: row.confirmed_at,
});

/** A leaf by its batch. */
export interface ProvenLeaf {
  readonly batch: ProvenBatch;
  /** Position in the leaf vector. */
  readonly index: number;
}

/** A leaf and its device. */
export interface FoundLeaf extends ProvenLeaf {
  readonly deviceId: string;
}

/** Returns the leaf with that hash from the batch with the highest block, or undefined. */
export async function findLeaf(tx: Transaction, tenantId: string, hash: Uint8Array): Promise<FoundLeaf | undefined> {
  const candidates = await leavesOfHash(tx, tenantId, hash);
  if (candidates.length === 0) return undefined;
  const { rows } = await tx.query<BatchRow & { leaf_index: number }>(
    `SELECT ${batchColumns}, leaf.leaf_index
     FROM unnest($2::uuid[], $3::int4[]) AS leaf (batch_id, leaf_index) JOIN anchor_batches AS batch USING (batch_id)
     WHERE batch.tenant_id = $1 AND batch.status = 'confirmed'
       AND substring(batch.leaves FROM leaf.leaf_index * 32 + 1 FOR 32) = $4
     ORDER BY batch.block_height DESC, batch.confirmed_at, batch.batch_id LIMIT 1`,
    [tenantId, candidates.map(({ batchId }) => batchId), candidates.map(({ index }) => index), Buffer.from(hash)],
  );
  const [row] = rows;
  if (!row) return undefined;
  const [leaf] = await withDevices(tx, tenantId, [{ batch: toBatch(row), index: row.leaf_index }]);
  return leaf;
}

/** Returns a confirmed batch of the tenant, or undefined. */
export async function findProvenBatch(
  tx: Transaction,
  tenantId: string,
  batchId: string,
): Promise<ProvenBatch | undefined> {
  const { rows } = await tx.query<BatchRow>(
    `SELECT ${batchColumns} FROM anchor_batches AS batch
     WHERE tenant_id = $1 AND batch_id = $2 AND status = 'confirmed'`,
    [tenantId, batchId],
  );
  return rows[0] && toBatch(rows[0]);
}

/** A batch of a tenant, in any state. */
export interface BatchOfTenant {
  readonly batchId: string;
  readonly openedAt: Date;
  /** Null while it is open. */
  readonly sealedAt: Date | null;
  readonly isProven: boolean;
  /** 0 while it is open. */
  readonly leaves: number;
}

/** Yields the batches that a tenant has at the beginning, in the order in which they were opened, in pages. */
export async function* pagesOfBatches(database: Database, tenantId: string): AsyncGenerator<readonly BatchOfTenant[]> {
  const { rows: now } = await database.read(tenantId, (tx) => tx.query<{ now: string }>('SELECT now()::text AS now'));
  for (let after = { batchId: nilId, opened: '-infinity' }; ;) {
    const { rows } = await database.read(tenantId, (tx) =>
      tx.query<BatchOfTenant & { opened: string }>(
        `SELECT batch_id AS "batchId", created_at AS "openedAt", created_at::text AS opened, sealed_at AS "sealedAt",
           status = 'confirmed' AS "isProven", coalesce(octet_length(leaves) / 32, 0) AS leaves FROM anchor_batches
         WHERE tenant_id = $1 AND (created_at, batch_id) > ($2, $3) AND created_at <= $4
         ORDER BY created_at, batch_id LIMIT ${batchesOfPage}`,
        [tenantId, after.opened, after.batchId, now[0]!.now],
      ),
    );
    if (rows.length > 0) yield rows;
    if (rows.length < batchesOfPage) return;
    after = rows.at(-1)!;
  }
}

/** Returns those of the batches that are confirmed, by id. */
export async function findProvenBatches(
  tx: Transaction,
  tenantId: string,
  batchIds: readonly string[],
): Promise<Map<string, ProvenBatch>> {
  const { rows } = await tx.query<BatchRow>(
    `SELECT ${batchColumns} FROM anchor_batches AS batch
     WHERE tenant_id = $1 AND batch_id = ANY($2::uuid[]) AND status = 'confirmed' ORDER BY block_height, batch_id`,
    [tenantId, batchIds],
  );
  return new Map(rows.map((row) => [row.batch_id, toBatch(row)]));
}

/** Returns a rollout of the tenant, or undefined. */
export async function findRollout(
  tx: Transaction,
  tenantId: string,
  rolloutId: string,
): Promise<{ packageId: string } | undefined> {
  const { rows } = await tx.query<{ packageId: string }>(
    'SELECT package_id AS "packageId" FROM ota_rollouts WHERE tenant_id = $1 AND rollout_id = $2',
    [tenantId, rolloutId],
  );
  return rows[0];
}

/** A result that a device reported, with the place of its point; null while it has none. */
export interface ResultRow {
  readonly resultId: string;
  readonly deviceId: string;
  /** Nanoseconds since 1970. */
  readonly time: bigint;
  readonly payload: string;
  readonly dataHash: Buffer;
  readonly batchId: string | null;
  readonly leafIndex: number | null;
}

/** Returns results of a rollout after one of them (undefined: from the first), in the order in which they were reported. */
export async function pageOfResults(
  tx: Transaction,
  tenantId: string,
  rolloutId: string,
  after: string | undefined,
  limit: number,
): Promise<ResultRow[]> {
  const { rows } = await tx.query<ResultRow & Record<string, unknown>>(
    `SELECT result_id AS "resultId", device_id AS "deviceId", time, payload, data_hash AS "dataHash",
       batch_id AS "batchId", leaf_index AS "leafIndex"
     FROM ota_results WHERE tenant_id = $1 AND rollout_id = $2 AND ($3::uuid IS NULL OR result_id > $3)
     ORDER BY result_id LIMIT $4`,
    [tenantId, rolloutId, after ?? null, limit],
  );
  return rows;
}

/** Returns the places of a page of all leaves, latest batches first, ordered by position in the leaf vectors. */
export async function pageOfLeaves(
  tx: Transaction,
  tenantId: string,
  offset: number,
  limit: number,
): Promise<LeafPosition[]> {
  // Each batch has a leaf, so that as many batches are enough as leaves are skipped and wanted.
  const { rows } = await tx.query<{ batch_id: string; first: number; last: number }>(
    `SELECT batch_id, greatest(0, $2 - place.before)::int4 AS first,
       (least(place.leaves, $2 + $3 - place.before) - 1)::int4 AS last
     FROM (SELECT batch_id, leaves, sum(leaves) OVER (ORDER BY created_at DESC, batch_id DESC) - leaves AS before
           FROM (SELECT created_at, batch_id, octet_length(leaves) / 32 AS leaves FROM anchor_batches
                 WHERE tenant_id = $1 AND status = 'confirmed'
                 ORDER BY created_at DESC, batch_id DESC LIMIT $2::int8 + $3) AS newest) AS place
     WHERE place.before < $2::int8 + $3 AND place.before + place.leaves > $2::int8
     ORDER BY place.before`,
    [tenantId, offset, limit],
  );
  return rows.flatMap(({ batch_id: batchId, first, last }) =>
    Array.from({ length: last - first + 1 }, (_, i) => ({ batchId, index: first + i })),
  );
}

const batchesOfPage = 1000;

/** Batches that are read at once: in chain mode each may have a thousand segments, half a megabyte in memory. */
export const batchesAtOnce = 64;

/** Reads proven leaves of places, without those of batches that are not proven any more. */
type ReadLeaves<Leaf> = (
  tx: Transaction,
  tenantId: string,
  places: readonly LeafPosition[],
) => Promise<readonly Leaf[]>;

/** Leaves whose batches are read some at a time. */
export interface LeafPages<Leaf> {
  readonly first: readonly Leaf[];
  readonly rest: readonly (readonly LeafPosition[])[];
  readonly read: ReadLeaves<Leaf>;
}

/** Reads the first leaves of places, so that a usual page takes one transaction. */
export async function firstLeaves<Leaf>(
  tx: Transaction,
  tenantId: string,
  places: readonly LeafPosition[],
  read: ReadLeaves<Leaf>,
): Promise<LeafPages<Leaf>> {
  const byBatch = Map.groupBy(places, ({ batchId }) => batchId);
  const [first = [], ...rest] = [...pagesOf([...byBatch.values()], batchesAtOnce)].map((batches) => batches.flat());
  return { first: first.length === 0 ? [] : await read(tx, tenantId, first), rest, read };
}

/** Yields all leaves, and reads those that are left. */
export async function* allLeaves<Leaf>(
  database: Database,
  tenantId: string,
  { first, rest, read }: LeafPages<Leaf>,
): AsyncGenerator<readonly Leaf[]> {
  yield first;
  for (const places of rest) yield await database.read(tenantId, (tx) => read(tx, tenantId, places));
}

/** Returns leaves without their devices. */
export const provenLeaves: ReadLeaves<ProvenLeaf> = async (tx, tenantId, places) => {
  const batches = await findProvenBatches(tx, tenantId, [...new Set(places.map(({ batchId }) => batchId))]);
  return places.flatMap(({ batchId, index }) => {
    const batch = batches.get(batchId);
    return batch ? [{ batch, index }] : [];
  });
};

/** Returns leaves with their devices, which are looked up. */
export const leavesWithDevices: ReadLeaves<FoundLeaf> = async (tx, tenantId, places) =>
  withDevices(tx, tenantId, await provenLeaves(tx, tenantId, places));

async function withDevices(tx: Transaction, tenantId: string, found: readonly ProvenLeaf[]): Promise<FoundLeaf[]> {
  const leaves = found.map(({ batch, index }) => ({
    ...{ batchId: batch.batchId, index },
    hash: batch.leaves.subarray(index * 32, index * 32 + 32),
  }));
  const devices = await devicesOf(tx, tenantId, leaves);
  return found.map((leaf) => ({ ...leaf, deviceId: devices.get(`${leaf.batch.batchId}/${leaf.index}`) ?? '' }));
}
