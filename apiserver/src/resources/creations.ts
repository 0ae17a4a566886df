// A creation through REST from its intent to its answer: the resource and its working copy, both or neither, and an answer that
// is true wherever the call is cut.
import {
  createdByApi,
  finalizer,
  intentAnnotation,
  createdByLabel,
  displayNameAnnotation,
  type ObjectMeta,
} from '@kellet/crds';
import { KubernetesError } from '@kellet/kubernetes';
import { sleep } from '../platform/clock.ts';
import type { Database, Transaction } from '../platform/database/database.ts';
import { alreadyExists, KelletError, unavailable } from '../platform/errors.ts';
import type { KubernetesApi, KubernetesObject } from '../platform/kubernetes/kubernetes.ts';
import type { Logger } from '../platform/observability/logger.ts';
import type { CallContext } from '../platform/rpc.ts';
import { refusalError, type LastStep } from '../control/applier.ts';
import { releaseDeleted } from './finalizers.ts';
import { cancelIfOverdue, cancelIntent, openIntent, type Intent } from '../control/intents.ts';
import { refusedByKubernetes } from './kubernetes-refusals.ts';

/** Within this time a resource must be taken up, else its creation is cancelled. */
const defaultDeadlineMilliseconds = 10_000;

/** For how long the outcome of a creation is asked for when the database does not tell it. */
const defaultSettleMilliseconds = 30_000;

/** What creations work with. */
export interface CreationsOptions {
  readonly database: Database;
  readonly kubernetes: Pick<KubernetesApi, 'create' | 'get' | 'delete' | 'mergePatch'>;
  readonly logger: Logger;
  readonly deadlineMilliseconds?: number | undefined;
  readonly settleMilliseconds?: number | undefined;
}

/** What is particular to one creation. */
export interface Creation<Spec, T> {
  readonly intent: Intent;
  /** What is POSTed. */
  readonly object: KubernetesObject<Spec>;
  /** Has the data plane take the resource up, in one transaction that ends with `last`. */
  readonly apply: (
    object: KubernetesObject<Spec>,
    last: LastStep,
  ) => Promise<{ refusal?: { readonly reason: string; readonly message: string } | undefined }>;
  /** Reads what the caller is answered. */
  readonly read: (tx: Transaction) => Promise<T>;
}

/** Carries out creations. */
export class Creations {
  private readonly options: CreationsOptions;
  private readonly deadlineMilliseconds: number;
  private readonly settleMilliseconds: number;

  constructor(options: CreationsOptions) {
    this.options = options;
    this.deadlineMilliseconds = options.deadlineMilliseconds ?? defaultDeadlineMilliseconds;
    this.settleMilliseconds = options.settleMilliseconds ?? defaultSettleMilliseconds;
  }

  /**
   * Makes the resource and has it taken up; returns what the transaction that took it up has read. Throws ALREADY_EXISTS when
   * the name is taken, INVALID_ARGUMENT when the resource's schema refuses the spec, the error of a refusal, and UNAVAILABLE
   * when it was not taken up in time. After any of these nothing of it stays. Only when the database goes away at the very
   * moment of the COMMIT and does not come back is the outcome unknown: that is DEADLINE_EXCEEDED.
   */
  async make<Spec, T>(
    { signal: caller, deadline }: Pick<CallContext, 'signal' | 'deadline'>,
    creation: Creation<Spec, T>,
  ): Promise<T> {
    const { intent } = creation;
    const milliseconds = Math.min(this.deadlineMilliseconds, (deadline ?? Infinity) - Date.now());
    if (milliseconds <= 0 || caller.aborted) throw unavailable('the call ended before anything was made');
    const signal = AbortSignal.any([caller, AbortSignal.timeout(milliseconds)]);
    const { database } = this.options;
    await database.tenant(intent.tenantId, (tx) => openIntent(tx, intent, milliseconds));
    let isRefused = false;
    try {
      const object = await this.post(intent, creation.object, signal).catch((error: unknown) => {
        // The API server has said that it did not take the resource: nobody can take it up.
        isRefused = error instanceof KelletError && error.code !== 'UNAVAILABLE';
        throw error;
      });
      let answer: { value: T } | undefined;
      const applying = creation.apply(object, async (tx) => {
        answer = { value: await creation.read(tx) };
      });
      // Whoever settles the intent first has decided; a late failure of the other must not go unheard as a rejection.
      applying.catch(() => undefined);
      const applied = await Promise.race([applying, aborted(signal)]);
      if (!applied) throw unavailable('the resource was not taken up in time');
      if (applied.refusal) throw refusalError(intent.kind, applied.refusal);
      return answer!.value;
    } catch (error) {
      if (isRefused) {
        await this.settled(creation, AbortSignal.timeout(0)).catch(() => undefined);
        throw error;
      }
      const outcome = await this.settled(creation, AbortSignal.timeout(this.settleMilliseconds));
      if (outcome === undefined) throw error;
      return outcome.value;
    }
  }

