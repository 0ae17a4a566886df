// Does the work that remains for many devices of a rollout: scheduling them, and once it rolls back, has ended or retries failed
// devices, what follows from that. In small transactions, so that the rollout's row is never held for long, and resumed where it
// stopped after a crash. Each process works on several rollouts at a time, a page of each in turn, so that a large fleet does not
// keep the small ones waiting.
import { Loop } from '../../../../platform/background/loop.ts';
import type { Clock } from '../../../../platform/clock.ts';
import { rolloutWorkChannel } from '../../../../platform/database/channels.ts';
import { isLockTimeout } from '../../../../platform/database/connection/database-errors.ts';
import type { Database, Transaction } from '../../../../platform/database/database.ts';
import { retriedTransactions } from '../../../../platform/database/retry-conflicts.ts';
import type { Logger } from '../../../../platform/observability/logger.ts';
import type { TransactionalProfileReader } from '../../../../policies/profile-reader.ts';
import { findPackage, findPackageEver } from '../../packages/package-store.ts';
import { deviceTimeout } from '../decisions/rollout-policy.ts';
import { awaitsScheduling } from '../decisions/rollout-state.ts';
import { dropCohort } from '../stores/cohort-store.ts';
import {
  endScheduling,
  endWork,
  listWithWork,
  lockRollout,
  type RolloutIdentity,
  saveRollout,
} from '../stores/rollout-store.ts';
import { retryNextDevices } from './retry.ts';
import { turnDevicesBack } from './rollback.ts';
import { scheduleNext } from './schedule-next.ts';
import { withdraw } from './withdrawal.ts';

/** Time between two looks unless work is announced, in milliseconds. */
const pauseMilliseconds = 1000;

/** Maximum rollouts of one look. */
const rolloutsPerLook = 1000;

/** Maximum rollouts that a process works on at a time: half of the connections that requests share with them. */
const rolloutsAtOnce = 4;

/** How long the work of a rollout waits for a lock while other rollouts wait for it. */
const lockMilliseconds = 500;

/** Maximum rows of a cohort that one transaction deletes. */
const rowsPerTransaction = 2000;

type Key = Pick<RolloutIdentity, 'tenantId' | 'rolloutId'>;

/** Works until it is stopped. */
export class RolloutWork {
  private readonly parts: { database: Database; profiles: TransactionalProfileReader; clock: Clock; logger: Logger };
  private readonly loop: Loop;
  /** Up to where this process has deleted a cohort, so that it does not read the deleted rows again. */
  private readonly dropped = new Map<string, Buffer>();

  constructor(parts: RolloutWork['parts']) {
    this.parts = parts;
    this.loop = new Loop(parts.logger, 'work of rollouts', pauseMilliseconds, (signal) => this.finish(signal));
  }

  start(): void {
    const wake = () => this.loop.wake();
    this.parts.database.listen([rolloutWorkChannel], wake, wake);
    this.loop.start();
  }

  /** Resolves once the running transactions have ended. */
  stop(): Promise<void> {
    return this.loop.stop();
  }

  /** Does the work that is due now, until the signal aborts. */
  async finish(signal?: AbortSignal): Promise<void> {
    while (!signal?.aborted) if (!(await this.look(signal))) return;
  }

  /** Does a page of the work of each rollout that has some. Reports whether anything was done. */
  private async look(signal?: AbortSignal): Promise<boolean> {
    const due = await this.parts.database.systemRead((tx) => listWithWork(tx, rolloutsPerLook));
    let isDone = false;
    const worker = async (): Promise<void> => {
      for (let key = due.pop(); key && !signal?.aborted; key = due.pop()) {
        try {
          if (await this.work(key)) isDone = true;
        } catch (error) {
          this.parts.logger.warn({ err: error, rolloutId: key.rolloutId }, 'a rollout could not be worked on');
        }
      }
    };
    await Promise.all(Array.from({ length: Math.min(rolloutsAtOnce, due.length) }, worker));
    return isDone;
  }

  /** Does the next page of a rollout's work. Reports whether anything was done. */
  private async work(key: Key): Promise<boolean> {
    const { database } = this.parts;
    const page = async (tx: Transaction) => {
      await tx.query(`SET LOCAL lock_timeout = ${lockMilliseconds}`);
      return this.next(tx, key);
    };
    const done = await retriedTransactions(database)(key.tenantId, page).catch((error: unknown) => {
      // A long change of the tenant holds the rollout or its devices.
      if (isLockTimeout(error)) return 'nothing' as const;
      throw error;
    });
    if (done === 'drop_cohort') await database.tenant(key.tenantId, (tx) => this.drop(tx, key));
    return done !== 'nothing';
  }

  /** Does the work for the next devices, except for dropping the cohort, which needs no lock of the rollout. */
  private async next(tx: Transaction, { tenantId, rolloutId }: Key): Promise<'nothing' | 'page' | 'drop_cohort'> {
    const { profiles, clock } = this.parts;
    const state = await lockRollout(tx, tenantId, rolloutId);
    const now = new Date(clock.now());
    switch (state.pendingWork) {
      case 'drop_cohort':
        return 'drop_cohort';
      case 'turn_back': {
        const profile = await profiles.getWithin(tx, tenantId, state.profileId);
        const rollback = await findPackageEver(tx, tenantId, state.rollbackPackageId!);
        await turnDevicesBack(tx, state, rollback!, deviceTimeout(state.spec, profile?.otaPolicy), now);
        break;
      }
      case 'retry': {
        const package_ = await findPackage(tx, tenantId, state.packageId);
        if (package_) await retryNextDevices(tx, state, package_, now);
        else state.pendingWork = '';
        break;
      }
      case 'withdraw':
        await withdraw(tx, state, now);
        break;
      case '': {
        const { revision } = state;
        const profile = awaitsScheduling(state) && (await profiles.getWithin(tx, tenantId, state.profileId));
        if (profile) await scheduleNext(tx, state, profile, clock);
        if (state.revision !== revision) return 'page';
        // Another process has done it, or a device has joined that the rollout does not cover yet.
        if (!awaitsScheduling(state)) await endScheduling(tx, tenantId, rolloutId);
        return 'nothing';
      }
    }
    await saveRollout(tx, state, clock);
    return 'page';
  }

  /** Deletes the next rows of the cohort of a completed rollout. */
  private async drop(tx: Transaction, { tenantId, rolloutId }: Key): Promise<void> {
    const after = this.dropped.get(rolloutId) ?? Buffer.alloc(0);
    const last = await dropCohort(tx, tenantId, rolloutId, after, rowsPerTransaction);
    if (last) this.dropped.set(rolloutId, last);
    else {
      await endWork(tx, tenantId, rolloutId);
      this.dropped.delete(rolloutId);
    }
  }
}
