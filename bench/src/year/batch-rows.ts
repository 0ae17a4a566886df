// Rows of batches, their transactions and coins, from the flat buffers of a block.
import { BinaryRows, textField, uuidField } from './binary-rows.ts';
import type { MadeBlock } from './made-block.ts';

/** Where a block is in the chain. */
export interface BlockPlace {
  readonly height: number;
  readonly hash: string;
  /** Seconds since 1970. */
  readonly time: number;
}

/** Columns in the order in which the rows have them. */
export const batchColumns = [
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
];
export const transactionColumns = [
  ...['txid', 'purpose', 'batch_id', 'lease', 'raw_tx', 'attempt', 'state', 'processor_status', 'bump', 'block_height'],
  ...['block_hash', 'created_at'],
];
export const coinColumns = ['txid', 'output_index', 'public_key', 'satoshis', 'state', 'leased_by', 'created_at'];

/** Fields that are the same in all rows of batches that are proven, or in all that are not. */
const proven = {
  batch: Buffer.concat([textField('merkle'), textField('confirmed')]),
  transaction: Buffer.concat([textField('final'), textField('MINED')]),
  coin: textField('spent'),
};
const waiting = {
  batch: Buffer.concat([textField('merkle'), textField('seen')]),
  transaction: Buffer.concat([textField('pending'), textField('SEEN_ON_NETWORK')]),
  coin: textField('leased'),
};
const anchor = textField('anchor');
const publicKey = textField(`02${'ab'.repeat(32)}`);

/** Seconds from the first leaf of a batch until it is sealed, and from the payment of a coin. */
const openSeconds = 30;
const coinSeconds = 3600;

/** Returns a uuid as text. */
export function idText(bytes: Uint8Array, at: number): string {
  const hex = Buffer.from(bytes.buffer, bytes.byteOffset + at, 16).toString('hex');
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-${hex.slice(12, 16)}-${hex.slice(16, 20)}-${hex.slice(20)}`;
}

/** Collects rows of batches, transactions and coins. */
export class BatchRows {
  readonly batches: BinaryRows;
  readonly transactions: BinaryRows;
  readonly coins: BinaryRows;
  private readonly writerField: Buffer;

  constructor(writerId: string, copyBytes: number) {
    this.writerField = uuidField(writerId);
    this.batches = new BinaryRows(copyBytes);
    this.transactions = new BinaryRows(copyBytes);
    this.coins = new BinaryRows(copyBytes);
  }

  /** Adds a batch of a block whose tree is built, or of none yet; with its transaction and its coin if these are kept. */
  add(block: MadeBlock, index: number, place: BlockPlace | undefined, keepsTransaction: boolean): void {
    const bump = place && block.bumpOf(index, place.height);
    this.addBatch(block, index, place, bump);
    if (!keepsTransaction) return;
    const id = idText(block.ids, index * 16);
    this.addTransaction(block, index, id, place, bump);
    this.addCoin(block, index, id, place);
  }

  private addBatch(block: MadeBlock, index: number, place: BlockPlace | undefined, bump: Buffer | undefined): void {
    const rows = this.batches;
    const sealedAt = block.sealedAt[index]!;
    const leavesAt = block.leavesAt[index]!;
    const idAt = block.transactionIdAt(index);
    rows.row(batchColumns.length);
    rows.ascii(block.tenantIds[index]!);
    rows.bytes(block.ids, index * 16, index * 16 + 16);
    rows.field(place ? proven.batch : waiting.batch);
    rows.field(this.writerField);
    rows.int4(block.counts[index]!);
    rows.bytes(block.leaves, leavesAt, leavesAt + block.counts[index]! * 32);
    rows.bytes(block.roots, index * 32, index * 32 + 32);
    rows.reversedHex(block.levels[0]!, idAt, idAt + 32);
    rows.bytes(block.transactions, block.transactionAt(index), block.transactionAt(index + 1));
    addPlace(rows, place, bump);
    rows.int4(1);
    rows.timestamp(sealedAt - openSeconds);
    rows.timestamp(sealedAt);
    rows.timestamp(sealedAt);
    if (place) rows.timestamp(place.time);
    else rows.null();
  }

  private addTransaction(
    block: MadeBlock,
    index: number,
    id: string,
    place: BlockPlace | undefined,
    bump: Buffer | undefined,
  ): void {
    const rows = this.transactions;
    const idAt = block.transactionIdAt(index);
    rows.row(transactionColumns.length);
    rows.reversedHex(block.levels[0]!, idAt, idAt + 32);
    rows.field(anchor);
    rows.bytes(block.ids, index * 16, index * 16 + 16);
    rows.ascii(id);
    rows.bytes(block.transactions, block.transactionAt(index), block.transactionAt(index + 1));
    rows.int4(1);
    rows.field(place ? proven.transaction : waiting.transaction);
    addPlace(rows, place, bump);
    rows.timestamp(block.sealedAt[index]!);
  }

  private addCoin(block: MadeBlock, index: number, id: string, place: BlockPlace | undefined): void {
    const rows = this.coins;
    const coin = block.coins[index]!;
    rows.row(coinColumns.length);
    rows.reversedHex(coin.bytes, 0, 32);
    rows.int4(coin.index);
    rows.field(publicKey);
    rows.int8(1);
    rows.field(place ? proven.coin : waiting.coin);
    rows.ascii(id);
    rows.timestamp(block.sealedAt[index]! - coinSeconds);
  }
}

/** Adds the Merkle path in the block, its height and its hash. */
function addPlace(rows: BinaryRows, place: BlockPlace | undefined, bump: Buffer | undefined): void {
  if (!place) {
    for (let field = 0; field < 3; field += 1) rows.null();
    return;
  }
  rows.bytes(bump!);
  rows.int4(place.height);
  rows.ascii(place.hash);
}
