// The points of a populated installation with their batches, transactions and blocks: every proof is valid. Points are stored as a
// writer stores them; the code of apiserver then builds the indexes and the cold files.
import {
  blockHash,
  bumpOfTree,
  commitmentScript,
  fromDisplayHex,
  merkleLevels,
  serialiseBump,
  serialiseTransaction,
  toDisplayHex,
  transactionId,
} from '@kellet/verify';
import type pg from 'pg';
import { newId } from '../../../apiserver/src/platform/ids.ts';
import { auditHeadPoint } from '../../../apiserver/src/telemetry/points/audit-head-point.ts';
import { hashBytes, type HashText, leafHash, merkleRoot } from '../../../apiserver/src/telemetry/points/leaf-hashes.ts';
import { writePayload } from '../../../apiserver/src/telemetry/points/payload.ts';
import { mineHeader } from '../../../dev/devchain/block.ts';
import { copyRows, type Value } from './copy.ts';
import type { Sizes } from './sizes.ts';

/** A device, from year.devices. */
interface Device {
  readonly tenant_id: string;
  readonly device_id: string;
}

/** A row of audit_anchors. */
interface AnchoredHead {
  readonly tenant_id: string;
  readonly sequence: number;
  readonly hash: string;
  readonly time: Date;
}

interface MadePoint {
  readonly deviceId: string;
  readonly seconds: number;
  readonly payload: string;
  readonly dataHash: HashText;
}

/** Statement that counts the proven leaves, as a trigger would have done. */
export const countLeaves = `INSERT INTO proven_leaves (tenant_id, part, leaves)
  SELECT tenant_id, -1, sum(octet_length(leaves) / 32) FROM anchor_batches WHERE status = 'confirmed' GROUP BY tenant_id`;

const yearSeconds = 365 * 86_400;
const blockSeconds = 600;
/** Minimum batches per block: small installations have fewer blocks. */
const leastBatchesPerBlock = 100;
/** Parts of the devices that have points, one after another. */
const turns = 100;
const batchesAtOnce = 5000;
/** Transactions of this time and the coins that they spent are kept, as KELLET_TRANSACTION_RETENTION_DAYS has it by default. */
const transactionSeconds = 30 * 86_400;
/** Points of the last days are in the database, and the others in cold files, if there are five times as many. */
export const hotDays = 60;
/** Of a segment; small installations have smaller ones, so that most of them turn cold. */
const mostPoints = 1_000_000;
const leastSegments = 24;

/** Bytes of a signature and a public key, which nothing verifies again. */
const unlockingScript = Buffer.alloc(107, 7);

interface MadeBatch {
  readonly tenantId: string;
  readonly batchId: string;
  readonly sealedAt: number;
  readonly leaves: readonly HashText[];
  readonly root: HashText;
  readonly coin: { readonly txid: string; readonly index: number };
  readonly raw: Uint8Array;
  readonly id: Uint8Array;
}

const columns = {
  points: ['time', 'device_id', 'batch_id', 'leaf_index', 'tenant_id', 'data_hash', 'payload', 'received'],
  leaves: ['tenant_id', 'prefix', 'batch_id', 'leaf_index', 'device_id'],
  batches: [
    ...[
      'tenant_id',
      'batch_id',
      'anchor_mode',
      'status',
      'writer_id',
      'count',
      'leaves',
      'merkle_root',
      'txid',
      'raw_tx',
    ],
    ...['bump', 'block_height', 'block_hash', 'attempts', 'created_at', 'sealed_at', 'submitted_at', 'confirmed_at'],
  ],
  transactions: [
    ...[
      'txid',
      'purpose',
      'batch_id',
      'lease',
      'raw_tx',
      'attempt',
      'state',
      'processor_status',
      'bump',
      'block_height',
    ],
    ...['block_hash', 'created_at'],
  ],
  coins: ['txid', 'output_index', 'public_key', 'satoshis', 'state', 'leased_by', 'created_at'],
  headers: ['height', 'block_hash', 'header'],
};

const publicKey = `02${'ab'.repeat(32)}`;
const text = (seconds: number): string => new Date(seconds * 1000).toISOString();

/** Returns the signed big-endian first eight bytes of a hash, as in leaf_index. */
const prefixOf = (hash: HashText): bigint => Buffer.from(hash.slice(0, 8), 'latin1').readBigInt64BE();

