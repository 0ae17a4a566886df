// The points of a populated installation with their batches, transactions and blocks: every proof is valid. Hot points are stored as a
// writer stores them; cold ones are handed over to what writes the cold files.
import { blockHash, toDisplayHex } from '@kellet/verify';
import type pg from 'pg';
import { newId } from '../../../apiserver/src/platform/ids.ts';
import { auditHeadPoint } from '../../../apiserver/src/telemetry/points/audit-head-point.ts';
import { mineHeader } from '../../../dev/devchain/block.ts';
import { batchColumns, BatchRows, type BlockPlace, coinColumns, idText, transactionColumns } from './batch-rows.ts';
import type { BinaryRows } from './binary-rows.ts';
import { type ColdDay, ColdDayBuilder } from './cold-day.ts';
import { copyBinary, copyRows, type Value } from './copy.ts';
import { LeafFilling } from './leaf-filling.ts';
import { MadeBlock, type SendingDevice, valueOf } from './made-block.ts';
import { type HeadPoint, Segment, type Send } from './segment.ts';
import type { Sizes } from './sizes.ts';

/** A row of audit_anchors. */
interface AnchoredHead {
  readonly tenant_id: string;
  readonly sequence: number;
  readonly hash: string;
  readonly time: Date;
}

/** Tables that points alone fill. */
export const pointTables = [
  ...['anchor_batches', 'chain_transactions', 'wallet_outputs', 'block_headers', 'telemetry_latest', 'proven_leaves'],
  ...['unpacked_leaves', 'leaf_runs', 'leaf_blocks'],
] as const;

/** The index of batches whose entries come in no order. The others grow at their end, and need no second pass over the batches. */
export const unorderedIndex = 'anchor_batches_by_txid';

const daySeconds = 86_400;
const yearSeconds = 365 * daySeconds;
const blockSeconds = 600;
/** Minimum batches per block: small installations have fewer blocks. */
const leastBatchesPerBlock = 100;
/** Parts of the devices that have points, one after another. */
const turns = 100;
/** Transactions of this time and the coins that they spent are kept, as KELLET_TRANSACTION_RETENTION_DAYS has it by default. */
const transactionSeconds = 30 * daySeconds;
/** Points of the last days are in the database, and the others in cold files, if there are five times as many. */
export const hotDays = 60;
/** Of a segment; small installations have smaller ones, so that most of them turn cold. */
const mostPoints = 1_000_000;
const leastSegments = 24;
/** Bytes that are sent with one COPY. */
const copyBytes = 4 * 1024 * 1024;
const rowsAtOnce = 5000;
/** Reports of progress. */
const reports = 20;

const headerColumns = ['height', 'block_hash', 'header'];
const provenColumns = ['tenant_id', 'part', 'leaves'];
const latestColumns = ['tenant_id', 'device_id', 'document'];

/** What the filling needs. */
export interface PointFillingParts {
  /** In a transaction in which the tables of points were truncated. */
  readonly client: pg.ClientBase;
  /** Another connection, for reading. */
  readonly reader: pg.ClientBase;
  /** Whoever owns the tables. */
  readonly owner: string;
  readonly sizes: Sizes;
  /** Takes cold points of a tenant and a date, and waits until there is room for more. */
  readonly storeCold: (day: ColdDay, buffers: ArrayBuffer[]) => Promise<void>;
  /** Called with the part that is done. */
  readonly progress: (done: number) => void;
}

const dayOf = (seconds: number): number => Math.floor(seconds / daySeconds);
const idBytes = (id: string): Buffer => Buffer.from(id.replaceAll('-', ''), 'hex');

/** Fills the year up to now. The audit log must have been filled before: its anchored heads are points too. */
export class PointFilling {
  private readonly parts: PointFillingParts;
  private readonly endSeconds = Math.floor(Date.now() / 1000);
  private readonly startSeconds = this.endSeconds - yearSeconds;
  private readonly writerId = newId();
  private readonly pointsOfBatch: number;
  private readonly pointsOfSegment: number;
  private readonly rows = new BatchRows(this.writerId, copyBytes);
  private readonly headers: Value[][] = [];
  private readonly block = new MadeBlock();
  /** Points of the block's batches that no device sent, by their place. */
  private readonly headPoints = new Map<number, HeadPoint>();
  private readonly leaves: LeafFilling;
  private segment: Segment | undefined;
  private height = 0;
  private previous: Uint8Array = new Uint8Array(32);
  private devices: readonly SendingDevice[] = [];
  private deviceIds: ReadonlyMap<string, readonly string[]> = new Map();
  private readonly coldDays = new Map<string, ColdDayBuilder>();
  private turn = -1;
  private heads: AnchoredHead[] = [];
  private made = 0;
  /** Leaves of proven batches by tenant. */
  private readonly proven = new Map<string, number>();
  /** What was sent to the database last: it stores while the next is made. */
  private storing: Promise<unknown> = Promise.resolve();
  /** The newest point of each device of this turn. */
  private readonly newest = new Map<SendingDevice, { readonly seconds: number; readonly number: number }>();

