// Generated from the custom resource definitions by crds/generate.ts. Do not edit.
import type { ObjectMeta } from '../object-meta.ts';
import type { AnchoringPolicy, Condition, OtaPolicy, TelemetrySchema } from './shared.ts';

/**
 * DeviceProfile defines defaults that devices inherit: tags, telemetry schema, anchoring policy and update policy. Devices join it through a ProvisioningTemplate or the REST API.
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
 * Desired defaults.
 */
export interface DeviceProfileSpec {
  /**
   * Device type label, compared with compatibility.deviceType of an OtaPackage.
   */
  type?: string;
  /**
   * Tags that every device of the profile inherits. A device's own tags take precedence.
   */
  defaultTags?: {
    /**
     * Value of the tag.
     */
    [k: string]: string;
  };
  /**
   * How the points of these devices are anchored on the blockchain. Defaults to the tenant's setting.
   */
  anchoringPolicy?: AnchoringPolicy;
  /**
   * Schema of telemetry points. Points that do not match are rejected individually.
   */
  telemetrySchema?: TelemetrySchema;
  /**
   * Update policy for these devices. A rollout's own values take precedence.
   */
  otaPolicy?: OtaPolicy;
  /**
   * Seconds without activity after which a device counts as offline. Defaults to the tenant's setting.
   */
  offlineAfterSeconds?: number;
}
/**
 * Last observed state. Written only by the operator.
 */
export interface DeviceProfileStatus {
  /**
   * metadata.generation to which this status refers.
   */
  observedGeneration?: number;
  /**
   * Id in the REST and gRPC API (a UUIDv5 of tenant, kind and name).
   */
  profileId?: string;
  /**
   * Number of devices of the profile when the status was written.
   */
  devices?: number;
  /**
   * Conditions: Accepted, Synced, and their summary Ready.
   */
  conditions?: Condition[];
}
