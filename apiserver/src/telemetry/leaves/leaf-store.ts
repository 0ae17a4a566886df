// Reads the index of leaves: which leaves may have a hash, which device a leaf is of, and the proven leaves of a device. A leaf is in
// leaf_index if an earlier version has sealed it and it was not moved yet, in unpacked_leaves, or in a run. Leaves go this way, each step
// in one transaction, so that whoever reads the places in this order misses none. One that moves meanwhile may be found twice: counting
// takes a snapshot.
import type { Transaction } from '../../platform/database/database.ts';
import { pagesOf } from '../../platform/pages-of.ts';
import { DeviceRun, LeafList, type LeafPosition, pageOf, type SlotRange } from './device-leaves.ts';
import {
  entryBytes,
  entryId,
  entryOf,
  entryUpTo,
  entryValue,
  hashBytes,
  idBytes,
  leavesWith,
  type Part,
  parts,
  perBlock,
  prefixOf,
  readUint,
  widthOf,
} from './leaf-blocks.ts';
import { bytesOfId, idAt } from './leaf-bytes.ts';

/** A leaf by its hash, of which the index knows the first bytes. */
export interface LeafOfBatch extends LeafPosition {
  readonly hash: Uint8Array;
}

interface RunRow {
  run_id: string;
  leaves: number;
  devices: number;
}

interface BlockRow {
  first: bigint;
  data: Buffer;
}

/** A number of a run for which a block is looked up. */
interface BlockKey {
  readonly runId: string;
  readonly key: number;
}

/** Returns the first eight bytes of a hash as they are in leaf_index: big-endian, signed. */
const longPrefixOf = (hash: Uint8Array): bigint => Buffer.from(hash).readBigInt64BE();

/** Returns the leaves of batches that are proven, or were, and may have this hash: a few may have another one. */
export async function leavesOfHash(tx: Transaction, tenantId: string, hash: Uint8Array): Promise<LeafPosition[]> {
  const [indexed, unpacked, runs] = await Promise.all([
    tx.query<{ batch_id: string; leaf_index: number }>(
      'SELECT batch_id, leaf_index FROM leaf_index WHERE tenant_id = $1 AND prefix = $2',
      [tenantId, longPrefixOf(hash)],
    ),
    tx.query<{ batch_id: string; leaves: Buffer }>(
      `SELECT u.batch_id, b.leaves FROM unpacked_leaves u
       JOIN anchor_batches b ON b.tenant_id = u.tenant_id AND b.batch_id = u.batch_id
       WHERE u.tenant_id = $1 AND u.is_proven AND position($2 IN b.leaves) > 0`,
      [tenantId, Buffer.from(hash)],
    ),
    tx.query<RunRow & BlockRow>(
      `SELECT r.run_id, r.leaves, r.devices, block.first, block.data FROM leaf_runs r CROSS JOIN LATERAL (
         SELECT first, data FROM leaf_blocks b
         WHERE b.tenant_id = r.tenant_id AND b.run_id = r.run_id AND b.part = ${parts.hashes} AND b.first <= $2
         ORDER BY b.first DESC LIMIT 1) AS block
       WHERE r.tenant_id = $1 AND r.replaced_at IS NULL`,
      [tenantId, prefixOf(hash)],
    ),
  ]);
  const found = [
    ...unpacked.rows.flatMap(({ batch_id: batchId, leaves }) =>
      placesOf(leaves, Buffer.from(hash)).map((index) => ({ batchId, index })),
    ),
    ...indexed.rows.map((row) => ({ batchId: row.batch_id, index: row.leaf_index })),
  ];
  const numbers = runs.rows.flatMap((run) =>
    leavesWith({ first: Number(run.first), data: run.data }, run.leaves, hash).map((key) => ({
      runId: run.run_id,
      key,
    })),
  );
  return numbers.length === 0 ? found : [...found, ...(await positionsOf(tx, tenantId, numbers))];
}

/** Reports whether a sealed batch has this leaf, proven or not. Reads all leaves that are not proven. */
export async function isLeaf(tx: Transaction, tenantId: string, hash: Buffer): Promise<boolean> {
  const leaves = await leavesOfHash(tx, tenantId, hash);
  const { rows } = await tx.query<{ is_leaf: boolean }>(
    `SELECT EXISTS (
         SELECT FROM unnest($2::uuid[], $3::int4[]) AS leaf (batch_id, index) JOIN anchor_batches b USING (batch_id)
         WHERE b.tenant_id = $1 AND substring(b.leaves FROM leaf.index * ${hashBytes} + 1 FOR ${hashBytes}) = $4)
       OR EXISTS (
         SELECT FROM unpacked_leaves u JOIN anchor_batches b ON b.tenant_id = u.tenant_id AND b.batch_id = u.batch_id
         WHERE u.tenant_id = $1 AND NOT u.is_proven AND (position($4 IN b.leaves) - 1) % ${hashBytes} = 0) AS is_leaf`,
    [tenantId, leaves.map(({ batchId }) => batchId), leaves.map(({ index }) => index), hash],
  );
  return rows[0]!.is_leaf;
}