/** Fills the year up to now. The audit log must have been filled before: its anchored heads are points too. */
export class PointFilling {
  private readonly client: pg.Client;
  private readonly sizes: Sizes;
  private readonly openSegment: (writerId: string) => Promise<bigint>;
  private readonly startSeconds = Math.floor(Date.now() / 1000) - yearSeconds;
  private readonly writerId = newId();
  private readonly pointsOfSegment: number;
  private segment:
    { id: bigint; points: Value[][]; leaves: Value[][]; rows: number; least: bigint; greatest: bigint } | undefined;
  private height = 0;
  private previous: Uint8Array = new Uint8Array(32);
  private coins = { txid: '', next: 0 };
  private devices: readonly Device[] = [];
  private heads: AnchoredHead[] = [];
  private made = 0;
  /** What was sent to the database last: it stores while the next is made. */
  private storing: Promise<unknown> = Promise.resolve();
  private readonly newest = new Map<string, { device: Device; time: bigint; value: number }>();

  /** `openSegment` opens a segment as the owner of the database. */
  constructor(client: pg.Client, sizes: Sizes, openSegment: (writerId: string) => Promise<bigint>) {
    this.client = client;
    this.openSegment = openSegment;
    this.sizes = sizes;
    this.pointsOfSegment = Math.min(mostPoints, Math.ceil((sizes.coldPoints + sizes.hotPoints) / leastSegments));
  }

  /** Makes everything, oldest first. */
  async run(progress: (done: number) => void): Promise<void> {
    const { batches, pendingBatches, devices } = this.sizes;
    await this.client.query('INSERT INTO telemetry_writers (writer_id, closed_at) VALUES ($1, now())', [this.writerId]);
    await this.client.query(
      `DECLARE heads CURSOR WITH HOLD FOR
       SELECT tenant_id, sequence, encode(hash, 'hex') AS hash, time FROM audit_anchors ORDER BY time`,
    );
    await this.mine([], this.startSeconds);
    const blocks = Math.min(yearSeconds / blockSeconds, Math.ceil(batches / leastBatchesPerBlock));
    for (let block = 0, done = 0; block < blocks; block += 1) {
      const until = Math.round(((batches - pendingBatches) * (block + 1)) / blocks);
      const time = this.startSeconds + Math.round(((block + 1) / (blocks + 1)) * yearSeconds);
      // Devices take turns, some of the largest tenant and those of a few others at a time: a cold file has the points of a tenant and
      // a day, so there would be hundreds of thousands of small ones if every tenant had points each day.
      if (block % Math.max(1, Math.ceil(blocks / turns)) === 0 || this.devices.length === 0)
        await this.nextDevices(
          Math.floor(((block / blocks) * devices) / 2),
          Math.ceil(devices / Math.min(turns, blocks) / 2),
        );
      const of: MadeBatch[] = [];
      for (; done < until; done += 1) of.push(this.makeBatch(time - 30, done));
      of.push(...(await this.makeHeadBatches(time - 30)));
      await this.mine(of, time);
      if (this.segment && this.segment.rows >= this.pointsOfSegment) await this.endSegment();
      if (block % Math.ceil(blocks / 10) === 0) progress(done / batches);
    }
    const pending = Array.from({ length: pendingBatches }, (_, index) =>
      this.makeBatch(this.startSeconds + yearSeconds - 60, batches - pendingBatches + index),
    );
    pending.push(...(await this.makeHeadBatches(this.startSeconds + yearSeconds)));
    await this.client.query('CLOSE heads');
    await this.store(pending, undefined);
    await this.endSegment();
    await this.storing;
    await this.storeLatest();
  }

  private async nextDevices(offset: number, count: number): Promise<void> {
    const { rows } = await this.client.query<Device>(
      `SELECT * FROM (SELECT tenant_id, device_id FROM year.devices WHERE tenant = 1 AND n % 500 <> 0
         ORDER BY n OFFSET $1 LIMIT $2) AS largest
       UNION ALL
       SELECT * FROM (SELECT tenant_id, device_id FROM year.devices WHERE tenant > 1 AND n % 500 <> 0
         ORDER BY tenant, n OFFSET $1 LIMIT $2) AS others`,
      [offset, count],
    );
    if (rows.length > 0) this.devices = rows;
  }

