// Metrics of anchoring: batches by status, age of the oldest one, wallet and chain height.
import type { Database } from '../platform/database/database.ts';
import type { Logger } from '../platform/observability/logger.ts';
import { readGauge, type Registry } from '../platform/observability/metrics.ts';
import { type HeaderChain, storedTip } from './headers/header-chain.ts';
import { countQuotaWaiting, countUnconfirmed, oldestUnconfirmedSeconds } from './transactions/anchor-store.ts';
import type { Wallet } from './wallet/wallet-refill.ts';

/**
 * Registers the gauges; each scrape queries the database. `isConfigured`: a processor and a wallet key are configured.
 */
export function registerMetrics(
  parts: { metrics: Registry; logger: Logger; database: Database },
  { wallet, headers }: { wallet: Wallet | undefined; headers: HeaderChain | undefined },
  { isConfigured, lowWater }: { isConfigured: boolean; lowWater: number },
): void {
  const { database } = parts;
  readGauge(
    parts,
    'kellet_anchor_configured',
    '1 if a processor and a wallet key are configured; otherwise sealed batches wait.',
    () => Number(isConfigured),
  );
  readGauge(
    parts,
    'kellet_anchor_batches',
    'Anchor batches that are not confirmed, by status.',
    async () => {
      const counts = await database.system(countUnconfirmed);
      return new Map(
        ['open', 'sealed', 'submitted', 'seen', 'failed'].map((status) => [status, counts.get(status) ?? 0]),
      );
    },
    'status',
  );
  readGauge(parts, 'kellet_anchor_oldest_unconfirmed_seconds', 'Age of the oldest sealed, unconfirmed batch.', () =>
    database.system(oldestUnconfirmedSeconds),
  );
  readGauge(parts, 'kellet_anchor_quota_waiting', "Sealed batches waiting for their tenant's next day.", () =>
    database.system(countQuotaWaiting),
  );
  readGauge(
    parts,
    'kellet_anchor_chain_height',
    'Height of the stored header chain.',
    async () => (await database.system(storedTip)) ?? 0,
  );
  readGauge(parts, 'kellet_anchor_headers_refused', '1 while the header source offers headers that are refused.', () =>
    Number(headers?.isBranchRefused === true),
  );
  if (!wallet) return;
  /** The balance, read once for all gauges of a scrape. */
  let reading: ReturnType<Wallet['balance']> | undefined;
  const balance = () => (reading ??= wallet.balance().finally(() => (reading = undefined)));
  readGauge(
    parts,
    'kellet_anchor_wallet_coins',
    'Coins of the wallet that are not spent, by state.',
    async () => {
      const { states } = await balance();
      const names = ['unmined', 'free', 'leased', 'lost'] as const;
      return new Map(names.map((state) => [state, states.get(state)?.coins ?? 0]));
    },
    'state',
  );
  readGauge(parts, 'kellet_anchor_wallet_satoshis', 'Satoshis that are free, or will be once mined.', async () => {
    const { states } = await balance();
    return Number((states.get('free')?.satoshis ?? 0n) + (states.get('unmined')?.satoshis ?? 0n));
  });
  readGauge(
    parts,
    'kellet_anchor_wallet_low',
    '1 while there are fewer anchor coins than the low-water mark.',
    async () => Number((await balance()).anchorCoins < lowWater),
  );
}
