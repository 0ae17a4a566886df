// Batches of a block with their points, transactions and Merkle paths, made in flat buffers: nothing is allocated for a point. The
// bytes are those that the verifier's functions make (made-block.test.ts).
import { hash } from 'node:crypto';
import { commitmentScript, encodeVarint, fromDisplayHex, LEAF_VERSION, serialiseTransaction } from '@kellet/verify';
import type { HashText } from '../../../apiserver/src/telemetry/points/leaf-hashes.ts';

/** A device that sends points. */
export interface SendingDevice {
  readonly tenantId: string;
  readonly deviceId: string;
  /** Its id as 16 bytes. */
  readonly bytes: Buffer;
  /** Its place in a list of the caller. */
  readonly place: number;
}

/** Values of points: numbers with three digits, so that all payloads have the same length. */
const valueCount = 900;
const leastValue = 100;

/** The payload of a point, up to the digits of its value and after them. */
const payloadHead = '{"numeric_values":{"temperature":';
const payloadTail = ',"voltage":3.3},"string_values":{"state":"on"}}';
const payloadBytes = payloadHead.length + 3 + payloadTail.length;

/** Returns the value of a point from its number. */
export const valueOf = (number: number): number => leastValue + (number % valueCount);

/** The canonical payloads by value, minus the least one. */
const payloads: readonly string[] = Array.from(
  { length: valueCount },
  (_, value) => payloadHead + String(leastValue + value) + payloadTail,
);

/** Returns the canonical payload of a point from its number. */
export const payloadOf = (number: number): string => payloads[number % valueCount]!;

/** Bytes of a signature and a public key, which nothing verifies again. */
const unlockingScript = Buffer.alloc(107, 7);
const nilId = '00000000-0000-0000-0000-000000000000';

/** A transaction whose changing bytes are replaced for each batch. */
const transaction = Buffer.from(
  serialiseTransaction({
    version: 1,
    inputs: [
      {
        previousTxid: fromDisplayHex('00'.repeat(32)),
        previousOutputIndex: 0,
        unlockingScript,
        sequence: 0xffff_ffff,
      },
    ],
    outputs: [
      {
        satoshis: 0n,
        lockingScript: commitmentScript({
          ...{ merkleRoot: new Uint8Array(32), batchId: nilId, timestampSeconds: 0, count: 1 },
        }),
      },
    ],
    lockTime: 0,
  }),
);
/** Bytes of the transaction of a batch. */
const transactionBytes = transaction.length;
/** Where its parts are: the coin after version and number of inputs, the commitment before the lock time. */
const coinAt = 5;
const commitmentAt = transactionBytes - 4 - 60;

const inner = Buffer.alloc(32);
const pair = Buffer.alloc(64);

/** Writes the SHA256d of bytes. */
function doubleHash(bytes: Buffer, target: Buffer, at: number): void {
  inner.write(hash('sha256', bytes, 'binary'), 'latin1');
  target.write(hash('sha256', inner, 'binary'), at, 'latin1');
}

function writeUint32(target: Buffer, at: number, value: number): void {
  target[at] = value >>> 24;
  target[at + 1] = value >>> 16;
  target[at + 2] = value >>> 8;
  target[at + 3] = value;
}

/** Replaces the nodes of a level by those of the next one. Returns their number. */
function hashLevel(nodes: Buffer, width: number): number {
  for (let index = 0; index * 2 < width; index += 1) {
    nodes.copy(pair, 0, index * 64, index * 64 + 64);
    if (index * 2 + 1 === width) pair.copyWithin(32, 0, 32);
    doubleHash(pair, nodes, index * 32);
  }
  return (width + 1) >> 1;
}

/** Bytes to hash for a leaf, of which those before the time are the same for all points of a device. */
interface Preimage {
  readonly bytes: Buffer;
  readonly secondsAt: number;
  readonly valueAt: number;
}

/** Ids with ascending times, otherwise pseudo-random: the same in every run. */
class IdSource {
  private state = 0x9e37_79b9;
  private sequence = 0;

  /** Writes an id of version 7 of a time in seconds. */
  write(target: Buffer, at: number, seconds: number): void {
    this.sequence = (this.sequence + 1) & 0x3ff_ffff;
    const milliseconds = seconds * 1000;
    writeUint32(target, at, Math.floor(milliseconds / 65_536));
    target[at + 4] = (milliseconds % 65_536) >>> 8;
    target[at + 5] = milliseconds;
    target[at + 6] = 0x70 | (this.sequence >>> 22);
    target[at + 7] = this.sequence >>> 14;
    target[at + 8] = 0x80 | ((this.sequence >>> 8) & 0x3f);
    target[at + 9] = this.sequence;
    target[at + 10] = this.random();
    target[at + 11] = this.random();
    writeUint32(target, at + 12, this.random());
  }

  /** The next number of a xorshift generator. */
  private random(): number {
    let { state } = this;
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    this.state = state;
    return state;
  }
}

