// The command `kellet-apiserver wallet …`: shows and prepares the coins that pay for anchors.
import { readFile } from 'node:fs/promises';
import { fromHex, MalformedError, messageOf, parseBeef } from '@kellet/verify';
import type { Config } from '../config/config.ts';
import type { Database } from '../platform/database/database.ts';
import type { Logger } from '../platform/observability/logger.ts';
import { createMetrics } from '../platform/observability/metrics.ts';
import { assembleParts } from './parts.ts';
import { timingOf } from './pipeline/timing.ts';
import type { Wallet } from './wallet/wallet-refill.ts';

/** The help text. */
export const walletUsage = `usage: kellet-apiserver wallet address | balance | split [N] | import BEEF

  address       prints the address that receives the coins for anchors
  balance       prints coins and satoshis by state
  split [N]     splits a large coin into up to N anchor coins (default: the refill of the network)
  import BEEF   imports a mined payment to the address: BEEF (BRC-62, with its BUMP) in hex, or the name of a file with it
`;

/** Dependencies of the command. */
export interface WalletCommandParts {
  readonly config: Config;
  /** Already migrated. */
  readonly database: Database;
  readonly logger: Logger;
  /** Prints a line. */
  readonly write: (line: string) => void;
}

/** Runs a command and returns the exit code: 0 success, 1 failure, 2 bad usage. */
export async function runWalletCommand(args: readonly string[], parts: WalletCommandParts): Promise<number> {
  const { config, database, logger, write } = parts;
  const [command = '', argument, ...rest] = args;
  if (!['address', 'balance', 'split', 'import'].includes(command) || rest.length > 0) {
    write(walletUsage);
    return 2;
  }
  const pace = timingOf(config.network);
  const { key, wallet } = assembleParts({ config, database, logger, metrics: createMetrics(), pace });
  if (!key) {
    write('KELLET_WALLET_KEY is not set');
    return 1;
  }
  if (command === 'address') {
    write(key.address);
    return 0;
  }
  if (!wallet) {
    write('KELLET_ARC_URL is not set');
    return 1;
  }
  try {
    if (command === 'balance') return await showBalance(wallet, write);
    if (command === 'split') return await split(wallet, argument ?? String(pace.refill), write);
    return await importPayments(wallet, argument ?? '', write);
  } catch (error) {
    write(messageOf(error));
    return 1;
  }
}

async function showBalance(wallet: Wallet, write: (line: string) => void): Promise<number> {
  const { states, anchorCoins, splittable, least, most } = await wallet.balance();
  const spent = await wallet.spent();
  for (const state of ['free', 'unmined', 'leased', 'spent', 'lost'] as const) {
    const { coins = 0, satoshis = 0n } = (state === 'spent' ? spent : states.get(state)) ?? {};
    write(`${state.padEnd(8)} ${String(coins).padStart(8)} coins ${satoshis.toString().padStart(14)} satoshis`);
  }
  write(`anchors the wallet can pay for: ${anchorCoins} (coins of ${least} to ${most} satoshis)`);
  write(`coins to split: ${splittable}`);
  return 0;
}

async function split(wallet: Wallet, count: string, write: (line: string) => void): Promise<number> {
  if (!/^[1-9]\d{0,5}$/.test(count)) {
    write('N must be a whole number');
    return 2;
  }
  const made = await wallet.split(Number(count));
  if (!made) {
    write('no coin can be split');
    return 1;
  }
  write(`${made.coins} coins in ${made.txid}: spendable once it is mined`);
  return 0;
}

async function importPayments(wallet: Wallet, source: string, write: (line: string) => void): Promise<number> {
  if (source === '') {
    write(walletUsage);
    return 2;
  }
  const hex = /^([0-9a-f]{2})+$/i.test(source) ? source : (await readFile(source, 'utf8')).trim();
  const { bumps, transactions } = parseBeef(fromHex(hex));
  const mined = transactions.filter(({ bumpIndex }) => bumpIndex !== undefined);
  if (mined.length === 0) throw new MalformedError('it contains no mined transaction');
  let coins = 0;
  for (const { raw, bumpIndex } of mined) coins += await wallet.import(raw, bumps[bumpIndex!]!);
  write(`${coins} new coins`);
  return 0;
}
