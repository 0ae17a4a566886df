// Finds the blocks of transactions that the processor does not report as mined, with the help of a node: reads the
// transactions of each recent block once and makes the proofs itself. They are checked like those of the processor.
import {
  bumpOfTree,
  equalBytes,
  fromDisplayHex,
  merkleLevels,
  parseHeader,
  serialiseBump,
  toHex,
} from '@kellet/verify';
import type { Database } from '../../platform/database/database.ts';
import type { Logger } from '../../platform/observability/logger.ts';
import { type StoredHeader, storedHeaders, storedTip } from '../headers/header-chain.ts';
import type { NodeRpc } from '../headers/node-rpc.ts';
import { oldestPending, unminedAmong } from '../transactions/anchor-store.ts';
import type { Tracker } from './tracker.ts';

/** How far below the tip blocks are read: about two weeks. */
const maximumDepth = 2016;
/** Blocks read in one round. */
const blocksOfRound = 16;
/** The time of a header may be up to two hours off. */
const timeSlackSeconds = 2 * 3600;

export interface MissedBlocksParts {
  readonly database: Database;
  readonly node: NodeRpc;
  readonly tracker: Tracker;
  readonly logger: Logger;
  /** How long a transaction may be pending before its block is looked for. */
  readonly afterMilliseconds: number;
}

/** Looks for missed blocks. */
export class MissedBlocks {
  private readonly parts: MissedBlocksParts;
  /**
   * Blocks of the header chain that were read. A transaction is stored before it is sent, so a block that has been read
   * contains no later one.
   */
  private readonly read = new Set<string>();
  /** How often blocks could not be read, as the node may not keep them: the more often, the later they come. */
  private readonly failures = new Map<string, number>();

  constructor(parts: MissedBlocksParts) {
    this.parts = parts;
  }

  /** Reads some blocks, if transactions wait for one. Returns true if there are more. */
  async search(): Promise<boolean> {
    const blocks = await this.unread();
    for (const block of blocks.slice(0, blocksOfRound)) {
      try {
        await this.take(block);
      } catch (error) {
        this.failures.set(block.blockHash, this.failuresOf(block) + 1);
        throw error;
      }
    }
    return blocks.length > blocksOfRound;
  }

  private failuresOf({ blockHash }: StoredHeader): number {
    return this.failures.get(blockHash) ?? 0;
  }

  /** Returns the blocks that may hold a transaction that waits and were not read yet, oldest first if none failed. */
  private async unread(): Promise<StoredHeader[]> {
    const { database, afterMilliseconds } = this.parts;
    const since = await database.systemRead((tx) => oldestPending(tx, afterMilliseconds));
    if (since === undefined) return [];
    const headers = await database.systemRead(async (tx) => {
      const tip = await storedTip(tx);
      return tip === undefined ? [] : storedHeaders(tx, Math.max(0, tip - maximumDepth + 1), maximumDepth);
    });
    // A block that has left the chain is read again if it returns.
    const known = new Set(headers.map(({ blockHash }) => blockHash));
    for (const remembered of [this.read, this.failures]) {
      for (const blockHash of remembered.keys()) if (!known.has(blockHash)) remembered.delete(blockHash);
    }
    const first = headers.findIndex(({ raw }) => parseHeader(raw).time >= since - timeSlackSeconds);
    const unread = first < 0 ? [] : headers.slice(first).filter(({ blockHash }) => !this.read.has(blockHash));
    return unread.sort((a, b) => this.failuresOf(a) - this.failuresOf(b));
  }

  private async take(block: StoredHeader): Promise<void> {
    const { database, node, tracker, logger } = this.parts;
    const txids = await node.txidsOf(block.blockHash);
    // A node that is behind will have it later.
    if (!txids) return;
    const ours = await database.systemRead((tx) => unminedAmong(tx, txids));
    if (ours.length > 0) {
      const tree = merkleLevels(txids.map(fromDisplayHex));
      if (equalBytes(tree.at(-1)![0]!, parseHeader(block.raw).merkleRoot)) {
        for (const txid of ours) {
          const bump = serialiseBump(bumpOfTree(block.height, tree, txids.indexOf(txid)));
          const report = { txid, status: 'MINED', blockHash: block.blockHash, blockHeight: block.height } as const;
          const rest = { merklePath: toHex(bump), competingTxids: [], extraInfo: '' };
          const outcome = await tracker.apply({ ...report, ...rest }, true);
          logger.info(
            { txid, block: block.blockHash, outcome },
            'found a transaction that the processor did not report',
          );
        }
      } else {
        logger.warn({ block: block.blockHash }, 'the node returned transactions that are not those of the block');
      }
    }
    this.read.add(block.blockHash);
    this.failures.delete(block.blockHash);
  }
}
