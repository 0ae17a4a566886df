// Refills the wallet: splits large coins into coins that pay for one anchor each, and on a local network requests funds. A coin for
// a batch is chosen by leaseCoin (wallet-store.ts).
import {
  type Bump,
  equalBytes,
  fromHex,
  MalformedError,
  parseBump,
  parseTransaction,
  RefutedError,
  serialiseBump,
  toDisplayHex,
  txidOf,
} from '@kellet/verify';
import { tryLock, walletLock } from '../../platform/database/advisory-locks.ts';
import type { Database, Transaction } from '../../platform/database/database.ts';
import { newId } from '../../platform/ids.ts';
import type { Logger } from '../../platform/observability/logger.ts';
import { readText } from '../../platform/outbound/bounded-body.ts';
import { proveInBlock } from '../headers/block-proof.ts';
import type { HeaderChain } from '../headers/header-chain.ts';
import { anchorCoinRange } from '../processor/fees.ts';
import type { Processor } from '../processor/processor.ts';
import { type ChainTransaction, insertTransaction, markMined, readTransaction } from '../transactions/anchor-store.ts';
import type { Sender } from '../transactions/sender.ts';
import type { BuiltTransaction } from './anchor-transaction.ts';
import { buildSplitTransaction, planSplit, splitAmounts } from './split-transaction.ts';
import type { WalletKey } from './wallet-key.ts';
import {
  addOutputs,
  countUnspent,
  dropOutputsOf,
  leaseCoin,
  leasedCoins,
  readBalance,
  readSpent,
  type WalletBalance,
} from './wallet-store.ts';

/** Longest response of the funding URL, in bytes: a transaction with a thousand outputs, as text. */
const maxFundingBytes = 1024 * 1024;

export interface WalletParts {
  readonly database: Database;
  readonly processor: Processor;
  readonly headers: HeaderChain | undefined;
  readonly sender: Sender;
  readonly key: WalletKey;
  readonly logger: Logger;
  /** Pays any address on request (development only); empty for none. */
  readonly fundingUrl: string;
  /** If there are fewer anchor coins than this, a split is made */
  readonly lowWater: number;
  /** into this many coins. */
  readonly refill: number;
  readonly firstPollMilliseconds: number;
}

export class Wallet {
  private readonly parts: WalletParts;

  constructor(parts: WalletParts) {
    this.parts = parts;
  }

  /** Returns what the wallet holds, by state and size. */
  async balance(): Promise<WalletBalance & { least: bigint; most: bigint }> {
    const range = anchorCoinRange(await this.parts.processor.feeRate());
    const { database, key } = this.parts;
    return { ...(await database.system((tx) => readBalance(tx, key.publicKeyHex, range))), ...range };
  }

  /** Returns the coins that were ever spent. */
  spent(): Promise<{ coins: number; satoshis: bigint }> {
    const { database, key } = this.parts;
    return database.system((tx) => readSpent(tx, key.publicKeyHex));
  }

  /** Refills the stock of anchor coins if it is low, from a larger coin or else from the funding URL. */
  async tend(): Promise<void> {
    await this.parts.database.system(async (tx) => {
      if (!(await tryLock(tx, walletLock))) return;
      const { anchorCoins, splittable, least } = await this.balance();
      if (anchorCoins >= this.parts.lowWater) return;
      if (splittable > 0 && (await this.split(this.parts.refill))) return;
      if (this.parts.fundingUrl !== '') await this.askForFunds(least);
    });
  }

  /**
   * Splits one larger coin into at most `wanted` anchor coins, spendable once the split is mined. Returns undefined if
   * no coin can be split.
   */
  async split(wanted: number): Promise<{ txid: string; coins: number } | undefined> {
    const { database, processor, key, sender, logger, firstPollMilliseconds } = this.parts;
    const rate = await processor.feeRate();
    const { least, most } = anchorCoinRange(rate);
    const made = await database.system(async (tx) => {
      const lease = newId();
      const coin = await leaseCoin(tx, key.publicKeyHex, { least: most + 1n, most: null }, lease);
      const plan = coin && planSplit(coin.satoshis, least, wanted, rate);
      if (!coin || !plan) return undefined;
      const built = buildSplitTransaction(coin, plan, 1, key);
      await insertTransaction(
        tx,
        { ...built, purpose: 'split', batchId: null, lease, attempt: 1 },
        firstPollMilliseconds,
      );
      const outputs = splitAmounts(plan).map((satoshis, index) => ({ index, satoshis }));
      await addOutputs(tx, key.publicKeyHex, built.txid, outputs, 'unmined');
      return { ...built, coins: plan.outputs };
    });
    if (!made) return undefined;
    logger.info({ txid: made.txid, coins: made.coins }, 'a coin was split');
    await sender.send(made.txid, made.raw);
    return { txid: made.txid, coins: made.coins };
  }

