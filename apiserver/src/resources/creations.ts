// Creates resources for REST callers: the custom resource and its working copy, both or neither, and a correct response
// wherever the creation is interrupted.
import {
  createdByApi,
  createdByLabel,
  displayNameAnnotation,
  finalizer,
  intentAnnotation,
  type ObjectMeta,
} from '@kellet/crds';
import { KubernetesError } from '@kellet/kubernetes';
import { checkResourceRoom } from '../control/applied-versions.ts';
import { type LastStep, refusalError } from '../control/applier.ts';
import { cancelIfOverdue, cancelIntent, forgetIntent, type Intent, openIntent } from '../control/intents.ts';
import { sleep } from '../platform/clock.ts';
import type { Database, Transaction } from '../platform/database/database.ts';
import { KelletError, unavailable } from '../platform/errors.ts';
import type { KubernetesApi, KubernetesObject } from '../platform/kubernetes/kubernetes.ts';
import type { Logger } from '../platform/observability/logger.ts';
import type { CallContext } from '../platform/rpc.ts';
import { releaseDeleted } from './finalizers.ts';
import { refusedByKubernetes } from './kubernetes-refusals.ts';
import { nameTaken } from './resource-names.ts';

const nouns: Record<Intent['kind'], string> = {
  DeviceProfile: 'profile',
  ProvisioningTemplate: 'template',
  OtaPackage: 'package',
  OtaRollout: 'rollout',
  Tenant: 'tenant',
};

const displayNameOf = ({ metadata }: KubernetesObject<unknown>): string =>
  metadata.annotations?.[displayNameAnnotation] ?? metadata.name;

/** Deadline of a creation, after which it is cancelled. */
const defaultDeadlineMilliseconds = 10_000;

/** How long the outcome of a creation is queried while the database is unavailable. */
const defaultSettleMilliseconds = 30_000;

/** Dependencies and limits of creations. */
export interface CreationsOptions {
  readonly database: Database;
  readonly kubernetes: Pick<KubernetesApi, 'create' | 'get' | 'delete' | 'mergePatch'>;
  readonly logger: Logger;
  readonly deadlineMilliseconds?: number | undefined;
  readonly settleMilliseconds?: number | undefined;
}

/** The steps of one creation. */
export interface Creation<Spec, T> {
  readonly intent: Intent;
  /** The object to POST. */
  readonly object: KubernetesObject<Spec>;
  /** Writes the working copy in one transaction, whose final step is `last`. */
  readonly apply: (
    object: KubernetesObject<Spec>,
    last: LastStep,
  ) => Promise<{ refusal?: { readonly reason: string; readonly message: string } | undefined }>;
  /** Reads the response for the caller. */
  readonly read: (tx: Transaction) => Promise<T>;
}

