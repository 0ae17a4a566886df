// Follows changes of the tenants' trusted signing keys. Whether a package is signed is verified wherever it matters; this pauses
// rollouts whose package has lost its signature, and brings the packages' status up to date.
import { Loop } from '../../platform/background/loop.ts';
import { tenantChannel } from '../../platform/database/channels.ts';
import type { Database } from '../../platform/database/database.ts';
import { retriedTransactions } from '../../platform/database/retry-conflicts.ts';
import type { Logger } from '../../platform/observability/logger.ts';
import type { Packages } from './packages/packages.ts';
import type { RolloutMembership } from './rollouts/membership.ts';
import { tenantsWithRollouts } from './rollouts/stores/membership-store.ts';

/** How long what has failed waits to be repeated. */
const retryMilliseconds = 1000;

/** Does something for tenants, one after another, each until it has succeeded. */
class TenantTurns {
  private readonly due = new Set<string>();
  private readonly loop: Loop;

  constructor(logger: Logger, name: string, work: (tenantId: string) => Promise<void>) {
    this.loop = new Loop(logger, name, retryMilliseconds, async (signal) => {
      const failures: unknown[] = [];
      for (const tenantId of [...this.due]) {
        if (signal.aborted) return;
        this.due.delete(tenantId);
        await work(tenantId).catch((error: unknown) => {
          this.due.add(tenantId);
          failures.push(error);
        });
      }
      if (failures.length > 0) throw failures[0];
    });
  }

  start(): void {
    this.loop.start();
  }

  /** Waits for what is under way. */
  stop(): Promise<void> {
    return this.loop.stop();
  }

  add(...tenantIds: readonly string[]): void {
    for (const tenantId of tenantIds) this.due.add(tenantId);
    this.loop.wake();
  }
}

/** Takes the place of a tenant's id, which is never empty: all tenants with rollouts. */
const everyTenant = '';

/** Judges packages and rollouts of a tenant again when its settings change. */
export class SigningKeys {
  private readonly database: Database;
  /** Of their own, so that no tenant with many packages keeps the rollouts of others from being paused. */
  private readonly rollouts: TenantTurns;
  private readonly packages: TenantTurns;

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
    this.rollouts = new TenantTurns(logger, 'pauses of rollouts without a trusted signature', async (tenantId) => {
      if (tenantId === everyTenant) this.rollouts.add(...(await database.systemRead(tenantsWithRollouts)));
      else await retriedTransactions(database)(tenantId, (tx) => membership.signingKeysChanged(tx, tenantId));
    });
    this.packages = new TenantTurns(logger, 'judgement of signatures', async (tenantId) => {
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
