// Does the work that remains for many devices of a rollout: scheduling them, and once it rolls back, has ended or retries failed
// devices, what follows from that. In small transactions, so that the rollout's row is never held for long, and resumed where it
// stopped after a crash. Each process works on several rollouts at a time, a page of each in turn, so that neither a large fleet
// keeps the small ones waiting, nor a tenant with many rollouts those of others.
import { type Busy, FairWorker } from '../../../../platform/background/fair-worker.ts';
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

/** Maximum rollouts that a process works on at a time: half of the connections that requests share with them; and of a tenant. */
const rolloutsAtOnce = 4;
const rolloutsOfTenant = 3;

/** How long the work of a rollout waits for a lock while other rollouts wait for it. */
const lockMilliseconds = 500;

/** How long a rollout is left alone for which nothing could be done. */
const restMilliseconds = 5000;

/** Maximum rows of a cohort that one transaction deletes. */
const rowsPerTransaction = 2000;

type Key = Pick<RolloutIdentity, 'tenantId' | 'rolloutId'>;

/** What was done: `ended` if the rollout has no more work. */
type Done = 'page' | 'drop_cohort' | 'ended' | 'nothing';

/** Works until it is stopped. */
export class RolloutWork {
  private readonly parts: { database: Database; profiles: TransactionalProfileReader; clock: Clock; logger: Logger };
  private readonly worker: FairWorker<Key>;
  /** Rollouts that are not to be taken up, and until when, in milliseconds of the monotonic clock. */
  private readonly left = new Map<string, number>();
  /** Up to where this process has deleted a cohort, so that it does not read the deleted rows again. */
  private readonly dropped = new Map<string, Buffer>();

  constructor(parts: RolloutWork['parts']) {
    this.parts = parts;
    this.worker = new FairWorker(parts.logger, {
      ...{ name: 'work of rollouts', most: rolloutsAtOnce, mostOfKey: rolloutsOfTenant },
      keyOf: ({ tenantId }) => tenantId,
      tenantOf: ({ tenantId }) => tenantId,
      claim: (limit, except, busy) => this.claim(limit, except, busy),
      settle: (key) => this.settle(key),
    });
  }

  start(): void {
    const wake = () => this.worker.wake();
    this.parts.database.listen([rolloutWorkChannel], wake, wake);
    this.worker.start();
  }

  /** Resolves once the running transactions have ended. */
  stop(): Promise<void> {
    return this.worker.stop();
  }

  /** Does the work that is due now. For tests. */
  async finish(): Promise<void> {
    for (;;) {
      const keys = await this.claim(rolloutsAtOnce, [], { tenants: [], running: [] });
      if (keys.length === 0) return;
      await Promise.all(keys.map((key) => this.settle(key)));
    }
  }

  private async claim(limit: number, except: readonly string[], busy: Busy): Promise<readonly Key[]> {
    const now = performance.now();
    for (const [rolloutId, until] of this.left) if (until <= now) this.left.delete(rolloutId);
    const others = [...this.left.keys()];
    const keys = await this.parts.database.systemRead((tx) =>
      listWithWork(tx, { limit, ofTenant: rolloutsOfTenant, except, busy, others }),
    );
    for (const { rolloutId } of keys) this.left.set(rolloutId, Infinity);
    return keys;
  }

  private async settle(key: Key): Promise<void> {
    const done = await this.work(key).catch((error: unknown): Done => {
      this.parts.logger.warn({ err: error, rolloutId: key.rolloutId }, 'a rollout could not be worked on');
      return 'nothing';
    });
    if (done === 'nothing') this.left.set(key.rolloutId, performance.now() + restMilliseconds);
    else this.left.delete(key.rolloutId);
  }

  /** Does the next page of a rollout's work. */
  private async work(key: Key): Promise<Done> {
    const { database } = this.parts;
    const page = async (tx: Transaction) => {
      await tx.query(`SET LOCAL lock_timeout = ${lockMilliseconds}`);
      return this.next(tx, key);
    };
    const done = await retriedTransactions(database)(key.tenantId, page).catch((error: unknown): Done => {
      // A long change of the tenant holds the rollout or its devices.
      if (isLockTimeout(error)) return 'nothing';
      throw error;
    });
    if (done === 'drop_cohort') await database.tenant(key.tenantId, (tx) => this.drop(tx, key));
    return done;
  }

  /** Does the work for the next devices, except for dropping the cohort, which needs no lock of the rollout. */
  private async next(tx: Transaction, { tenantId, rolloutId }: Key): Promise<Done> {
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
        if (awaitsScheduling(state)) return 'nothing';
        await endScheduling(tx, tenantId, rolloutId);
        return 'ended';
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
