// Encodes a flush: the statements and COPY data that commit points together with their places in anchor batches.
import pg from 'pg';
import { bytesOfIds } from '../leaves/leaf-bytes.ts';
import { hashBytes, type HashText, toHex } from '../points/leaf-hashes.ts';
import { pointColumns, rowOffsets, writeUint32, writeUuid } from '../points/point-row.ts';
import { toNanoseconds } from '../points/timestamp.ts';
import type { AcceptedPoint, EncodedRow } from '../points/validate.ts';
import { type Batch, batchRoot, type ChainSegment, type Placement, treeLeaves } from './batches.ts';
import { type IdempotencyRow, nameOfKey } from './idempotency-keys.ts';
import type { RuleFeedPart } from './rule-feed.ts';
import { WireBuffer } from './wire-buffer.ts';

/** A segment completed by the previous flush. */
export interface FinishedSegment {
  readonly segmentId: bigint;
  readonly rows: number;
  readonly leastTime: bigint;
  readonly greatestTime: bigint;
}

/** The content of a flush. */
export interface FlushContent {
  readonly writerId: string;
  readonly epoch: number;
  readonly number: bigint;
  readonly points: readonly AcceptedPoint[];
  readonly placement: Placement;
  /** When the points arrived: milliseconds since 1970 by the database's clock. */
  readonly received: number;
  /** The open segment; undefined only without points. */
  readonly segmentId: bigint | undefined;
  readonly finishedSegment: FinishedSegment | undefined;
  readonly idempotency: readonly IdempotencyRow[];
  readonly ruleFeed: RuleFeedPart;
}

/** Returns the protocol messages of a flush. */
export function encodeFlush(content: FlushContent): WireBuffer {
  const { placement, points } = content;
  const statements = [
    `SELECT telemetry_fence('${content.writerId}', ${content.epoch}, ${content.number})`,
    ...chainStatements(placement),
    ...batchStatements(content.writerId, placement),
    ...content.idempotency.toSorted(byKey).map(idempotencyStatement),
    ...ruleFeedStatements(content.ruleFeed),
    ...resultStatements(points, placement),
  ];
  const finished = content.finishedSegment;
  if (finished) {
    statements.push(
      `UPDATE telemetry_segments SET state = 'sealed', sealed_at = now(), rows = ${finished.rows},
         least_time = ${finished.leastTime}, greatest_time = ${finished.greatestTime}
       WHERE segment_id = ${finished.segmentId}`,
    );
  }
  const sealed = [...placement.opened, ...placement.continued.keys()].filter((batch) => batch.sealed);
  if (sealed.length > 0) statements.push(unpackedStatement(sealed));
  statements.push(...copies(points.length, `telemetry_segment_${content.segmentId} (${pointColumns})`));
  const wire = new WireBuffer(64 * 1024 + points.length * 512);
  wire.query(statements.join(';\n'));
  if (points.length > 0) writePoints(wire, content);
  return wire;
}

/**
 * Rows of a COPY statement. PostgreSQL remembers the first 1,000 rows of a statement in a hash table where all of them collide
 * (each pins the same row description), so that it takes a quadratic number of steps: 1,000 rows in one statement cost up to
 * twice as much as in five. One more statement costs as much as 40 rows.
 */
const rowsPerCopy = 200;

/** Returns the statements that copy so many rows. */
const copies = (rows: number, table: string): string[] =>
  Array.from({ length: Math.ceil(rows / rowsPerCopy) }, () => `COPY ${table} FROM STDIN (FORMAT binary)`);

/** Continues with the data of the next statement if the current one's is complete. */
function nextCopy(wire: WireBuffer, row: number): void {
  if (row === 0 || row % rowsPerCopy !== 0) return;
  wire.endCopy();
  wire.beginCopy();
}

function writePoints(wire: WireBuffer, { points, placement, received }: FlushContent): void {
  const arrival = BigInt(received);
  const batchId = Buffer.alloc(16);
  let batch: Batch | undefined;
  wire.beginCopy();
  for (let index = 0; index < points.length; index += 1) {
    const point = points[index]!;
    nextCopy(wire, index);
    if (batch !== placement.batches[index]!) {
      batch = placement.batches[index]!;
      writeUuid(batchId, batch.batchId, 0);
    }
    if (point.row) {
      placeRow(wire, point.row, batchId, placement.leafIndexes[index]!, received);
      continue;
    }
    wire.row(8);
    wire.int8(toNanoseconds(point.time));
    wire.uuid(point.device.deviceId);
    wire.uuid(batch.batchId);
    wire.int4(placement.leafIndexes[index]!);
    wire.text(point.tenantId);
    wire.binary(point.dataHash);
    wire.text(point.payload);
    wire.int8(arrival);
  }
  wire.endCopy();
}

/** Writes an encoded row with its place and its arrival. */
function placeRow(wire: WireBuffer, row: EncodedRow, batchId: Uint8Array, leaf: number, received: number): void {
  const { rowStart, rowEnd } = row;
  const start = wire.encodedRow(row.bytes, rowStart, rowEnd);
  const { written } = wire;
  for (let index = 0; index < 16; index += 1) written[start + rowOffsets.batch + index] = batchId[index]!;
  writeUint32(written, leaf, start + rowOffsets.leaf);
  const end = start + rowEnd - rowStart;
  writeUint32(written, Math.floor(received / 4294967296), end - 8);
  writeUint32(written, received % 4294967296, end - 4);
}

/** Inserts the devices of the leaves of sealed batches. */
function unpackedStatement(batches: readonly Batch[]): string {
  const rows = batches.map(
    ({ tenantId, batchId, leafDevices }) =>
      `('${tenantId}', '${batchId}', '\\x${bytesOfIds(leafDevices).toString('hex')}')`,
  );
  return `INSERT INTO unpacked_leaves (tenant_id, batch_id, devices) VALUES ${rows.join(',')}`;
}