  constructor(parts: PointFillingParts) {
    this.parts = parts;
    const { coldPoints, hotPoints, batches } = parts.sizes;
    this.pointsOfBatch = Math.max(1, Math.round((coldPoints + hotPoints) / batches));
    this.pointsOfSegment = Math.min(mostPoints, Math.ceil((coldPoints + hotPoints) / leastSegments));
    this.leaves = new LeafFilling(this.send, copyBytes);
  }

  /** Makes everything, oldest first. */
  async run(): Promise<void> {
    const { client, reader, progress, sizes } = this.parts;
    const { batches, pendingBatches } = sizes;
    await client.query('INSERT INTO telemetry_writers (writer_id, closed_at) VALUES ($1, now())', [this.writerId]);
    await reader.query(
      `DECLARE heads CURSOR WITH HOLD FOR
       SELECT tenant_id, sequence, encode(hash, 'hex') AS hash, time FROM audit_anchors ORDER BY time`,
    );
    await this.mine(this.startSeconds);
    const blocks = Math.min(yearSeconds / blockSeconds, Math.ceil(batches / leastBatchesPerBlock));
    const timeOf = (block: number) => this.startSeconds + Math.round((block / (blocks + 1)) * yearSeconds);
    for (let block = 0, done = 0; block < blocks; block += 1) {
      const time = timeOf(block + 1);
      // The batches of a block are of one date.
      const from = Math.max(timeOf(block), dayOf(time - 60) * daySeconds);
      await this.takeTurns(Math.min(turns, blocks), dayOf(time - 60));
      const count = Math.round(((batches - pendingBatches) * (block + 1)) / blocks) - done;
      for (let index = 1; index <= count; index += 1)
        this.makeBatch(from + Math.round(((time - 30 - from) * index) / count), done + index);
      done += count;
      await this.makeHeadBatches(time - 30);
      await this.mine(time);
      if (block % Math.ceil(blocks / reports) === 0) progress(done / batches);
    }
    for (let index = 1; index <= pendingBatches; index += 1)
      this.makeBatch(this.endSeconds - 60, batches - pendingBatches + index);
    await this.makeHeadBatches(this.endSeconds);
    await reader.query('CLOSE heads');
    // They are in no block yet, but have the ids of their transactions.
    this.block.buildTree(Buffer.alloc(32));
    await this.storeBlock(undefined);
    await this.storeLatest();
    await this.storeColdDays(Infinity);
    await this.endSegment();
    await this.leaves.end();
    await this.flush(0);
    // As a trigger counts them, and as packing notes that none was proven before it did.
    const leaves = [...this.proven].flatMap(([tenantId, count]) => [
      [tenantId, 0, count],
      [tenantId, -1, 0],
    ]);
    await this.next(() => copyRows(client, 'proven_leaves', provenColumns, leaves));
    await this.storing;
  }

  /**
   * Devices take turns, some of the largest tenant and those of about ten others at a time: a cold file has the points of a tenant and a
   * day, so there would be hundreds of thousands of small ones if every tenant had points each day.
   */
  private async takeTurns(count: number, day: number): Promise<void> {
    const turn = Math.floor(((day - dayOf(this.startSeconds)) * count) / (yearSeconds / daySeconds + 1));
    if (turn === this.turn) return;
    this.turn = turn;
    const { devices } = this.parts.sizes;
    await this.nextDevices(Math.floor((turn * devices) / count / 2), Math.ceil(devices / count / 2));
  }