/** Returns the places of a hash or an id among others of its length. */
function placesOf(all: Buffer, one: Buffer): number[] {
  const places: number[] = [];
  for (let at = all.indexOf(one); at >= 0; at = all.indexOf(one, at + 1))
    if (at % one.length === 0) places.push(at / one.length);
  return places;
}

/** Returns the leaves with these numbers of runs. */
async function positionsOf(tx: Transaction, tenantId: string, numbers: readonly BlockKey[]): Promise<LeafPosition[]> {
  const blocks = await blocksUpTo(tx, tenantId, parts.batches, numbers);
  return numbers.flatMap(({ runId, key }) => {
    const block = blocks.get(runId)?.findLast(({ first }) => Number(first) <= key);
    if (!block) return [];
    const place = entryUpTo(block.data, key);
    return [{ batchId: idAt(entryId(block.data, place)), index: key - entryValue(block.data, place) }];
  });
}

/** Returns, by run, the blocks of a part with these keys, each once and in order. */
async function blocksUpTo(
  tx: Transaction,
  tenantId: string,
  part: Part,
  keys: readonly BlockKey[],
): Promise<Map<string, BlockRow[]>> {
  if (keys.length === 0) return new Map();
  const { rows } = await tx.query<BlockRow & { run_id: string }>(
    `SELECT DISTINCT ON (given.run_id, block.first) given.run_id, block.first, block.data
     FROM unnest($2::uuid[], $3::int8[]) AS given (run_id, key) CROSS JOIN LATERAL (
       SELECT first, data FROM leaf_blocks b
       WHERE b.tenant_id = $1 AND b.run_id = given.run_id AND b.part = ${part} AND b.first <= given.key
       ORDER BY b.first DESC LIMIT 1) AS block
     ORDER BY given.run_id, block.first`,
    [tenantId, keys.map(({ runId }) => runId), keys.map(({ key }) => key)],
  );
  return Map.groupBy(rows, (row) => row.run_id);
}

/** Returns the keys of the blocks that numbers are in, each once, given how many numbers a block has. */
function blockKeys(numbers: readonly BlockKey[], count: (runId: string) => number): BlockKey[] {
  const keys = new Map<string, BlockKey>();
  for (const { runId, key } of numbers) {
    const first = key - (key % count(runId));
    keys.set(`${runId}/${first}`, { runId, key: first });
  }
  return [...keys.values()];
}

/** Returns the devices of leaves of sealed batches, keyed by `batch/index`. */
export async function devicesOf(
  tx: Transaction,
  tenantId: string,
  leaves: readonly LeafOfBatch[],
): Promise<Map<string, string>> {
  const found = new Map<string, string>();
  const byBatch = Map.groupBy(leaves, ({ batchId }) => batchId);
  const ids = [...byBatch.keys()];
  const [indexed, unpacked, packed] = await Promise.all([
    tx.query<{ batch_id: string; leaf_index: number; device_id: string }>(
      `SELECT batch_id, leaf_index, device_id FROM leaf_index
       WHERE tenant_id = $1 AND prefix = ANY($2) AND batch_id = ANY($3)`,
      [tenantId, leaves.map(({ hash }) => longPrefixOf(hash)), ids],
    ),
    tx.query<{ batch_id: string; devices: Buffer }>(
      'SELECT batch_id, devices FROM unpacked_leaves WHERE tenant_id = $1 AND batch_id = ANY($2)',
      [tenantId, ids],
    ),
    packedDevicesOf(tx, tenantId, byBatch),
  ]);
  for (const row of indexed.rows) found.set(`${row.batch_id}/${row.leaf_index}`, row.device_id);
  for (const { batch_id: batchId, devices } of unpacked.rows)
    for (const { index } of byBatch.get(batchId)!)
      if (index * idBytes < devices.length) found.set(`${batchId}/${index}`, idAt(devices, index * idBytes));
  for (const [of, device] of packed) found.set(of, device);
  return found;
}

