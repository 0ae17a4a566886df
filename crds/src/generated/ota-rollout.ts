// Generated from the custom resource definitions by crds/generate.ts. Do not edit.
import type { ObjectMeta } from '../object-meta.ts';
import type { Condition, UpdateWindow } from './shared.ts';

/**
 * OtaRollout delivers an OtaPackage to the devices of a DeviceProfile, first to a canary, then in steps. It pauses automatically if too many devices fail. Pause, resume and rollback commands (REST, kubectl kellet) are stored in the data plane and shown in status; they never change spec, which remains under Git's control. Editing spec does not restart a finished rollout: create one with a new name instead.
 */
export interface OtaRollout {
  /**
   * Version of this schema, kellet.dev/v1alpha1.
   */
  apiVersion: 'kellet.dev/v1alpha1';
  /**
   * Kind of the resource, OtaRollout.
   */
  kind: 'OtaRollout';
  /**
   * Standard object metadata.
   */
  metadata: ObjectMeta;
  spec: OtaRolloutSpec;
  status?: OtaRolloutStatus;
}
/**
 * Desired rollout.
 */
export interface OtaRolloutSpec {
  /**
   * OtaPackage to deliver, in the same namespace.
   */
  packageRef: {
    /**
     * Name of the OtaPackage.
     */
    name: string;
  };
  /**
   * DeviceProfile whose devices are updated, in the same namespace.
   */
  targetProfileRef: {
    /**
     * Name of the DeviceProfile.
     */
    name: string;
  };
  /**
   * OtaPackage that a rollback delivers, in the same namespace.
   */
  rollbackPackageRef?: {
    /**
     * Name of the OtaPackage.
     */
    name: string;
  };
  /**
   * Percentage of the eligible devices in the first stage, rounded up to at least one device. Raising it expands a running rollout; lowering it has no effect on devices already scheduled.
   */
  canaryPercent: number;
  /**
   * The rollout pauses when more than this percentage of the scheduled devices has failed.
   */
  failureThresholdPercent?: number;
  /**
   * Minimum number of failures before the rollout pauses.
   */
  minFailures?: number;
  /**
   * Stages after the canary. Without steps the rollout does not expand automatically.
   *
   * @maxItems 20
   *
   * Items: Stage of the rollout.
   */
  steps?: {
    /**
     * Percentage of the eligible devices that is scheduled once the stage has begun.
     */
    percent: number;
    /**
     * Seconds to wait after the last report of the previous stage, with failures staying below the threshold.
     */
    soakSeconds?: number;
    /**
     * Whether the stage requires approval before it begins.
     */
    approval?: boolean;
  }[];
  /**
   * Maximum number of update commands per minute. Unlimited by default.
   */
  maxPerMinute?: number;
  /**
   * Seconds from delivery of the update command until a device without a report counts as failed. Defaults to the profile's value.
   */
  deviceTimeoutSeconds?: number;
  /**
   * Maximum number of update attempts per device before it counts as failed. Defaults to the profile's value.
   */
  maxAttempts?: number;
  /**
   * Time window in which update commands may be sent. Scheduling does not depend on it.
   */
  window?: UpdateWindow;
  /**
   * Holds the rollout while true, regardless of pause and resume commands. Leave it unset to let those commands decide.
   */
  paused?: boolean;
  /**
   * RolledBack delivers the rollback package to every device that the update has reached.
   */
  desiredState?: 'Run' | 'RolledBack';
}
/**
 * Last observed state. Written only by the operator.
 */
export interface OtaRolloutStatus {
  /**
   * metadata.generation to which this status refers.
   */
  observedGeneration?: number;
  /**
   * Id in the REST and gRPC API (a UUIDv5 of tenant, name, package and profile).
   */
  rolloutId?: string;
  /**
   * Phase of the rollout. Completed is final.
   */
  phase?: 'Active' | 'Paused' | 'RollingBack' | 'Completed';
  /**
   * Outcome of a completed rollout.
   */
  outcome?: 'Succeeded' | 'RolledBack' | 'Cancelled';
  /**
   * What the rollout is waiting for.
   */
  message?: string;
  /**
   * Number of devices that were scheduled initially.
   */
  scheduledCount?: number;
  /**
   * Number of devices by state.
   */
  counts?: {
    /**
     * Devices on which the package may be installed.
     */
    eligible?: number;
    /**
     * Devices scheduled so far, in any state.
     */
    scheduled?: number;
    /**
     * Devices that have received the update command.
     */
    sent?: number;
    /**
     * Devices that reported the new version.
     */
    succeeded?: number;
    /**
     * Number of devices that reported failure.
     */
    failed?: number;
    /**
     * Devices that did not report in time.
     */
    timedOut?: number;
    /**
     * Devices that were skipped.
     */
    skipped?: number;
    /**
     * Devices that have left: deleted, moved to another profile, or given an assignment of their own. One that comes back no longer counts.
     */
    removed?: number;
  };
  /**
   * Percentage of the scheduled devices that failed, rounded up so that it exceeds the threshold whenever the exact value does.
   */
  failurePercent?: number;
  /**
   * Percentage currently in effect: the maximum of canaryPercent, the steps that have begun, and raises by resume commands.
   */
  effectivePercent?: number;
  /**
   * Reasons why the rollout is paused. It runs when there are none and spec.paused is not true.
   *
   * @maxItems 8
   *
   * Items: Reason for the pause.
   */
  pauseConditions?: {
    /**
     * Machine-readable reason.
     */
    reason: 'OperatorPause' | 'FailureThresholdExceeded' | 'StepApproval' | 'SignatureRequired';
    /**
     * Time at which the pause began.
     */
    startTime: string;
    /**
     * Who requested the pause; kellet if it was automatic.
     */
    by?: string;
  }[];
  /**
   * State set by rollout commands, mirrored from the data plane.
   */
  control?: {
    /**
     * Percentage to which a resume command raised the rollout.
     */
    expandedToPercent?: number;
    /**
     * Number of failures accepted by resume commands.
     */
    acknowledgedFailures?: number;
    /**
     * Time at which the rollback was requested.
     */
    rollbackRequestedAt?: string;
    /**
     * Who sent the last command.
     */
    by?: string;
  };
  /**
   * Conditions: Accepted, ReferencesResolved, Synced, Progressing, Degraded, and their summary Ready. PercentLowered if the spec was lowered, which takes no device out of the rollout.
   */
  conditions?: Condition[];
}