/** The batches of one block. It is filled, sealed, read and then cleared for the next one. */
export class MadeBlock {
  /** Number of batches. */
  size = 0;
  readonly devices: (SendingDevice | undefined)[] = [];
  readonly tenantIds: string[] = [];
  readonly sealedAt: number[] = [];
  /** Of the first point of each batch; the others follow a second apart. */
  readonly firstSeconds: number[] = [];
  /** The number of the first point of each batch, which says what its value is. */
  readonly firstNumber: number[] = [];
  readonly counts: number[] = [];
  /** Where the leaves of each batch begin. */
  readonly leavesAt: number[] = [];
  leaves: Buffer = Buffer.alloc(64 * 1024);
  ids: Buffer = Buffer.alloc(16 * 1024);
  roots: Buffer = Buffer.alloc(32 * 1024);
  transactions: Buffer = Buffer.alloc(transactionBytes * 1024);
  /** Coins of the transactions: where they come from, in the order of bytes, and which output. */
  readonly coins: { readonly bytes: Buffer; readonly index: number }[] = [];
  /** The block's tree: level 0 has the transaction of its miner, then those of the batches. */
  readonly levels: Buffer[] = [];
  private readonly widths: number[] = [];
  private readonly path: { readonly bytes: Buffer; end: number } = { bytes: Buffer.alloc(2048), end: 0 };
  private readonly idSource = new IdSource();
  private readonly preimages = new Map<number, Preimage>();
  private preparedFor: SendingDevice | undefined;
  private prepared: Preimage | undefined;
  private leavesEnd = 0;
  private coinSource = 0;
  private coin = { bytes: Buffer.alloc(32), next: coinsOfTransaction };

  /** Adds a batch of a device with `count` points from a time on. */
  addBatch(device: SendingDevice, firstSeconds: number, firstNumber: number, count: number, sealedAt: number): void {
    const { bytes, secondsAt, valueAt } = this.preimageOf(device);
    const at = this.beginBatch(device.tenantId, count, sealedAt);
    for (let index = 0; index < count; index += 1) {
      writeUint32(bytes, secondsAt, firstSeconds + index);
      const value = valueOf(firstNumber + index);
      bytes[valueAt] = 48 + Math.floor(value / 100);
      bytes[valueAt + 1] = 48 + (Math.floor(value / 10) % 10);
      bytes[valueAt + 2] = 48 + (value % 10);
      doubleHash(bytes, this.leaves, at + index * 32);
    }
    this.devices.push(device);
    this.firstSeconds.push(firstSeconds);
    this.firstNumber.push(firstNumber);
    this.endBatch(at, count, sealedAt);
  }

  /** Adds a batch of one leaf that was made elsewhere. */
  addLeaf(tenantId: string, leaf: HashText, seconds: number, sealedAt: number): void {
    const at = this.beginBatch(tenantId, 1, sealedAt);
    this.leaves.write(leaf, at, 'latin1');
    this.devices.push(undefined);
    this.firstSeconds.push(seconds);
    this.firstNumber.push(-1);
    this.endBatch(at, 1, sealedAt);
  }

  /** Builds the tree of the block over its transactions and that of its miner. Returns the root. */
  buildTree(miner: Buffer): Buffer {
    let width = this.size + 1;
    let level = this.levelOf(0, width);
    miner.copy(level);
    for (let index = 0; index < this.size; index += 1) {
      this.transactions.copy(transaction, 0, this.transactionAt(index), this.transactionAt(index + 1));
      doubleHash(transaction, level, this.transactionIdAt(index));
    }
    let depth = 0;
    for (; width > 1; depth += 1) {
      this.widths[depth] = width;
      const next = this.levelOf(depth + 1, (width + 1) >> 1);
      for (let index = 0; index * 2 < width; index += 1) {
        level.copy(pair, 0, index * 64, index * 64 + 64);
        if (index * 2 + 1 === width) pair.copyWithin(32, 0, 32);
        doubleHash(pair, next, index * 32);
      }
      level = next;
      width = (width + 1) >> 1;
    }
    this.widths.length = depth;
    return level.subarray(0, 32);
  }

  /** Returns where the id of the transaction of a batch is on level 0. */
  transactionIdAt(index: number): number {
    return (index + 1) * 32;
  }

  /** Returns where the transaction of a batch is. */
  transactionAt(index: number): number {
    return index * transactionBytes;
  }

  /** Writes the BUMP of the transaction of a batch. Returns bytes that the next call overwrites. */
  bumpOf(index: number, height: number): Buffer {
    const { path } = this;
    path.end = 0;
    const place = index + 1;
    if (this.widths.length === 0) throw new RangeError('a block with batches has a tree');
    this.pathVarint(height);
    path.bytes[path.end++] = this.widths.length;
    for (const [depth, width] of this.widths.entries()) {
      const own = place >> depth;
      const other = own ^ 1;
      path.bytes[path.end++] = depth === 0 ? 2 : 1;
      if (depth === 0 && own < other) this.pathNode(0, own, 2);
      if (other === width) {
        this.pathVarint(other);
        path.bytes[path.end++] = 1;
      } else this.pathNode(depth, other, 0);
      if (depth === 0 && own > other) this.pathNode(0, own, 2);
    }
    return path.bytes.subarray(0, path.end);
  }