/** Returns the devices of those leaves that are packed, keyed by `batch/index`. */
async function packedDevicesOf(
  tx: Transaction,
  tenantId: string,
  byBatch: ReadonlyMap<string, readonly { readonly index: number }[]>,
): Promise<Map<string, string>> {
  const found = new Map<string, string>();
  const runs = await tx.query<RunRow & { batch_id: string; data: Buffer }>(
    `SELECT given.batch_id, r.run_id, r.leaves, r.devices, block.data FROM unnest($2::uuid[]) AS given (batch_id)
     JOIN leaf_runs r ON r.tenant_id = $1 AND r.replaced_at IS NULL
       AND r.least_batch <= given.batch_id AND r.greatest_batch >= given.batch_id
     CROSS JOIN LATERAL (
       SELECT data FROM leaf_blocks b WHERE b.tenant_id = $1 AND b.run_id = r.run_id AND b.part = ${parts.batches}
         AND b.first_id <= given.batch_id ORDER BY b.first_id DESC LIMIT 1) AS block`,
    [tenantId, [...byBatch.keys()]],
  );
  const facts = new Map(runs.rows.map((row) => [row.run_id, row]));
  const numbers = runs.rows.flatMap(({ run_id: runId, batch_id: batchId, data }) => {
    const place = entryOf(data, bytesOfId(batchId));
    if (place < 0) return [];
    const first = entryValue(data, place);
    return byBatch.get(batchId)!.map(({ index }) => ({ runId, key: first + index, of: `${batchId}/${index}` }));
  });
  const rankWidth = (runId: string): number => widthOf(facts.get(runId)!.devices);
  const places = await blocksUpTo(
    tx,
    tenantId,
    parts.places,
    blockKeys(numbers, (runId) => perBlock(rankWidth(runId))),
  );
  const ranks = numbers.flatMap(({ runId, key, of }) => {
    const block = places.get(runId)?.findLast(({ first }) => Number(first) <= key);
    if (!block) return [];
    const width = rankWidth(runId);
    return [{ runId, key: readUint(block.data, (key - Number(block.first)) * width, width), of }];
  });
  const devices = await blocksUpTo(
    tx,
    tenantId,
    parts.devices,
    blockKeys(ranks, () => perBlock(entryBytes)),
  );
  for (const { runId, key, of } of ranks) {
    const block = devices.get(runId)?.findLast(({ first }) => Number(first) <= key);
    if (block) found.set(of, idAt(block.data, (key - Number(block.first)) * entryBytes));
  }
  return found;
}

/**
 * Returns a page of the proven leaves of one device, latest batches first and the last leaf of a batch first, and their number. The
 * transaction must be a snapshot.
 */
