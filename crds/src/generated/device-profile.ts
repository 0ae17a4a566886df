// Generated from the custom resource definitions by crds/generate.ts. Do not edit.
import type { ObjectMeta } from '../object-meta.ts';
import type { AnchoringPolicy, Condition, OtaPolicy, TelemetrySchema } from './shared.ts';

/**
 * DeviceProfile holds the defaults a device inherits: tags, telemetry schema, anchoring policy and update policy. Devices join it through a ProvisioningTemplate or the REST API.
 */
export interface DeviceProfile {
  /**
   * Version of this schema, kellet.dev/v1alpha1.
   */
  apiVersion: 'kellet.dev/v1alpha1';
  /**
   * Kind of the resource, DeviceProfile.
   */
  kind: 'DeviceProfile';
  /**
   * Standard object metadata.
   */
  metadata: ObjectMeta;
  spec: DeviceProfileSpec;
  status?: DeviceProfileStatus;
}
/**
 * The defaults, as they are wanted.
 */
export interface DeviceProfileSpec {
  /**
   * Device type label, compared with compatibility.deviceType of an OtaPackage.
   */
  type?: string;
  /**
   * Tags that every device of the profile inherits; a device's own tags win.
   */
  defaultTags?: {
    /**
     * Value of the tag.
     */
    [k: string]: string;
  };
  /**
   * How the points of these devices are committed to the blockchain; the tenant's default when absent.
   */
  anchoringPolicy?: AnchoringPolicy;
  /**
   * What a telemetry point may hold. Points that do not fit are rejected one by one.
   */
  telemetrySchema?: TelemetrySchema;
  /**
   * How updates reach these devices; a rollout's own values win.
   */
  otaPolicy?: OtaPolicy;
  /**
   * Seconds after its last sign of life at which a device counts as offline; the tenant's default when absent.
   */
  offlineAfterSeconds?: number;
}
/**
 * What the operator last observed. Written by the operator alone.
 */
export interface DeviceProfileStatus {
  /**
   * metadata.generation that the rest of the status speaks of.
   */
  observedGeneration?: number;
  /**
   * The id that the REST and gRPC API use (a UUIDv5 of tenant, kind and name).
   */
  profileId?: string;
  /**
   * Devices of the profile when the status was written.
   */
  devices?: number;
  /**
   * Accepted, Synced and their summary Ready.
   */
  conditions?: Condition[];
}
