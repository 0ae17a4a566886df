// Metrics of anchoring: batches by status, age of the oldest one, wallet and chain height.
import type { Database } from '../platform/database/database.ts';
import { Gauge, type Registry } from '../platform/observability/metrics.ts';
import { storedTip, type HeaderChain } from './headers/header-chain.ts';
import { countQuotaWaiting, countUnconfirmed, oldestUnconfirmedSeconds } from './transactions/store.ts';
import type { Wallet } from './wallet/wallet.ts';

/**
 * Registers the gauges; each scrape queries the database. `isConfigured`: a processor and a wallet key are configured.
 */
export function registerMetrics(
  metrics: Registry,
  database: Database,
  parts: { wallet: Wallet | undefined; headers: HeaderChain | undefined },
  settings: { isConfigured: boolean; lowWater: number },
): void {
  const { wallet, headers } = parts;
  const gauge = (name: string, help: string, labelNames: string[], collect: (gauge: Gauge) => Promise<void>) => {
    const made: Gauge = new Gauge({
      name,
      help,
      labelNames,
      registers: [metrics],
      // An unavailable database must not make the other metrics unreadable.
      collect: () => collect(made).catch(() => made.reset()),
    });
  };
  new Gauge({
    name: 'kellet_anchor_configured',
    help: '1 if a processor and a wallet key are configured; otherwise sealed batches wait.',
    registers: [metrics],
  }).set(settings.isConfigured ? 1 : 0);
  gauge('kellet_anchor_batches', 'Anchor batches that are not confirmed, by status.', ['status'], async (made) => {
    const counts = await database.system(countUnconfirmed);
    for (const status of ['open', 'sealed', 'submitted', 'seen', 'failed'])
      made.set({ status }, counts.get(status) ?? 0);
  });
  gauge(
    'kellet_anchor_oldest_unconfirmed_seconds',
    'Age of the oldest sealed, unconfirmed batch.',
    [],
    async (made) => {
      made.set(await database.system(oldestUnconfirmedSeconds));
    },
  );
  gauge('kellet_anchor_quota_waiting', "Sealed batches waiting for their tenant's next day.", [], async (made) => {
    made.set(await database.system(countQuotaWaiting));
  });
  gauge('kellet_anchor_chain_height', 'Height of the stored header chain.', [], async (made) => {
    made.set((await database.system(storedTip)) ?? 0);
  });
  gauge('kellet_anchor_headers_refused', '1 while the header source offers headers that are refused.', [], (made) => {
    made.set(headers?.isBranchRefused === true ? 1 : 0);
    return Promise.resolve();
  });
  if (!wallet) return;
  gauge('kellet_anchor_wallet_coins', 'Coins of the wallet, by state.', ['state'], async (made) => {
    const { states } = await wallet.balance();
    for (const state of ['unmined', 'free', 'leased', 'spent', 'lost'] as const) {
      made.set({ state }, states.get(state)?.coins ?? 0);
    }
  });
  gauge('kellet_anchor_wallet_satoshis', 'Satoshis that are free, or will be once mined.', [], async (made) => {
    const { states } = await wallet.balance();
    made.set(Number((states.get('free')?.satoshis ?? 0n) + (states.get('unmined')?.satoshis ?? 0n)));
  });
  gauge(
    'kellet_anchor_wallet_low',
    '1 while there are fewer anchor coins than the low-water mark.',
    [],
    async (made) => {
      made.set((await wallet.balance()).anchorCoins < settings.lowWater ? 1 : 0);
    },
  );
}