/** Creates resources. */
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
   * Creates the resource and its working copy. Returns what the transaction that wrote the working copy has read. Throws
   * RESOURCE_EXHAUSTED if the tenant has too many of its kind, ALREADY_EXISTS if the name is taken, INVALID_ARGUMENT if the resource's schema rejects the spec, the error of a
   * refusal, and UNAVAILABLE if the working copy was not written in time; nothing remains after any of these. Throws
   * DEADLINE_EXCEEDED if the outcome is unknown, because the database failed during the COMMIT and did not recover.
   */
  async make<Spec, T>(
    { signal: caller, deadline }: Pick<CallContext, 'signal' | 'deadline'>,
    creation: Creation<Spec, T>,
  ): Promise<T> {
    const { intent } = creation;
    const milliseconds = Math.min(this.deadlineMilliseconds, (deadline ?? Infinity) - Date.now());
    if (milliseconds <= 0 || caller.aborted) throw unavailable('the call ended before the creation began');
    const signal = AbortSignal.any([caller, AbortSignal.timeout(milliseconds)]);
    const { database } = this.options;
    await database.tenant(intent.tenantId, async (tx) => {
      await checkResourceRoom(tx, intent.tenantId, intent.kind);
      await openIntent(tx, intent, milliseconds);
    });
    let isRefused = false;
    try {
      const object = await this.post(intent, creation.object, signal).catch((error: unknown) => {
        // The API server has rejected the resource, so it cannot be applied any more.
        isRefused = error instanceof KelletError && error.code !== 'UNAVAILABLE';
        throw error;
      });
      let response: { value: T } | undefined;
      const applying = creation.apply(object, async (tx) => {
        response = { value: await creation.read(tx) };
      });
      // If the deadline comes first, a later failure must not become an unhandled rejection.
      applying.catch(() => undefined);
      const applied = await Promise.race([applying, aborted(signal)]);
      if (!applied) throw unavailable('the resource could not be applied in time');
      if (applied.refusal) throw refusalError(intent.kind, applied.refusal);
      return response!.value;
    } catch (error) {
      if (isRefused) {
        // Otherwise it is cancelled once it is overdue.
        await database
          .tenant(intent.tenantId, (tx) => forgetIntent(tx, intent.tenantId, intent.intentId))
          .catch(() => undefined);
        throw error;
      }
      const outcome = await this.settled(creation, AbortSignal.timeout(this.settleMilliseconds));
      if (outcome === undefined) throw error;
      return outcome.value;
    }
  }

  /**
   * Cancels the creation unless its intent is active, and retries until the outcome is known. Returns the response, read in
   * the same transaction, or undefined if the creation was cancelled. Throws DEADLINE_EXCEEDED if the outcome is still
   * unknown when the signal aborts.
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
        // Waits for the deletion, but not for an unavailable API server: the sweep deletes what remains.
        if (!outcome) await Promise.race([this.deleteCancelled(intent), sleep(1000)]);
        return outcome;
      } catch (error) {
        if (error instanceof KelletError && error.code !== 'UNAVAILABLE') throw error;
        logger.warn({ err: error, intent: intent.intentId }, 'the outcome of a creation is unknown, will retry');
        if (signal.aborted) throw unknownOutcome(intent, error);
      }
      await sleep(pause, signal);
    }
  }

  /**
   * Checks a resource with a dry run. Throws ALREADY_EXISTS or INVALID_ARGUMENT like `make`.
   */
  async foresee(intent: Intent, object: KubernetesObject<unknown>, signal: AbortSignal): Promise<void> {
    try {
      await this.options.kubernetes.create(intent.kind, object, signal, { dryRun: true });
    } catch (error) {
      if (!(error instanceof KubernetesError)) throw error;
      if (error.failure !== 'alreadyExists') throw refusedByKubernetes(intent.kind, error);
      await this.refuseLiving(intent, object, signal);
    }
  }

  /** Creates the resource. Waits while another one with this name is being deleted or its creation may be cancelled. */
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
      await this.refuseLiving(intent, object, signal);
      await sleep(100, signal);
    }
  }

  /** Throws ALREADY_EXISTS if the name is taken. Deletes an existing resource whose creation was cancelled. */
  private async refuseLiving(
    { tenantId, kind, namespace, name }: Intent,
    wanted: KubernetesObject<unknown>,
    signal: AbortSignal,
  ): Promise<void> {
    const existing = await this.options.kubernetes.get(kind, namespace, name, signal);
    if (!existing || existing.metadata.deletionTimestamp) return;
    const intentId = existing.metadata.annotations?.[intentAnnotation] ?? '';
    const state = await this.options.database.tenant(tenantId, (tx) => cancelIfOverdue(tx, tenantId, intentId));
    if (state === 'cancelled') await this.deleteCancelled({ tenantId, intentId, kind, namespace, name });
    else if (state !== 'pending') throw nameTaken(nouns[kind], displayNameOf(wanted), displayNameOf(existing));
  }

  /**
   * Deletes the resource of a cancelled creation from the cluster. Best effort: the sweep tries again, and the operator
   * deletes it too, because applying it is refused with IntentCancelled.
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
      logger.warn({ err: error, kind, name }, 'failed to delete the resource of a cancelled creation');
    }
  }
}

/** Returns the metadata of a resource to create. */
export function metadataOf({ namespace, name, intentId }: Intent, displayName: string): ObjectMeta {
  return {
    ...(namespace === '' ? {} : { namespace }),
    name,
    labels: { [createdByLabel]: createdByApi },
    // Set at creation, so that even a deletion before the first reconcile is noticed.
    finalizers: [finalizer],
    annotations: { [intentAnnotation]: intentId, [displayNameAnnotation]: displayName },
  };
}

const unknownOutcome = ({ name }: Intent, cause: unknown): KelletError =>
  new KelletError(
    'DEADLINE_EXCEEDED',
    `the database failed while ${name} was being created: check whether it exists before retrying`,
    { cause },
  );

/** Resolves with undefined when the signal aborts. */
const aborted = (signal: AbortSignal): Promise<undefined> =>
  new Promise((resolve) => {
    if (signal.aborted) resolve(undefined);
    else signal.addEventListener('abort', () => resolve(undefined), { once: true });
  });