  /** Makes other devices send points from now on, unless there are no more. */
  private async nextDevices(offset: number, count: number): Promise<void> {
    const { rows } = await this.parts.reader.query<{ tenant_id: string; device_id: string }>(
      `SELECT tenant_id, device_id FROM (
         (SELECT tenant_id, device_id FROM year.devices WHERE tenant = 1 AND n % 500 <> 0
          ORDER BY n OFFSET $1 LIMIT $2)
         UNION ALL
         (SELECT tenant_id, device_id FROM year.devices WHERE tenant > 1 AND n % 500 <> 0
          ORDER BY tenant, n OFFSET $1 LIMIT $2)) AS d
       ORDER BY tenant_id COLLATE "C", device_id`,
      [offset, count],
    );
    if (rows.length === 0) return;
    await this.storeLatest();
    await this.leaves.packTenants();
    const byTenant = Map.groupBy(rows, (row) => row.tenant_id);
    this.deviceIds = new Map([...byTenant].map(([tenantId, own]) => [tenantId, own.map((row) => row.device_id)]));
    this.devices = [...byTenant].flatMap(([tenantId, own]) =>
      own.map(({ device_id: deviceId }, place) => ({ tenantId, deviceId, bytes: idBytes(deviceId), place })),
    );
  }

  /** Stores the latest values of devices that send no more points. */
  private async storeLatest(): Promise<void> {
    const rows = [...this.newest].map(([{ tenantId, deviceId }, { seconds, number }]) => {
      const time = `${seconds}000000000`;
      const numeric = { temperature: [valueOf(number), time], voltage: [3.3, time] };
      return [tenantId, deviceId, JSON.stringify({ time, numeric, string: { state: ['on', time] } })];
    });
    this.newest.clear();
    for (let first = 0; first < rows.length; first += rowsAtOnce)
      await this.next(() =>
        copyRows(this.parts.client, 'telemetry_latest', latestColumns, rows.slice(first, first + rowsAtOnce)),
      );
  }

  private makeBatch(sealedAt: number, number: number): void {
    const { pointsOfBatch: count, made, devices } = this;
    const device = devices[number % devices.length]!;
    // All of one date, and so in one cold file.
    const last = dayOf(sealedAt - count) === dayOf(sealedAt - 1) ? sealedAt : dayOf(sealedAt - 1) * daySeconds;
    this.block.addBatch(device, last - count, made, count, sealedAt);
    this.newest.set(device, { seconds: last - 1, number: made + count - 1 });
    this.made += count;
  }

  /** Makes a batch for each head of an audit log that was anchored before a time and has none yet. */
  private async makeHeadBatches(before: number): Promise<void> {
    for (;;) {
      if (this.heads.length === 0)
        this.heads = (await this.parts.reader.query<AnchoredHead>('FETCH 1000 FROM heads')).rows.reverse();
      const head = this.heads.at(-1);
      if (!head || head.time.getTime() >= before * 1000) return;
      this.heads.pop();
      const seconds = Math.floor(head.time.getTime() / 1000);
      const point = auditHeadPoint({ ...head, tenantId: head.tenant_id }, seconds);
      this.headPoints.set(this.block.size, { ...point, bytes: idBytes(point.deviceId) });
      this.block.addLeaf(head.tenant_id, point.dataHash, seconds, before);
      this.made += 1;
    }
  }

  /** Mines a block with the transactions of the batches that were made, and stores everything. */
  private async mine(time: number): Promise<void> {
    // A block has a transaction of its miner.
    const root = this.block.buildTree(Buffer.alloc(32, this.height % 251));
    const header = mineHeader(this.previous, root, time);
    this.previous = blockHash(header);
    const place = { height: this.height, hash: toDisplayHex(this.previous), time };
    this.headers.push([place.height, place.hash, Buffer.from(header)]);
    await this.storeBlock(place);
    this.height += 1;
  }

  /** Stores the batches that were made, and their points. */
  private async storeBlock(place: BlockPlace | undefined): Promise<void> {
    const { block, rows } = this;
    const keepsTransactions = !place || place.time >= this.endSeconds - transactionSeconds;
    for (let index = 0; index < block.size; index += 1) {
      rows.add(block, index, place, keepsTransactions);
      const tenantId = block.tenantIds[index]!;
      if (place) this.proven.set(tenantId, (this.proven.get(tenantId) ?? 0) + block.counts[index]!);
      await this.storePoints(index);
      const sent = this.leaves.add(block, index, this.headPoints.get(index), place !== undefined);
      if (sent) await sent;
    }
    this.headPoints.clear();
    block.clear();
    // Heads of earlier days may have been anchored since the last block.
    if (place) await this.storeColdDays(dayOf(place.time - 60));
    await this.flush(copyBytes);
  }