  /**
   * Makes another attempt at a split with the same coin within the caller's database transaction; returns undefined if
   * the coin is lost.
   */
  async splitAgain(tx: Transaction, last: ChainTransaction): Promise<BuiltTransaction | undefined> {
    const { key, firstPollMilliseconds } = this.parts;
    const [coin] = await leasedCoins(tx, last.lease);
    if (!coin) {
      await dropOutputsOf(tx, [last.txid]);
      return undefined;
    }
    const amounts = parseTransaction(last.raw).outputs.map(({ satoshis }) => satoshis);
    const isEven = amounts.at(-1) === amounts[0];
    const plan = {
      denomination: amounts[0]!,
      outputs: isEven ? amounts.length : amounts.length - 1,
      change: isEven ? 0n : amounts.at(-1)!,
    };
    const attempt = last.attempt + 1;
    const built = buildSplitTransaction(coin, plan, attempt, key);
    await insertTransaction(
      tx,
      { ...built, purpose: 'split', batchId: null, lease: last.lease, attempt },
      firstPollMilliseconds,
    );
    await addOutputs(
      tx,
      key.publicKeyHex,
      built.txid,
      amounts.map((satoshis, index) => ({ index, satoshis })),
      'unmined',
    );
    return built;
  }

  /**
   * Imports a mined transaction that pays the wallet: every output to its key becomes a coin. Returns how many are new; a
   * transaction that is stored adds none. Throws MalformedError for bytes that are not a transaction or a BUMP, and
   * RefutedError if the header source does not confirm the block, no output pays the wallet, or the transaction spends a
   * coin that the wallet has spent or does not know: it may be a split that was forgotten, whose coins are spent.
   */
  async import(raw: Uint8Array, bump: Bump): Promise<number> {
    const { database, headers, key } = this.parts;
    const txid = txidOf(raw);
    const { inputs, outputs: paid } = parseTransaction(raw);
    const outputs = paid.flatMap(({ satoshis, lockingScript }, index) =>
      satoshis > 0n && equalBytes(lockingScript, key.lockingScript) ? [{ index, satoshis }] : [],
    );
    if (outputs.length === 0) throw new RefutedError(`the transaction pays nothing to ${key.address}`);
    const header = await headers?.header(bump.blockHeight);
    if (!header) throw new RefutedError(`the header source has no block ${bump.blockHeight}`);
    const bytes = proveInBlock(txid, Buffer.from(serialiseBump(bump)).toString('hex'), header.raw);
    // The wallet's own inputs end with its public key.
    const own = inputs.filter(({ unlockingScript }) =>
      equalBytes(unlockingScript.subarray(-key.publicKey.length), key.publicKey),
    );
    const spends = own.map((input) => ({ txid: toDisplayHex(input.previousTxid), index: input.previousOutputIndex }));
    return database.system(async (tx) => {
      const known = await readTransaction(tx, txid);
      // The coins of a split were added when it was made, and those that are spent may be forgotten already.
      if (known?.purpose === 'split') return 0;
      if (!known && (await countUnspent(tx, spends)) < spends.length) {
        throw new RefutedError('the transaction spends a coin of the wallet itself, so its coins may be spent');
      }
      await insertTransaction(tx, { txid, raw, purpose: 'funding', batchId: null, lease: '', attempt: 1 }, 0);
      await markMined(tx, txid, { blockHeight: header.height, blockHash: header.blockHash, bump: bytes });
      return addOutputs(tx, key.publicKeyHex, txid, outputs, 'free');
    });
  }

  /** Requests anchor coins from the local network's faucet. */
  private async askForFunds(denomination: bigint): Promise<void> {
    const { fundingUrl, key, refill, logger } = this.parts;
    const response = await fetch(fundingUrl, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ address: key.address, satoshis: Number(denomination), outputs: refill }),
      signal: AbortSignal.timeout(15_000),
    });
    const body = JSON.parse(await readText(response, maxFundingBytes)) as {
      raw_tx?: unknown;
      bump?: unknown;
      message?: unknown;
    };
    if (typeof body.raw_tx !== 'string' || typeof body.bump !== 'string') {
      throw new MalformedError(`the funding URL returned ${response.status}: ${String(body.message)}`);
    }
    const coins = await this.import(fromHex(body.raw_tx), parseBump(fromHex(body.bump)));
    logger.info({ coins }, 'the wallet was funded');
  }
}
