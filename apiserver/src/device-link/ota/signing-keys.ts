// Follows changes of the tenants' trusted signing keys. Whether a package is signed is verified wherever it matters; this pauses
// rollouts whose package has lost its signature, and brings the packages' status up to date.
import { FairWorker } from '../../platform/background/fair-worker.ts';
import { tenantChannel } from '../../platform/database/channels.ts';
import type { Database } from '../../platform/database/database.ts';
import { retriedTransactions } from '../../platform/database/retry-conflicts.ts';
import type { Logger } from '../../platform/observability/logger.ts';
import type { Packages } from './packages/packages.ts';
import type { RolloutMembership } from './rollouts/membership.ts';
import { tenantsWithRollouts } from './rollouts/stores/membership-store.ts';

/** How long what has failed waits to be repeated. */
const retryMilliseconds = 1000;

/** Tenants that a process works for at a time, so that one whose rows are locked does not keep others waiting. */
const tenantsAtOnce = 4;

/** Does something for tenants, each until it has succeeded. */
class DueTenants {
  /** When each is due, by the monotonic clock. */
  private readonly due = new Map<string, number>();
  private readonly worker: FairWorker<string>;

  constructor(logger: Logger, name: string, work: (tenantId: string) => Promise<void>) {
    this.worker = new FairWorker(logger, {
      ...{ name, most: tenantsAtOnce, mostOfKey: 1 },
      keyOf: (tenantId) => tenantId,
      tenantOf: (tenantId) => tenantId,
      claim: (limit, except) => Promise.resolve(this.take(limit, except)),
      settle: async (tenantId) => {
        try {
          await work(tenantId);
        } catch (error) {
          logger.warn({ err: error, tenantId, work: name }, 'a change of trusted signing keys could not be followed');
          if (!this.due.has(tenantId)) this.due.set(tenantId, performance.now() + retryMilliseconds);
        }
      },
    });
  }

  private take(limit: number, except: readonly string[]): string[] {
    const now = performance.now();
    const isFree = ([tenantId, at]: [string, number]): boolean => at <= now && !except.includes(tenantId);
    const taken = [...this.due].filter(isFree).slice(0, limit);
    for (const [tenantId] of taken) this.due.delete(tenantId);
    return taken.map(([tenantId]) => tenantId);
  }

  start(): void {
    this.worker.start();
  }

  /** Waits for what is under way. */
  stop(): Promise<void> {
    return this.worker.stop();
  }

  add(...tenantIds: readonly string[]): void {
    for (const tenantId of tenantIds) this.due.set(tenantId, 0);
    this.worker.wake();
  }
}

/** Takes the place of a tenant's id, which is never empty: all tenants with rollouts. */
const everyTenant = '';

/** Judges packages and rollouts of a tenant again when its settings change. */
export class SigningKeys {
  private readonly database: Database;
  /** Of their own, so that no tenant with many packages keeps the rollouts of others from being paused. */
  private readonly rollouts: DueTenants;
  private readonly packages: DueTenants;

  constructor({
    database,
    packages,
    membership,
    logger,
  }: {
    database: Database;
    packages: Pick<Packages, 'judgeSignatures'>;
    membership: Pick<RolloutMembership, 'signingKeysChanged'>;
    logger: Logger;
  }) {
    this.database = database;
    this.rollouts = new DueTenants(logger, 'pauses of rollouts without a trusted signature', async (tenantId) => {
      if (tenantId === everyTenant) this.rollouts.add(...(await database.systemRead(tenantsWithRollouts)));
      else await retriedTransactions(database)(tenantId, (tx) => membership.signingKeysChanged(tx, tenantId));
    });
    this.packages = new DueTenants(logger, 'judgement of signatures', async (tenantId) => {
      await packages.judgeSignatures(tenantId);
      // A rollout that was created meanwhile found its package still available.
      this.rollouts.add(tenantId);
    });
  }

  /**
   * Begins to follow changes. Of those that may have been missed, rollouts are looked at here; packages are judged when the operator,
   * which then misses them too, applies its resources.
   */
  start(): void {
    this.rollouts.start();
    this.packages.start();
    this.database.listen(
      [tenantChannel],
      (_channel, tenantId) => {
        this.rollouts.add(tenantId);
        this.packages.add(tenantId);
      },
      (lost) => {
        if (!lost) this.rollouts.add(everyTenant);
      },
    );
  }

  /** Waits for what is under way. */
  async stop(): Promise<void> {
    await Promise.all([this.rollouts.stop(), this.packages.stop()]);
  }
}