  private makeBatch(sealedAt: number, number: number): MadeBatch {
    const { coldPoints, hotPoints, batches } = this.sizes;
    const count = Math.max(1, Math.round((coldPoints + hotPoints) / batches));
    const device = this.devices[number % this.devices.length]!;
    const { tenant_id: tenantId, device_id: deviceId } = device;
    const points = Array.from({ length: count }, (_, index): MadePoint => {
      const seconds = sealedAt - count + index;
      const value = this.made % 1000;
      this.made += 1;
      const payload = writePayload({
        numericValues: { temperature: value, voltage: 3.3 },
        stringValues: { state: 'on' },
      });
      this.newest.set(deviceId, { device, time: BigInt(seconds) * 1_000_000_000n, value });
      return { deviceId, seconds, payload, dataHash: leafHash(tenantId, deviceId, seconds, payload) };
    });
    return this.sealBatch(tenantId, points, sealedAt);
  }

  /** Makes a batch for each head of an audit log that was anchored before a time and has none yet. */
  private async makeHeadBatches(before: number): Promise<MadeBatch[]> {
    const batches: MadeBatch[] = [];
    for (;;) {
      if (this.heads.length === 0) this.heads = (await this.client.query<AnchoredHead>('FETCH 1000 FROM heads')).rows;
      const head = this.heads[0];
      if (!head || head.time.getTime() >= before * 1000) return batches;
      this.heads.shift();
      const seconds = Math.floor(head.time.getTime() / 1000);
      const point = auditHeadPoint({ ...head, tenantId: head.tenant_id }, seconds);
      batches.push(this.sealBatch(head.tenant_id, [{ ...point, seconds }], before));
    }
  }

  private sealBatch(tenantId: string, points: readonly MadePoint[], sealedAt: number): MadeBatch {
    const batchId = newId();
    const segment = (this.segment ??= { id: 0n, points: [], leaves: [], rows: 0, least: 1n << 62n, greatest: 0n });
    points.forEach(({ deviceId, seconds, payload, dataHash }, index) => {
      const time = BigInt(seconds) * 1_000_000_000n;
      const bytes = Buffer.from(dataHash, 'latin1');
      segment.points.push([time, deviceId, batchId, index, tenantId, bytes, payload, BigInt(sealedAt) * 1000n]);
      segment.leaves.push([tenantId, prefixOf(dataHash), batchId, index, deviceId]);
      if (time < segment.least) segment.least = time;
      if (time > segment.greatest) segment.greatest = time;
      segment.rows += 1;
    });
    const leaves = points.map(({ dataHash }) => dataHash);
    const root = merkleRoot(leaves);
    const coin = this.nextCoin();
    const commitment = {
      merkleRoot: Buffer.from(root, 'latin1'),
      batchId,
      timestampSeconds: sealedAt,
      count: leaves.length,
    };
    const raw = serialiseTransaction({
      version: 1,
      inputs: [
        {
          previousTxid: fromDisplayHex(coin.txid),
          previousOutputIndex: coin.index,
          unlockingScript,
          sequence: 0xffff_ffff,
        },
      ],
      outputs: [{ satoshis: 0n, lockingScript: commitmentScript(commitment) }],
      lockTime: 0,
    });
    return {
      ...{ tenantId, batchId, sealedAt, leaves, root, coin, raw, id: transactionId(raw) },
    };
  }

  /** Coins come from transactions outside the installation, a thousand from each. */
  private nextCoin(): { txid: string; index: number } {
    if (this.coins.txid === '' || this.coins.next === 1000) {
      this.coins = { txid: newId().replaceAll('-', '').padEnd(64, '0'), next: 0 };
    }
    const { txid, next } = this.coins;
    this.coins.next += 1;
    return { txid, index: next };
  }

  /** Mines a block with the transactions of these batches and stores everything. */
  private async mine(batches: readonly MadeBatch[], time: number): Promise<void> {
    // A block has a transaction of its miner.
    const miners = new Uint8Array(32).fill(this.height % 251);
    const tree = merkleLevels([miners, ...batches.map(({ id }) => id)]);
    const header = mineHeader(this.previous, tree.at(-1)![0]!, time);
    this.previous = blockHash(header);
    const hash = toDisplayHex(this.previous);
    await this.copyNext('block_headers', columns.headers, [[this.height, hash, Buffer.from(header)]]);
    const bumps = batches.map((_, index) => Buffer.from(serialiseBump(bumpOfTree(this.height, tree, index + 1))));
    await this.store(batches, { height: this.height, hash, time, bumps });
    this.height += 1;
  }

