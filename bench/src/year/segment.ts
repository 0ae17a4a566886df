// Segments of a populated installation: the points of hot ones.
import type pg from 'pg';
import type { auditHeadPoint } from '../../../apiserver/src/telemetry/points/audit-head-point.ts';
import { BinaryRows } from './binary-rows.ts';
import { type MadeBlock, payloadOf } from './made-block.ts';

/** A point that no device sent: the head of an audit log. */
export type HeadPoint = ReturnType<typeof auditHeadPoint> & { readonly bytes: Buffer };

/** Sends rows to a table, after those that were sent before, and does not wait until they are stored. */
export type Send = (table: string, columns: readonly string[], rows: Buffer) => Promise<void>;

const pointColumns = ['time', 'device_id', 'batch_id', 'leaf_index', 'tenant_id', 'data_hash', 'payload', 'received'];

/** A segment that is being filled. One that turns cold has no rows of points: these are in files. */
export class Segment {
  readonly isCold: boolean;
  private readonly id: bigint;
  private readonly send: Send;
  private readonly points: BinaryRows;
  private rows = 0;
  private least = Infinity;
  private greatest = 0;

  constructor(id: bigint, isCold: boolean, send: Send, copyBytes: number) {
    this.id = id;
    this.isCold = isCold;
    this.send = send;
    this.points = new BinaryRows(copyBytes);
  }

  get size(): number {
    return this.rows;
  }

  /** Adds the points of a batch, and returns whether it should be flushed. `head` is the point of a batch that no device sent. */
  add(block: MadeBlock, index: number, head: HeadPoint | undefined): boolean {
    const first = block.firstSeconds[index]!;
    const count = block.counts[index]!;
    if (first < this.least) this.least = first;
    if (first + count - 1 > this.greatest) this.greatest = first + count - 1;
    this.rows += count;
    if (!this.isCold) this.addPoints(block, index, head);
    return this.points.isFull;
  }

  /** Sends the rows that were added. */
  async flush(): Promise<void> {
    if (!this.points.isEmpty) await this.send(`telemetry_segment_${this.id}`, pointColumns, this.points.take());
  }

  private addPoints(block: MadeBlock, index: number, head: HeadPoint | undefined): void {
    const rows = this.points;
    const device = head?.bytes ?? block.devices[index]!.bytes;
    const first = block.firstSeconds[index]!;
    const number = block.firstNumber[index]!;
    const received = block.sealedAt[index]! * 1000;
    for (let leaf = 0; leaf < block.counts[index]!; leaf += 1) {
      const leafAt = block.leavesAt[index]! + leaf * 32;
      rows.row(pointColumns.length);
      rows.nanoseconds(first + leaf);
      rows.bytes(device);
      rows.bytes(block.ids, index * 16, index * 16 + 16);
      rows.int4(leaf);
      rows.ascii(block.tenantIds[index]!);
      rows.bytes(block.leaves, leafAt, leafAt + 32);
      rows.ascii(head?.payload ?? payloadOf(number + leaf));
      rows.int8(received);
    }
  }

  /** Completes the segment, whose rows are stored, as the code does, except for the indexes of hot ones. */
  async end(client: pg.ClientBase): Promise<void> {
    const least = BigInt(this.least) * 1_000_000_000n;
    const greatest = BigInt(this.greatest) * 1_000_000_000n;
    await client.query(
      `UPDATE telemetry_segments SET state = $5, rows = $2, least_time = $3, greatest_time = $4, counted = true,
         sealed_at = to_timestamp($4::int8 / 1000000000), opened_at = to_timestamp($3::int8 / 1000000000),
         indexed_at = CASE WHEN $5 = 'cold' THEN now() END WHERE segment_id = $1`,
      [this.id, this.rows, least, greatest, this.isCold ? 'cold' : 'sealed'],
    );
    if (!this.isCold) return;
    await client.query(`DROP TABLE telemetry_segment_${this.id}`);
    await client.query('SELECT telemetry_drop_leaf_table($1)', [this.id]);
  }
}