  /**
   * Cancels the creation unless it was taken up, and asks until it is known which of the two it is: what was taken up is read
   * in the same transaction; undefined when it was cancelled. Throws DEADLINE_EXCEEDED when it is still not known once the
   * signal aborts.
   */
  private async settled<Spec, T>(
    { intent, read }: Creation<Spec, T>,
    signal: AbortSignal,
  ): Promise<{ value: T } | undefined> {
    const { database, logger } = this.options;
    for (let pause = 50; ; pause = Math.min(2 * pause, 1000)) {
      try {
        const outcome = await database.tenant(intent.tenantId, async (tx) =>
          (await cancelIntent(tx, intent.tenantId, intent.intentId)) === 'active'
            ? { value: await read(tx) }
            : undefined,
        );
        // The answer waits for the deletion, but not for an API server that is away: the sweep deletes what stays.
        if (!outcome) await Promise.race([this.deleteCancelled(intent), sleep(1000)]);
        return outcome;
      } catch (error) {
        if (error instanceof KelletError && error.code !== 'UNAVAILABLE') throw error;
        logger.warn({ err: error, intent: intent.intentId }, 'the outcome of a creation is not known yet');
        if (signal.aborted) throw unknownOutcome(intent, error);
      }
      await sleep(pause, signal);
    }
  }

  /**
   * Throws what `make` would throw of the resource itself: ALREADY_EXISTS, or INVALID_ARGUMENT of its schema. Makes nothing.
   */
  async foresee(intent: Intent, object: KubernetesObject<unknown>, signal: AbortSignal): Promise<void> {
    try {
      await this.options.kubernetes.create(intent.kind, object, signal, { dryRun: true });
    } catch (error) {
      if (!(error instanceof KubernetesError)) throw error;
      if (error.failure !== 'alreadyExists') throw refusedByKubernetes(intent.kind, error);
      await this.refuseLiving(intent, signal);
    }
  }

  /** Creates; a resource of this name is waited for while it is being deleted and while it may still be cancelled. */
  private async post<Spec>(
    intent: Intent,
    object: KubernetesObject<Spec>,
    signal: AbortSignal,
  ): Promise<KubernetesObject<Spec>> {
    for (;;) {
      try {
        return await this.options.kubernetes.create(intent.kind, object, signal);
      } catch (error) {
        if (!(error instanceof KubernetesError)) throw error;
        if (error.failure !== 'alreadyExists') throw refusedByKubernetes(intent.kind, error);
      }
      await this.refuseLiving(intent, signal);
      await sleep(100, signal);
    }
  }

  /** Throws ALREADY_EXISTS when the name is taken; deletes what is left of a creation that was cancelled. */
  private async refuseLiving({ tenantId, kind, namespace, name }: Intent, signal: AbortSignal): Promise<void> {
    const existing = await this.options.kubernetes.get(kind, namespace, name, signal);
    if (!existing || existing.metadata.deletionTimestamp) return;
    const intentId = existing.metadata.annotations?.[intentAnnotation] ?? '';
    const state = await this.options.database.tenant(tenantId, (tx) => cancelIfOverdue(tx, tenantId, intentId));
    if (state === 'cancelled') await this.deleteCancelled({ tenantId, intentId, kind, namespace, name });
    else if (state !== 'pending') throw alreadyExists(`${name} already exists`);
  }

  /**
   * Deletes what a cancelled creation has left in the cluster. Best effort: the sweep looks again, and the operator deletes it
   * too, since applying it is refused as IntentCancelled.
   */
  async deleteCancelled(intent: Intent): Promise<void> {
    const { kubernetes, logger } = this.options;
    const { kind, namespace, name } = intent;
    try {
      const object = await kubernetes.get(kind, namespace, name);
      const uid = object?.metadata.uid;
      if (!uid || object.metadata.annotations?.[intentAnnotation] !== intent.intentId) return;
      if (!object.metadata.deletionTimestamp) await kubernetes.delete(kind, namespace, name, uid);
      await releaseDeleted(kubernetes, logger, { kind, namespace, name, uid });
    } catch (error) {
      logger.warn({ err: error, kind, name }, 'the resource of a cancelled creation stays for now');
    }
  }
}

/** The metadata with which a creation POSTs its resource. */
export function metadataOf({ namespace, name, intentId }: Intent, displayName: string): ObjectMeta {
  return {
    ...(namespace === '' ? {} : { namespace }),
    name,
    labels: { [createdByLabel]: createdByApi },
    // From the first moment: a deletion that comes before the operator has seen the resource must be heard of.
    finalizers: [finalizer],
    annotations: {
      [intentAnnotation]: intentId,
      ...(displayName === name ? {} : { [displayNameAnnotation]: displayName }),
    },
  };
}

const unknownOutcome = ({ name }: Intent, cause: unknown): KelletError =>
  new KelletError(
    'DEADLINE_EXCEEDED',
    `the database went away while ${name} was being made: look whether it is there before trying again`,
    { cause },
  );

/** Resolves with nothing once the signal aborts. */
const aborted = (signal: AbortSignal): Promise<undefined> =>
  new Promise((resolve) => {
    if (signal.aborted) resolve(undefined);
    else signal.addEventListener('abort', () => resolve(undefined), { once: true });
  });
