// Follows changes of the tenants' trusted signing keys. Whether a package is signed is verified wherever it matters; this brings
// the packages' status up to date and pauses rollouts whose package has lost its signature.
import { tenantChannel } from '../../platform/database/channels.ts';
import type { Database } from '../../platform/database/database.ts';
import { retriedTransactions } from '../../platform/database/retry-conflicts.ts';
import type { Logger } from '../../platform/observability/logger.ts';
import type { Packages } from './packages/packages.ts';
import type { RolloutMembership } from './rollouts/membership.ts';

/** Judges packages and rollouts of a tenant again when its settings change. */
export class SigningKeys {
  private readonly parts: { database: Database; packages: Packages; membership: RolloutMembership; logger: Logger };
  private readonly waiting = new Set<string>();
  private running: Promise<void> = Promise.resolve();

  constructor(parts: SigningKeys['parts']) {
    this.parts = parts;
  }

  /** Begins to follow changes. One that is missed is seen when the operator, which then misses it too, applies its resources. */
  start(): void {
    const { database, logger } = this.parts;
    const receive = (_channel: string, tenantId: string): void => {
      if (this.waiting.has(tenantId)) return;
      this.waiting.add(tenantId);
      this.running = this.running
        .then(() => {
          this.waiting.delete(tenantId);
          return this.judge(tenantId);
        })
        .catch((error: unknown) =>
          logger.warn({ err: error, tenant_id: tenantId }, 'signatures could not be judged again'),
        );
    };
    database.listen([tenantChannel], receive, () => undefined);
  }

  /** Waits for what is under way. */
  stop(): Promise<void> {
    return this.running;
  }

  private async judge(tenantId: string): Promise<void> {
    const { database, packages, membership } = this.parts;
    const pause = () => retriedTransactions(database)(tenantId, (tx) => membership.signingKeysChanged(tx, tenantId));
    await pause();
    await packages.judgeSignatures(tenantId);
    // A rollout that was created meanwhile found its package still available.
    await pause();
  }
}
