// Does the work that remains for many devices once a rollout rolls back, has ended, or retries failed devices: in small
// transactions, so that the rollout's row is never held for long, and resumed where it stopped after a crash.
import { Loop } from '../../../../platform/background/loop.ts';
import type { Clock } from '../../../../platform/clock.ts';
import type { Database, Transaction } from '../../../../platform/database/database.ts';
import { retriedTransactions } from '../../../../platform/database/retry-conflicts.ts';
import type { Logger } from '../../../../platform/observability/logger.ts';
import type { TransactionalProfileReader } from '../../../../policies/profile-reader.ts';
import { findPackage, findPackageEver } from '../../packages/package-store.ts';
import { dropCohort } from '../stores/cohort-store.ts';
import { deviceTimeout } from '../decisions/rollout-policy.ts';
import { retryNextDevices } from './retry.ts';
import { turnDevicesBack } from './rollback.ts';
import type { RolloutState } from '../decisions/rollout-state.ts';
import { endWork, listWithWork, lockRollout, saveRollout } from '../stores/rollout-store.ts';
import { withdraw } from './withdrawal.ts';

/** Time between two looks. */
const pauseMilliseconds = 1000;

/** What is done for a page of devices in each transaction. */
const workInPages: ReadonlySet<string> = new Set<RolloutState['pendingWork']>(['retry', 'turn_back', 'withdraw']);

/** Maximum rollouts of one look. */
const rolloutsPerLook = 100;

/** Maximum rows of a cohort that one transaction deletes. */
const rowsPerTransaction = 2000;

/** Works until it is stopped. */
export class RolloutWork {
  private readonly parts: { database: Database; profiles: TransactionalProfileReader; clock: Clock; logger: Logger };
  private readonly loop: Loop;

  constructor(parts: RolloutWork['parts']) {
    this.parts = parts;
    this.loop = new Loop(parts.logger, 'work of rollouts', pauseMilliseconds, (signal) => this.finish(signal));
  }

  start(): void {
    this.loop.start();
  }

  /** Resolves once a running transaction has ended. */
  stop(): Promise<void> {
    return this.loop.stop();
  }

  /** Does the work that is due now, until the signal aborts. */
  async finish(signal?: AbortSignal): Promise<void> {
    const { rows } = await this.parts.database.systemRead((tx) => listWithWork(tx, rolloutsPerLook));
    for (const { tenant_id: tenantId, rollout_id: rolloutId } of rows) {
      try {
        await this.finishOne(tenantId, rolloutId, signal);
      } catch (error) {
        this.parts.logger.warn({ err: error, rolloutId }, 'a rollout could not be worked on');
      }
    }
  }

  private async finishOne(tenantId: string, rolloutId: string, signal?: AbortSignal): Promise<void> {
    const transaction = (tx: Transaction) => this.next(tx, tenantId, rolloutId);
    let work: string;
    do {
      work = await retriedTransactions(this.parts.database)(tenantId, transaction);
    } while (workInPages.has(work) && !signal?.aborted);
    if (work !== 'drop_cohort') return;
    let after: Buffer | undefined = Buffer.alloc(0);
    while (after && !signal?.aborted) after = await this.dropAfter(tenantId, rolloutId, after);
    if (!signal?.aborted) await this.parts.database.tenant(tenantId, (tx) => endWork(tx, tenantId, rolloutId));
  }

  private dropAfter(tenantId: string, rolloutId: string, after: Buffer): Promise<Buffer | undefined> {
    return this.parts.database.tenant(tenantId, (tx) => dropCohort(tx, tenantId, rolloutId, after, rowsPerTransaction));
  }

  /** Does the work for the next devices. Returns what then remains. */
  private async next(tx: Transaction, tenantId: string, rolloutId: string): Promise<string> {
    const state = await lockRollout(tx, tenantId, rolloutId);
    if (state.pendingWork === 'turn_back') {
      const profile = await this.parts.profiles.getWithin(tx, tenantId, state.profileId);
      const rollback = await findPackageEver(tx, tenantId, state.rollbackPackageId!);
      const timeout = deviceTimeout(state.spec, profile?.otaPolicy);
      await turnDevicesBack(tx, state, rollback!, timeout, new Date(this.parts.clock.now()));
      await saveRollout(tx, state, this.parts.clock);
    } else if (state.pendingWork === 'retry') {
      const package_ = await findPackage(tx, tenantId, state.packageId);
      if (package_) await retryNextDevices(tx, state, package_, new Date(this.parts.clock.now()));
      else state.pendingWork = '';
      await saveRollout(tx, state, this.parts.clock);
    } else if (state.pendingWork === 'withdraw') {
      await withdraw(tx, state, new Date(this.parts.clock.now()));
      await saveRollout(tx, state, this.parts.clock);
    }
    return state.pendingWork;
  }
}