  private async storePoints(index: number): Promise<void> {
    if (this.segment && this.segment.size >= this.pointsOfSegment) await this.endSegment();
    const segment = (this.segment ??= await this.openSegment());
    const head = this.headPoints.get(index);
    // A promise for each batch would cost as much as its rows.
    if (segment.add(this.block, index, head)) await segment.flush();
    if (segment.isCold) this.addCold(index, head);
  }

  private addCold(index: number, head: HeadPoint | undefined): void {
    const { block } = this;
    const tenantId = block.tenantIds[index]!;
    const [firstSeconds, received] = [block.firstSeconds[index]!, block.sealedAt[index]!];
    const day = dayOf(firstSeconds);
    // Points just after midnight may be of the day before, on which other devices took their turn.
    const key = `${tenantId}/${day}/${this.turn}`;
    let held = this.coldDays.get(key);
    if (!held) {
      held = new ColdDayBuilder(tenantId, day, this.deviceIds.get(tenantId) ?? [], this.pointsOfBatch);
      this.coldDays.set(key, held);
    }
    const [ids, leaves] = [
      [block.ids, index * 16],
      [block.leaves, block.leavesAt[index]!],
    ] as const;
    if (head) {
      const [{ deviceId, payload }, dataHash] = [head, Buffer.from(head.dataHash, 'latin1')];
      held.addOther({ deviceId, payload, dataHash, seconds: firstSeconds, batchId: idText(...ids), received });
    } else {
      const [device, firstNumber] = [block.devices[index]!.place, block.firstNumber[index]!];
      held.add({ device, firstSeconds, firstNumber, received }, ids, leaves);
    }
  }

  /** Hands over the cold points of the dates before a day. */
  private async storeColdDays(before: number): Promise<void> {
    for (const [key, held] of this.coldDays) {
      if (held.day >= before) continue;
      this.coldDays.delete(key);
      const { day, buffers } = held.end();
      await this.parts.storeCold(day, buffers);
    }
  }

  /** Opens a segment as the owner of the database. It is cold if it will be complete before the points that are hot. */
  private async openSegment(): Promise<Segment> {
    const { client, owner, sizes } = this.parts;
    await this.storing;
    await client.query(`SET LOCAL ROLE ${client.escapeIdentifier(owner)}`);
    const { rows } = await client.query<{ id: string }>('SELECT telemetry_open_hot_segment($1) AS id', [this.writerId]);
    await client.query('RESET ROLE');
    const total = sizes.coldPoints + sizes.hotPoints;
    const endsAt = this.startSeconds + ((this.made + this.pointsOfSegment) / total) * yearSeconds;
    return new Segment(BigInt(rows[0]!.id), endsAt < this.endSeconds - hotDays * daySeconds, this.send, copyBytes);
  }

  private async endSegment(): Promise<void> {
    const { segment } = this;
    if (!segment) return;
    this.segment = undefined;
    await segment.flush();
    await this.storing;
    await segment.end(this.parts.client);
  }

  /** Sends the rows of batches and headers, if there are so many bytes. */
  private async flush(least: number): Promise<void> {
    const { client } = this.parts;
    const copyAll = async (table: string, names: readonly string[], rows: BinaryRows) => {
      if (!rows.isEmpty && rows.size >= least) await this.next(() => copyBinary(client, table, names, rows.take()));
    };
    await copyAll('anchor_batches', batchColumns, this.rows.batches);
    await copyAll('chain_transactions', transactionColumns, this.rows.transactions);
    await copyAll('wallet_outputs', coinColumns, this.rows.coins);
    if (this.headers.length < (least === 0 ? 1 : rowsAtOnce)) return;
    const headers = this.headers.splice(0);
    await this.next(() => copyRows(client, 'block_headers', headerColumns, headers));
  }

  /** Sends rows for a table, and does not wait until they are stored. */
  private readonly send: Send = (table, names, data) =>
    this.next(() => copyBinary(this.parts.client, table, names, data));

  /** Sends something once what was sent before is stored, and does not wait for it. */
  private async next(send: () => Promise<void>): Promise<void> {
    await this.storing;
    this.storing = send();
    // Whoever waits for it next gets the error.
    this.storing.catch(() => undefined);
  }
}
