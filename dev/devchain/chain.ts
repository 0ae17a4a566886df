// Blocks and coins: the blocks of the chain, stale blocks, and unspent outputs.
import {
  blockHash,
  buildBump,
  fromDisplayHex,
  merkleRoot,
  parseHeader,
  serialiseBump,
  toDisplayHex,
  toHex,
  txidOf,
  workOf,
} from '@kellet/verify';
import { coinbaseTransaction, genesisHeader, mineHeader, nextBlockTime } from './block.ts';
import type { TransactionRecord } from './status.ts';

/** A block, on the chain or stale. Its transactions' ids are in block order, the coinbase first. */
export interface Block {
  readonly hash: string;
  readonly height: number;
  readonly header: Uint8Array;
  readonly txids: readonly string[];
}

/** An unspent output of a mined transaction. */
export interface Coin {
  readonly satoshis: bigint;
  readonly lockingScript: Uint8Array;
  readonly height: number;
  readonly isCoinbase: boolean;
}

/** Returns the key of an output: `txid:index`. */
export function outpoint(txid: string, index: number): string {
  return `${txid}:${index}`;
}

/** Returns the keys of the outputs that a transaction spends. */
export function spentOutpoints(record: Pick<TransactionRecord, 'transaction'>): string[] {
  return record.transaction.inputs.map((input) =>
    outpoint(toDisplayHex(input.previousTxid), input.previousOutputIndex),
  );
}

/**
 * The chain of blocks with its coins. `connect` and `disconnect` do not check blocks, which are checked when created.
 */
export class Chain {
  private readonly blocks = new Map<string, Block>();
  private readonly active: Block[] = [];
  private readonly coins = new Map<string, Coin>();

  /** Height of the last block of which only the header is known. */
  readonly baseHeight: number;

  /** Continues the chain with these headers from height 0 on, whose transactions are not known. */
  constructor(headers: readonly Uint8Array[] = [genesisHeader]) {
    this.baseHeight = headers.length - 1;
    for (const [height, header] of headers.entries()) {
      const block = {
        hash: toDisplayHex(blockHash(header)),
        height,
        header,
        txids: [toDisplayHex(parseHeader(header).merkleRoot)],
      };
      this.blocks.set(block.hash, block);
      this.active.push(block);
    }
  }

  get tip(): Block {
    return this.active.at(-1)!;
  }

  /** Number of known blocks, including stale ones. */
  get blockCount(): number {
    return this.blocks.size;
  }

  /** Number of unspent outputs. */
  get coinCount(): number {
    return this.coins.size;
  }

  /** Expected number of hashes of the whole chain. */
  get work(): bigint {
    return this.active.reduce((sum, block) => sum + workOf(parseHeader(block.header).bits), 0n);
  }

  /** Returns the block of the chain at a height. */
  at(height: number): Block | undefined {
    return this.active[height];
  }

  /** Returns the Merkle root (display hex) of the block at a height. */
  merkleRootAt(height: number): string | undefined {
    const block = this.active[height];
    return block === undefined ? undefined : toDisplayHex(parseHeader(block.header).merkleRoot);
  }

  /** Returns up to this many last headers of the chain, lowest first. */
  latestHeaders(count: number): Uint8Array[] {
    return this.active.slice(-count).map((block) => block.header);
  }

  /** Returns a block by its hash (display hex), also a stale one. */
  block(hash: string): Block | undefined {
    return this.blocks.get(hash);
  }

  isActive(block: Block): boolean {
    return this.active[block.height] === block;
  }

  coin(key: string): Coin | undefined {
    return this.coins.get(key);
  }

  /** Returns unspent outputs with this locking script, oldest first. */
  coinsOf(lockingScript: Uint8Array): { key: string; coin: Coin }[] {
    const script = toHex(lockingScript);
    return [...this.coins]
      .filter(([, coin]) => coin.lockingScript.length === lockingScript.length && toHex(coin.lockingScript) === script)
      .map(([key, coin]) => ({ key, coin }))
      .sort((a, b) => a.coin.height - b.coin.height);
  }

  /**
   * Makes the next block without connecting it: its header, and the coinbase that pays `reward` to a locking script. `seconds` is its
   * time, or later if consensus requires.
   */
  makeBlock(
    txids: readonly string[],
    { reward, lockingScript, seconds }: { reward: bigint; lockingScript: Uint8Array; seconds: number },
  ): { header: Uint8Array; coinbase: Uint8Array } {
    const coinbase = coinbaseTransaction(this.tip.height + 1, this.blockCount, reward, lockingScript);
    const root = merkleRoot([txidOf(coinbase), ...txids].map(fromDisplayHex));
    const time = nextBlockTime(seconds, this.latestHeaders(11));
    return { header: mineHeader(fromDisplayHex(this.tip.hash), root, time), coinbase };
  }

  /** Makes a block the tip: spends its inputs and creates its outputs. */
  connect(header: Uint8Array, transactions: readonly TransactionRecord[]): Block {
    const height = this.tip.height + 1;
    const block = {
      hash: toDisplayHex(blockHash(header)),
      height,
      header,
      txids: transactions.map((record) => record.txid),
    };
    this.blocks.set(block.hash, block);
    this.active.push(block);
    for (const record of transactions) {
      if (!record.isCoinbase) for (const key of spentOutpoints(record)) this.coins.delete(key);
      record.transaction.outputs.forEach((output, index) => {
        if (!isUnspendable(output.lockingScript)) this.addCoin(record, index, height);
      });
    }
    return block;
  }

  /**
   * Removes the tip: its outputs disappear, and the outputs that it spent are unspent again. `transaction`
   * finds the records of its transactions and of their parents.
   */
  disconnect(transaction: (txid: string) => TransactionRecord): Block {
    const block = this.active.pop()!;
    for (const txid of block.txids.toReversed()) {
      const record = transaction(txid);
      record.transaction.outputs.forEach((_, index) => this.coins.delete(outpoint(txid, index)));
      if (record.isCoinbase) continue;
      for (const input of record.transaction.inputs) {
        const parent = transaction(toDisplayHex(input.previousTxid));
        this.addCoin(parent, input.previousOutputIndex, parent.blockHeight);
      }
    }
    return block;
  }

  private addCoin(record: TransactionRecord, index: number, height: number): void {
    const output = record.transaction.outputs[index]!;
    this.coins.set(outpoint(record.txid, index), { ...output, height, isCoinbase: record.isCoinbase });
  }

  /** Returns the BUMP (BRC-74, hex) of a transaction in a block, stale or not. */
  bump(block: Block, txid: string): string {
    return toHex(serialiseBump(buildBump(block.height, block.txids.map(fromDisplayHex), block.txids.indexOf(txid))));
  }
}

/** Reports whether an output is unspendable: OP_FALSE OP_RETURN. */
function isUnspendable(script: Uint8Array): boolean {
  return script[0] === 0x00 && script[1] === 0x6a;
}

/** Returns the record of a raw coinbase at a height: mined from the start. */
export function coinbaseRecord(
  raw: Uint8Array,
  transaction: TransactionRecord['transaction'],
  blockHash: string,
  blockHeight: number,
): TransactionRecord {
  return {
    txid: txidOf(raw),
    raw,
    transaction,
    isCoinbase: true,
    status: 'MINED',
    pool: 'none',
    extraInfo: '',
    competing: [],
    blockHash,
    blockHeight,
  };
}