const bytea = (hashes: readonly HashText[]): string => `'\\x${hashBytes(hashes).toString('hex')}'::bytea`;

/** Returns segments in the JSON form of anchor_batches. */
function segmentsJson(segments: readonly ChainSegment[]): string {
  return JSON.stringify(
    segments.map((segment) => ({
      device_id: segment.deviceId,
      previous_head: toHex(segment.previousHead),
      first_leaf: segment.firstLeaf,
      leaf_count: segment.leafCount,
    })),
  );
}

const segmentsLiteral = (batch: Batch): string =>
  batch.mode === 'chain' ? `'${segmentsJson(batch.segments)}'::jsonb` : 'NULL::jsonb';

function batchStatements(writerId: string, placement: Placement): string[] {
  const statements: string[] = [];
  const opened = [...placement.opened].map((batch) => {
    const proof = batch.sealed
      ? `'sealed', ${bytea(batch.leaves)}, ${bytea([batchRoot(batch)])}, now()`
      : `'open', NULL, NULL, NULL`;
    return `('${batch.tenantId}', '${batch.batchId}', '${batch.mode}', '${writerId}', ${treeLeaves(batch).length}, ${segmentsLiteral(batch)}, ${proof})`;
  });
  if (opened.length > 0) {
    statements.push(
      `INSERT INTO anchor_batches
         (tenant_id, batch_id, anchor_mode, writer_id, count, segments, status, leaves, merkle_root, sealed_at)
       VALUES ${opened.join(',')}`,
    );
  }
  const added: string[] = [];
  for (const [batch, before] of placement.continued) {
    if (batch.sealed) {
      statements.push(sealStatement(batch));
      if (batch.mode === 'chain')
        statements.push(`DELETE FROM open_batch_segments WHERE batch_id = '${batch.batchId}'`);
    } else if (batch.segments.length > before) {
      const segments = batch.segments.slice(before);
      added.push(`('${batch.batchId}', ${segments[0]!.firstLeaf}, '${segmentsJson(segments)}')`);
    }
  }
  if (added.length > 0)
    statements.push(`INSERT INTO open_batch_segments (batch_id, first_leaf, segments) VALUES ${added.join(',')}`);
  return statements;
}

function sealStatement(batch: Batch): string {
  return `UPDATE anchor_batches SET status = 'sealed', sealed_at = now(), count = ${treeLeaves(batch).length},
      leaves = ${bytea(batch.leaves)}, merkle_root = ${bytea([batchRoot(batch)])}, segments = ${segmentsLiteral(batch)}
    WHERE batch_id = '${batch.batchId}'`;
}

function chainStatements(placement: Placement): string[] {
  if (placement.chains.length === 0) return [];
  const moves = placement.chains;
  const list = (values: readonly (string | number)[], type: string) =>
    `ARRAY[${values.map((value) => (typeof value === 'number' ? value : `'${value}'`)).join(',')}]::${type}[]`;
  const hash = (text: HashText) => `\\x${toHex(text)}`;
  return [
    `SELECT telemetry_advance_chains(
       ${list(
         moves.map((move) => move.tenantId),
         'text',
       )},
       ${list(
         moves.map((move) => move.deviceId),
         'uuid',
       )},
       ${list(
         moves.map((move) => hash(move.before)),
         'bytea',
       )},
       ${list(
         moves.map((move) => hash(move.head)),
         'bytea',
       )},
       ${list(
         moves.map((move) => move.added),
         'int4',
       )})`,
  ];
}

/** Processes insert keys in the same order: a flush waits for one of another process that has the same key. */
const byKey = (one: IdempotencyRow, other: IdempotencyRow): number => (nameOfKey(one) < nameOfKey(other) ? -1 : 1);

function idempotencyStatement(row: IdempotencyRow): string {
  const values = [row.tenantId, row.holder, row.idempotencyKey, row.requestHash, row.response];
  return `INSERT INTO telemetry_idempotency (tenant_id, credential_hash, idempotency_key, request_hash, response)
    VALUES (${values.map((value) => pg.escapeLiteral(value)).join(', ')})`;
}

function ruleFeedStatements({ revisions, rows }: RuleFeedPart): string[] {
  if (revisions.size === 0) return [];
  const tenants = [...revisions.keys()].map((tenantId) => `'${tenantId}'`).join(',');
  return [
    `SELECT rules_fence(ARRAY[${tenants}], ARRAY[${[...revisions.values()].join(',')}]::int8[])`,
    ...rows.map(
      ({ tenantId, points }) =>
        `INSERT INTO rule_points (tenant_id, points) VALUES ('${tenantId}', '\\x${points.toString('hex')}')`,
    ),
  ];
}

/** Writes where the points of results are, and fails the flush if one has been anchored already. */
function resultStatements(points: readonly AcceptedPoint[], { batches, leafIndexes }: Placement): string[] {
  const placed = points.flatMap(({ resultId }, index) =>
    resultId === undefined ? [] : [{ resultId, batchId: batches[index]!.batchId, leaf: leafIndexes[index]! }],
  );
  if (placed.length === 0) return [];
  const list = (values: readonly (string | number)[]) => `'{${values.join(',')}}'`;
  const ids = list(placed.map(({ resultId }) => resultId));
  const batchIds = list(placed.map(({ batchId }) => batchId));
  const leaves = list(placed.map(({ leaf }) => leaf));
  return [`SELECT ota_place_results(${ids}::uuid[], ${batchIds}::uuid[], ${leaves}::int4[])`];
}