  clear(): void {
    this.size = 0;
    this.leavesEnd = 0;
    for (const list of [this.devices, this.tenantIds, this.sealedAt, this.firstSeconds, this.firstNumber])
      list.length = 0;
    for (const list of [this.counts, this.leavesAt, this.coins]) list.length = 0;
  }

  private beginBatch(tenantId: string, count: number, sealedAt: number): number {
    const at = this.leavesEnd;
    this.leavesEnd += count * 32;
    if (this.leavesEnd > this.leaves.length) this.leaves = larger(this.leaves, this.leavesEnd);
    this.ids = larger(this.ids, (this.size + 1) * 16);
    this.roots = larger(this.roots, (this.size + 1) * 32);
    this.transactions = larger(this.transactions, (this.size + 1) * transactionBytes);
    this.tenantIds.push(tenantId);
    this.sealedAt.push(sealedAt);
    this.counts.push(count);
    this.leavesAt.push(at);
    return at;
  }

  /** Adds the transaction that commits to the leaves of the new batch. */
  private endBatch(at: number, count: number, sealedAt: number): void {
    const { size, ids, roots } = this;
    this.idSource.write(ids, size * 16, sealedAt - 30);
    if (treeBuffer.length < count * 32) treeBuffer = Buffer.alloc(count * 32);
    this.leaves.copy(treeBuffer, 0, at, at + count * 32);
    for (let width = count; width > 1;) width = hashLevel(treeBuffer, width);
    treeBuffer.copy(roots, size * 32, 0, 32);
    const coin = this.nextCoin();
    this.coins.push(coin);
    coin.bytes.copy(transaction, coinAt);
    transaction.writeUInt32LE(coin.index, coinAt + 32);
    roots.copy(transaction, commitmentAt, size * 32, size * 32 + 32);
    ids.copy(transaction, commitmentAt + 32, size * 16, size * 16 + 16);
    writeUint32(transaction, commitmentAt + 48, 0);
    writeUint32(transaction, commitmentAt + 52, sealedAt);
    writeUint32(transaction, commitmentAt + 56, count);
    transaction.copy(this.transactions, size * transactionBytes);
    this.size += 1;
  }

  /** Coins come from transactions outside the installation, a thousand from each. */
  private nextCoin(): { readonly bytes: Buffer; readonly index: number } {
    if (this.coin.next === coinsOfTransaction) {
      this.coinSource += 1;
      const bytes = Buffer.alloc(32);
      bytes.write(hash('sha256', `coins ${this.coinSource}`, 'binary'), 'latin1');
      this.coin = { bytes, next: 0 };
    }
    this.coin.next += 1;
    return { bytes: this.coin.bytes, index: this.coin.next - 1 };
  }

  private preimageOf(device: SendingDevice): Preimage {
    if (this.preparedFor === device) return this.prepared!;
    const { tenantId, deviceId } = device;
    const headBytes = 1 + 2 + tenantId.length + 2 + deviceId.length + 8;
    const length = headBytes + payloadBytes;
    let preimage = this.preimages.get(length);
    if (!preimage) {
      preimage = {
        bytes: Buffer.alloc(length),
        secondsAt: headBytes - 4,
        valueAt: headBytes + payloadHead.length,
      };
      this.preimages.set(length, preimage);
    }
    const { bytes } = preimage;
    bytes[0] = LEAF_VERSION;
    let at = bytes.writeUInt16BE(tenantId.length, 1);
    at += bytes.write(tenantId, at, 'latin1');
    at = bytes.writeUInt16BE(deviceId.length, at);
    bytes.write(deviceId, at, 'latin1');
    bytes.write(payloads[0]!, headBytes, 'latin1');
    this.preparedFor = device;
    this.prepared = preimage;
    return preimage;
  }

  private levelOf(depth: number, width: number): Buffer {
    return (this.levels[depth] = larger(this.levels[depth] ?? Buffer.alloc(32), width * 32));
  }

  private pathVarint(value: number): void {
    const { path } = this;
    if (value < 0xfd) path.bytes[path.end++] = value;
    else if (value <= 0xffff) {
      path.bytes[path.end++] = 0xfd;
      path.end = path.bytes.writeUInt16LE(value, path.end);
    } else path.end += Buffer.from(encodeVarint(value)).copy(path.bytes, path.end);
  }

  private pathNode(depth: number, offset: number, flag: number): void {
    const { path } = this;
    this.pathVarint(offset);
    path.bytes[path.end++] = flag;
    path.end += this.levels[depth]!.copy(path.bytes, path.end, offset * 32, offset * 32 + 32);
  }
}

/** Outputs of a transaction that makes coins. */
const coinsOfTransaction = 1000;

let treeBuffer: Buffer = Buffer.alloc(32 * 1024);

/** Returns the buffer, or a larger one with the same content if it has fewer bytes. */
function larger(buffer: Buffer, bytes: number): Buffer {
  if (buffer.length >= bytes) return buffer;
  const copy = Buffer.alloc(Math.max(bytes, buffer.length * 2));
  buffer.copy(copy);
  return copy;
}