export async function leavesOfDevice(
  tx: Transaction,
  tenantId: string,
  deviceId: string,
  { offset, limit }: { readonly offset: number; readonly limit: number },
): Promise<{ leaves: LeafPosition[]; total: number }> {
  const id = bytesOfId(deviceId);
  const [indexed, unpacked, runs, withdrawn] = await Promise.all([
    // All rows of the device, for their number and for the page: ids of batches are in the order in which these were opened.
    tx.query<{ total: number; batch_id: string | null; leaf_index: number }>(
      `WITH proven AS MATERIALIZED (
         SELECT leaf.batch_id, leaf.leaf_index FROM leaf_index AS leaf
         WHERE leaf.tenant_id = $1 AND leaf.device_id = $2 AND NOT EXISTS (
           SELECT FROM anchor_batches AS batch WHERE batch.batch_id = leaf.batch_id AND batch.status <> 'confirmed'))
       SELECT total, batch_id, leaf_index FROM (SELECT count(*)::float8 AS total FROM proven) AS counted
       LEFT JOIN (SELECT * FROM proven ORDER BY batch_id DESC, leaf_index DESC LIMIT $3) AS page ON true
       ORDER BY batch_id DESC, leaf_index DESC`,
      [tenantId, deviceId, offset + limit],
    ),
    tx.query<{ batch_id: string; devices: Buffer }>(
      `SELECT batch_id, devices FROM unpacked_leaves
       WHERE tenant_id = $1 AND is_proven AND position($2 IN devices) > 0 ORDER BY batch_id DESC`,
      [tenantId, id],
    ),
    tx.query<RunRow & { least_batch: string; greatest_batch: string; data: Buffer; next: Buffer | null }>(
      `SELECT r.run_id, r.leaves, r.devices, r.least_batch, r.greatest_batch, block.data,
         (SELECT substring(data FROM ${idBytes + 1} FOR ${entryBytes - idBytes}) FROM leaf_blocks b
          WHERE b.tenant_id = r.tenant_id AND b.run_id = r.run_id AND b.part = ${parts.devices} AND b.first > block.first
          ORDER BY b.first LIMIT 1) AS next
       FROM leaf_runs r CROSS JOIN LATERAL (
         SELECT first, data FROM leaf_blocks b
         WHERE b.tenant_id = r.tenant_id AND b.run_id = r.run_id AND b.part = ${parts.devices} AND b.first_id <= $2
         ORDER BY b.first_id DESC LIMIT 1) AS block
       WHERE r.tenant_id = $1 AND r.replaced_at IS NULL`,
      [tenantId, deviceId],
    ),
    tx.query<{ batch_id: string; leaves: number }>(
      `SELECT w.batch_id, octet_length(b.leaves) / ${hashBytes} AS leaves FROM withdrawn_proofs w
       JOIN anchor_batches b ON b.tenant_id = w.tenant_id AND b.batch_id = w.batch_id WHERE w.tenant_id = $1`,
      [tenantId],
    ),
  ]);
  const sources: (LeafList | DeviceRun<RunRow>)[] = [];
  let total = indexed.rows[0]!.total;
  const unpackedLeaves = unpacked.rows.flatMap(({ batch_id: batchId, devices }) =>
    placesOf(devices, id)
      .toReversed()
      .map((index) => ({ batchId, index })),
  );
  total += unpackedLeaves.length;
  sources.push(new LeafList(unpackedLeaves));
  sources.push(
    new LeafList(
      indexed.rows.flatMap((row) => (row.batch_id === null ? [] : [{ batchId: row.batch_id, index: row.leaf_index }])),
    ),
  );
  for (const run of runs.rows) {
    const place = entryOf(run.data, id);
    if (place < 0) continue;
    const isLast = (place + 1) * entryBytes === run.data.length;
    const end = isLast ? (run.next?.readUInt32BE() ?? run.leaves) : entryValue(run.data, place + 1);
    const slots = { first: entryValue(run.data, place), end };
    total += slots.end - slots.first;
    const [leastBatch, greatestBatch] = [run.least_batch, run.greatest_batch];
    sources.push(new DeviceRun<RunRow>(run, { slots, leastBatch, greatestBatch }));
  }
  const without = new Set(withdrawn.rows.map(({ batch_id: batchId }) => batchId));
  if (without.size > 0) total -= await packedLeavesIn(tx, tenantId, deviceId, withdrawn.rows);
  return {
    leaves: await pageOf(sources, { offset, limit, without }, (ranges) => leavesInSlots(tx, tenantId, ranges)),
    total,
  };
}

/** Returns the leaves that slots of runs name, of each range in the same order. */
async function leavesInSlots(
  tx: Transaction,
  tenantId: string,
  ranges: readonly SlotRange<RunRow>[],
): Promise<LeafPosition[][]> {
  const widths = new Map(ranges.map(({ run }) => [run.run_id, widthOf(run.leaves)]));
  const slots = ranges.flatMap(({ run, first, count }) =>
    Array.from({ length: count }, (_, index) => ({ runId: run.run_id, key: first + index })),
  );
  const blocks = await blocksUpTo(
    tx,
    tenantId,
    parts.postings,
    blockKeys(slots, (runId) => perBlock(widths.get(runId)!)),
  );
  const numbers = slots.flatMap(({ runId, key }) => {
    const width = widths.get(runId)!;
    const block = blocks.get(runId)?.findLast((candidate) => Number(candidate.first) <= key);
    return block ? [{ runId, key: readUint(block.data, (key - Number(block.first)) * width, width) }] : [];
  });
  const leaves = await positionsOf(tx, tenantId, numbers);
  if (leaves.length !== slots.length) throw new Error('a run of leaves is incomplete');
  let end = 0;
  return ranges.map(({ count }) => leaves.slice(end, (end += count)));
}

/** Withdrawn batches whose devices are read at once. */
const withdrawnAtOnce = 64;

/** Returns how many packed leaves of batches are of a device. */
async function packedLeavesIn(
  tx: Transaction,
  tenantId: string,
  deviceId: string,
  batches: readonly { readonly batch_id: string; readonly leaves: number }[],
): Promise<number> {
  let count = 0;
  for (const page of pagesOf(batches, withdrawnAtOnce)) {
    const leaves = page.map(
      (row) => [row.batch_id, Array.from({ length: row.leaves }, (_, index) => ({ index }))] as const,
    );
    const devices = await packedDevicesOf(tx, tenantId, new Map(leaves));
    for (const device of devices.values()) if (device === deviceId) count += 1;
  }
  return count;
}
