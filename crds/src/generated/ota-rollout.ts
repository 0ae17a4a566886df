// Generated from the custom resource definitions by crds/generate.ts. Do not edit.
import type { ObjectMeta } from '../object-meta.ts';
import type { Condition, UpdateWindow } from './shared.ts';

/**
 * OtaRollout delivers an OtaPackage to the devices of a DeviceProfile, a canary first, then in steps. It pauses itself when too many devices fail. Pausing, resuming and rolling back by verb are kept by the data plane and shown in status; they never write spec, so that Git stays in charge of it. Editing spec never starts the rollout again; to run again, make one with a new name.
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
 * What is delivered to whom, and how carefully.
 */
export interface OtaRolloutSpec {
  /**
   * OtaPackage in the same namespace that is delivered.
   */
  packageRef: {
    /**
     * Name of the OtaPackage.
     */
    name: string;
  };
  /**
   * DeviceProfile in the same namespace whose devices are updated.
   */
  targetProfileRef: {
    /**
     * Name of the DeviceProfile.
     */
    name: string;
  };
  /**
   * OtaPackage in the same namespace that a rollback delivers.
   */
  rollbackPackageRef?: {
    /**
     * Name of the OtaPackage.
     */
    name: string;
  };
  /**
   * Share of the eligible devices in the first stage, rounded up, at least one. Raising it expands a running rollout; lowering it takes nothing back.
   */
  canaryPercent: number;
  /**
   * The rollout pauses itself when the failed share of the scheduled devices is above this.
   */
  failureThresholdPercent?: number;
  /**
   * Failures below this number never pause the rollout.
   */
  minFailures?: number;
  /**
   * Stages that follow the canary. Without steps nothing expands by itself.
   *
   * @maxItems 20
   *
   * Items: One stage.
   */
  steps?: {
    /**
     * Share of the eligible devices that is scheduled once the stage has begun.
     */
    percent: number;
    /**
     * Seconds that the stage before must have rested below the threshold, counted from its last report.
     */
    soakSeconds?: number;
    /**
     * Whether somebody must approve the stage before it begins.
     */
    approval?: boolean;
  }[];
  /**
   * How many update commands are sent in a minute at most; no limit when absent.
   */
  maxPerMinute?: number;
  /**
   * Seconds from delivery of the update command until a device that has not reported counts as failed; the profile's value when absent.
   */
  deviceTimeoutSeconds?: number;
  /**
   * How often the update command is sent to one device before it counts as failed; the profile's value when absent.
   */
  maxAttempts?: number;
  /**
   * When update commands may be sent. Scheduling is not held back by it.
   */
  window?: UpdateWindow;
  /**
   * While true nothing is scheduled, whatever the verbs say. Leave it out to let pause and resume decide.
   */
  paused?: boolean;
  /**
   * RolledBack asks for the rollback package on every device that the update reached.
   */
  desiredState?: 'Run' | 'RolledBack';
}
/**
 * What the operator last observed. Written by the operator alone.
 */
export interface OtaRolloutStatus {
  /**
   * metadata.generation that the rest of the status speaks of.
   */
  observedGeneration?: number;
  /**
   * The id that the REST and gRPC API use (a UUIDv5 of tenant, name, package and profile).
   */
  rolloutId?: string;
  /**
   * Where the rollout stands. Completed is final.
   */
  phase?: 'Active' | 'Paused' | 'RollingBack' | 'Completed';
  /**
   * How a completed rollout ended.
   */
  outcome?: 'Succeeded' | 'RolledBack' | 'Cancelled';
  /**
   * What the rollout waits for, for people.
   */
  message?: string;
  /**
   * Devices that were scheduled initially.
   */
  scheduledCount?: number;
  /**
   * Devices of the rollout by state.
   */
  counts?: {
    /**
     * Devices that the package may be installed on.
     */
    eligible?: number;
    /**
     * Devices scheduled so far, whatever became of them.
     */
    scheduled?: number;
    /**
     * Devices that the update command has reached.
     */
    sent?: number;
    /**
     * Devices that reported the new version.
     */
    succeeded?: number;
    /**
     * Devices that reported failure.
     */
    failed?: number;
    /**
     * Devices that did not report in time.
     */
    timedOut?: number;
    /**
     * Devices that an operator took out of the rollout.
     */
    skipped?: number;
    /**
     * Devices that were deleted or left the profile.
     */
    removed?: number;
  };
  /**
   * Failed share of the scheduled devices, rounded up, so that it is above the threshold when the share is.
   */
  failurePercent?: number;
  /**
   * Share in force, the greatest of canaryPercent, steps begun and raises by verb.
   */
  effectivePercent?: number;
  /**
   * Everything that holds the rollout. It runs when none is left and spec.paused is not true.
   *
   * @maxItems 8
   *
   * Items: One cause.
   */
  pauseConditions?: {
    /**
     * The cause.
     */
    reason: 'OperatorPause' | 'FailureThresholdExceeded' | 'StepApproval';
    /**
     * Since when.
     */
    startTime: string;
    /**
     * Who asked for it; kellet when the system did.
     */
    by?: string;
  }[];
  /**
   * What verbs have asked for. The data plane keeps it; this is its mirror.
   */
  control?: {
    /**
     * Percent that a verb raised the rollout to.
     */
    expandedToPercent?: number;
    /**
     * Failures that a resume has accepted.
     */
    acknowledgedFailures?: number;
    /**
     * When the rollback was asked for.
     */
    rollbackRequestedAt?: string;
    /**
     * Who asked last.
     */
    by?: string;
  };
  /**
   * Accepted, ReferencesResolved, Synced, Progressing, Degraded and their summary Ready.
   */
  conditions?: Condition[];
}
