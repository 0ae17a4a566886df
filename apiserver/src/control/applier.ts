// The interface through which the control service updates and removes the working copies of the other services.
import type { MessageInitShape } from '@bufbuild/protobuf';
import type { Kind } from '@kellet/crds';
import type {
  AdvanceRolloutRequest,
  AdvanceRolloutResponseSchema,
  DeviceProfileObservedSchema,
  ObjectMeta,
  OtaPackageObservedSchema,
  OtaRolloutObservedSchema,
  ProvisioningTemplateObservedSchema,
  TenantObservedSchema,
} from '@kellet/proto/es/kellet/control/v1/control_pb.ts';
import type { Transaction } from '../platform/database/database.ts';
import { type ErrorCode, KelletError } from '../platform/errors.ts';
import { inContract } from './field-names.ts';
import type { Specs } from './manifest-mapping.ts';

/** Reasons for which a manifest is rejected, each with the error code returned to a REST caller. */
const refusalCodes = {
  ReferenceNotFound: 'NOT_FOUND',
  ReferenceNotReady: 'FAILED_PRECONDITION',
  InvalidSpec: 'INVALID_ARGUMENT',
  ChecksumMismatch: 'INVALID_ARGUMENT',
  FetchFailed: 'FAILED_PRECONDITION',
  SignatureRequired: 'FAILED_PRECONDITION',
  SignatureInvalid: 'INVALID_ARGUMENT',
  RolloutInProgress: 'ALREADY_EXISTS',
  Immutable: 'FAILED_PRECONDITION',
  InUse: 'FAILED_PRECONDITION',
  IntentCancelled: 'UNAVAILABLE',
  TenantUnknown: 'FAILED_PRECONDITION',
  TenantDeleted: 'FAILED_PRECONDITION',
  TenantRestored: 'FAILED_PRECONDITION',
  Terminated: 'FAILED_PRECONDITION',
} as const satisfies Record<string, ErrorCode>;

/** Machine-readable reason of a refusal, usable in a condition (control.proto, Refusal). */
export type RefusalReason = keyof typeof refusalCodes;

/** Why a manifest is rejected, with a human-readable message. */
export interface Refusal {
  readonly reason: RefusalReason;
  readonly message: string;
}

/** A refusal that is thrown, to roll back the transaction. An applier may throw it instead of returning it. */
export class RefusalError extends Error implements Refusal {
  readonly reason: RefusalReason;

  constructor(reason: RefusalReason, message: string) {
    super(message);
    this.name = 'RefusalError';
    this.reason = reason;
  }
}

/** Returns the error for a caller of the API: the code of the refusal, and its message with the API's field names. */
export const refusalError = (kind: Kind, refusal: { readonly reason: string; readonly message: string }): KelletError =>
  new KelletError(refusalCodes[refusal.reason as RefusalReason], inContract(kind, refusal.message));

/** Result of an Apply: the id in the data plane, and either the refusal or the observation. */
export interface Applied<Observed> {
  readonly id: string;
  readonly refusal?: Refusal;
  readonly observed?: Observed;
}

/** A step that a caller of Apply adds at the end of the transaction that writes the working copy. */
export type LastStep = (tx: Transaction) => Promise<void>;

/**
 * Maintains the working copies of one kind. Both methods are idempotent. An error means that the call may be retried; a
 * manifest that cannot be applied is a refusal, returned or thrown as RefusalError.
 */
export interface Applier<Spec, Observed> {
  /**
   * Makes the working copy match the manifest, in one transaction: calls `takeUp(tx, kind, meta)`
   * (control/applied-versions.ts) first, without catching its ABORTED, and `last(tx)` once the copy is written. Work after
   * the COMMIT must not make the call fail.
   */
  apply(meta: ObjectMeta, spec: Spec, last?: LastStep): Promise<Applied<Observed>>;
  /**
   * Removes the working copy, or returns a refusal that names what still uses it. With `detach` the namespace is
   * terminating: nothing is refused, running work is cancelled, and rows that others refer to are kept and marked
   * detached. A Tenant then has no namespace any more.
   */
  remove(meta: ObjectMeta, detach: boolean): Promise<Refusal | undefined>;
}

/** The observation of each kind, by the name of its field in ApplyResponse.observed. */
interface Observations {
  tenant: MessageInitShape<typeof TenantObservedSchema>;
  deviceProfile: MessageInitShape<typeof DeviceProfileObservedSchema>;
  provisioningTemplate: MessageInitShape<typeof ProvisioningTemplateObservedSchema>;
  otaPackage: MessageInitShape<typeof OtaPackageObservedSchema>;
  otaRollout: MessageInitShape<typeof OtaRolloutObservedSchema>;
}

/** The applier of each kind. */
export type Appliers = { [K in Kind]: Applier<Specs[K], Observations[Uncapitalize<K>]> };

/** Executes the operator's decisions about rollouts (device-link/ota). */
export interface RolloutDriver {
  /**
   * Executes one decision if the rollout still has the revision for which it was made and has not been paused since.
   * Throws NOT_FOUND for an unknown rollout.
   */
  advance(request: AdvanceRolloutRequest): Promise<MessageInitShape<typeof AdvanceRolloutResponseSchema>>;
}