  /** Sends rows once those before are stored, and does not wait for them. */
  private async copyNext(table: string, names: readonly string[], rows: readonly (readonly Value[])[]): Promise<void> {
    await this.storing;
    this.storing = copyRows(this.client, table, names, rows);
    // Whoever waits for it next gets the error.
    this.storing.catch(() => undefined);
  }

  private async store(
    batches: readonly MadeBatch[],
    block: { height: number; hash: string; time: number; bumps: readonly Buffer[] } | undefined,
  ): Promise<void> {
    const { height = null, hash = null } = block ?? {};
    for (let first = 0; first < batches.length; first += batchesAtOnce) {
      const some = batches.slice(first, first + batchesAtOnce);
      const bumpOf = (index: number) => block?.bumps[first + index] ?? null;
      await this.copyNext(
        'anchor_batches',
        columns.batches,
        some.map((batch, index) => [
          ...[
            batch.tenantId,
            batch.batchId,
            'merkle',
            block ? 'confirmed' : 'seen',
            this.writerId,
            batch.leaves.length,
          ],
          ...[
            hashBytes(batch.leaves),
            Buffer.from(batch.root, 'latin1'),
            toDisplayHex(batch.id),
            Buffer.from(batch.raw),
          ],
          ...[bumpOf(index), height, hash, 1, text(batch.sealedAt - 30), text(batch.sealedAt), text(batch.sealedAt)],
          block ? text(block.time) : null,
        ]),
      );
      if (block && block.time < this.startSeconds + yearSeconds - transactionSeconds) continue;
      await this.copyNext(
        'chain_transactions',
        columns.transactions,
        some.map((batch, index) => [
          ...[toDisplayHex(batch.id), 'anchor', batch.batchId, batch.batchId, Buffer.from(batch.raw), 1],
          ...[block ? 'final' : 'pending', block ? 'MINED' : 'SEEN_ON_NETWORK', bumpOf(index), height, hash],
          text(batch.sealedAt),
        ]),
      );
      await this.copyNext(
        'wallet_outputs',
        columns.coins,
        some.map(({ coin, batchId, sealedAt }) => [
          ...[coin.txid, coin.index, publicKey, 1, block ? 'spent' : 'leased', batchId, text(sealedAt - 3600)],
        ]),
      );
    }
    if (this.segment && this.segment.points.length >= batchesAtOnce) await this.storePoints();
  }

  private async storePoints(): Promise<void> {
    const { segment } = this;
    if (!segment) return;
    if (segment.id === 0n) {
      segment.id = await this.openSegment(this.writerId);
    }
    await this.copyNext(`telemetry_segment_${segment.id}`, columns.points, segment.points.splice(0));
    await this.copyNext(`leaf_index_${segment.id}`, columns.leaves, segment.leaves.splice(0));
  }

  private async endSegment(): Promise<void> {
    if (!this.segment) return;
    await this.storePoints();
    await this.storing;
    const { id, rows, least, greatest } = this.segment;
    this.segment = undefined;
    await this.client.query(
      `UPDATE telemetry_segments SET state = 'sealed', rows = $2, least_time = $3, greatest_time = $4, counted = true,
         sealed_at = to_timestamp($4::int8 / 1000000000), opened_at = to_timestamp($3::int8 / 1000000000) WHERE segment_id = $1`,
      [id, rows, least, greatest],
    );
  }

  private async storeLatest(): Promise<void> {
    const rows = [...this.newest.values()].map(({ device, time, value }) => [
      device.tenant_id,
      device.device_id,
      JSON.stringify({
        time: String(time),
        numeric: { temperature: [value, String(time)], voltage: [3.3, String(time)] },
        string: { state: ['on', String(time)] },
      }),
    ]);
    for (let first = 0; first < rows.length; first += batchesAtOnce)
      await copyRows(
        this.client,
        'telemetry_latest',
        ['tenant_id', 'device_id', 'document'],
        rows.slice(first, first + batchesAtOnce),
      );
  }
}
