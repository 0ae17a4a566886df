// What the control service asks of a service folder: to make its working copy agree with a manifest, or to drop it.
import type { MessageInitShape } from '@bufbuild/protobuf';
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
import type { Kind } from '@kellet/crds';
import type { Transaction } from '../platform/database/database.ts';
import { KelletError, type ErrorCode } from '../platform/errors.ts';
import { inContract } from './field-names.ts';
import type { Specs } from './manifest-mapping.ts';

/** Why a manifest is not honoured → the code that a REST caller gets when their own request led to it. */
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
  Terminated: 'FAILED_PRECONDITION',
} as const satisfies Record<string, ErrorCode>;

/** Machine-readable reason of a refusal, fit for a condition (control.proto, Refusal). */
export type RefusalReason = keyof typeof refusalCodes;

/** Why a manifest is not honoured; the message is for people. */
export interface Refusal {
  readonly reason: RefusalReason;
  readonly message: string;
}

/** A refusal on its way out of a transaction, which it rolls back. An applier may throw it instead of answering it. */
export class RefusalError extends Error implements Refusal {
  readonly reason: RefusalReason;

  constructor(reason: RefusalReason, message: string) {
    super(message);
    this.name = 'RefusalError';
    this.reason = reason;
  }
}

/** What a caller of the API learns of a refusal: its code, and the message with the contract's names of fields. */
export const refusalError = (kind: Kind, refusal: { readonly reason: string; readonly message: string }): KelletError =>
  new KelletError(refusalCodes[refusal.reason as RefusalReason], inContract(kind, refusal.message));

/** What an applier answers: the id in the data plane and, unless it refused, what was observed. */
export interface Applied<Observed> {
  readonly id: string;
  readonly refusal?: Refusal;
  readonly observed?: Observed;
}

/** What a caller of Apply wants done in the transaction that writes the working copy, at its end. */
export type LastStep = (tx: Transaction) => Promise<void>;

/**
 * The working copy of one kind of resource. Both methods are idempotent, and errors mean "try again": what can never be
 * honoured is a refusal, answered or thrown as RefusalError.
 */
export interface Applier<Spec, Observed> {
  /**
   * Makes the working copy agree with the manifest, in one transaction: it calls `takeUp(tx, kind, meta)`
   * (control/applied-versions.ts) first and lets its ABORTED pass, and calls `last(tx)` when the copy is written. What can
   * fail after its COMMIT must not fail the call.
   */
  apply(meta: ObjectMeta, spec: Spec, last?: LastStep): Promise<Applied<Observed>>;
  /**
   * Takes the working copy away, or says what still uses it. With `detach` the namespace is terminating: nothing is
   * refused, what runs is cancelled, and rows that others refer to stay, marked detached.
   */
  remove(meta: ObjectMeta, detach: boolean): Promise<Refusal | undefined>;
}

/** What is observed of each kind, by the name of its field in ApplyResponse.observed. */
interface Observations {
  tenant: MessageInitShape<typeof TenantObservedSchema>;
  deviceProfile: MessageInitShape<typeof DeviceProfileObservedSchema>;
  provisioningTemplate: MessageInitShape<typeof ProvisioningTemplateObservedSchema>;
  otaPackage: MessageInitShape<typeof OtaPackageObservedSchema>;
  otaRollout: MessageInitShape<typeof OtaRolloutObservedSchema>;
}

/** The applier of each kind. */
export type Appliers = { [K in Kind]: Applier<Specs[K], Observations[Uncapitalize<K>]> };

/** Carries out the operator's decisions about rollouts (device-link/ota). */
export interface RolloutDriver {
  /**
   * Carries out one decision if the rollout still is in the revision it was made on and nothing has paused it since.
   * Throws NOT_FOUND for an unknown rollout.
   */
  advance(request: AdvanceRolloutRequest): Promise<MessageInitShape<typeof AdvanceRolloutResponseSchema>>;
}
