// Generated from the custom resource definitions by crds/generate.ts. Do not edit.
import type { ObjectMeta } from '../object-meta.ts';
import type { AnchoringPolicy, Condition, OtaPolicy, TelemetrySchema } from './shared.ts';

/**
 * Tenant is one customer of the installation; its metadata.name is the tenant_id. The operator makes the namespace kellet-<name>, or adopts the one that spec.namespace names and that carries the label kellet.dev/tenant=<name>. Deleting a Tenant ends every credential of the tenant at once and never frees its name; the tenant's devices, telemetry and proofs stay in the database.
 */
export interface Tenant {
  /**
   * Version of this schema, kellet.dev/v1alpha1.
   */
  apiVersion: 'kellet.dev/v1alpha1';
  /**
   * Kind of the resource, Tenant.
   */
  kind: 'Tenant';
  /**
   * Standard object metadata.
   */
  metadata: ObjectMeta;
  spec: TenantSpec;
  status?: TenantStatus;
}
/**
 * The tenant's limits, defaults and first administrator.
 */
export interface TenantSpec {
  /**
   * Name for people; metadata.name when absent.
   */
  name?: string;
  /**
   * Namespace of the tenant's resources; kellet-<metadata.name> when absent. One that exists already is adopted if it is named here and carries the label kellet.dev/tenant=<metadata.name>.
   */
  namespace?: string;
  /**
   * E-mail of the first tenant administrator. Without adminPasswordSecretRef the operator generates a password into the Secret <name>-admin in the tenant's namespace (data key password).
   */
  adminEmail?: string;
  /**
   * Secret that holds the first administrator's password, at least 12 characters. It lies in the tenant's namespace or in the operator's own.
   */
  adminPasswordSecretRef?: {
    /**
     * Namespace of the Secret.
     */
    namespace: string;
    /**
     * Name of the Secret.
     */
    name: string;
    /**
     * Data key inside the Secret.
     */
    key?: string;
  };
  /**
   * Requests that the tenant may make in a minute; the installation's default when absent.
   */
  rateLimitPerMinute?: number;
  /**
   * What the tenant may use. What is absent or 0 is not limited.
   */
  quotas?: {
    /**
     * Living devices.
     */
    devices?: number;
    /**
     * Telemetry points in a day (UTC).
     */
    pointsPerDay?: number;
    /**
     * Bytes of artifacts, stored or on their way.
     */
    storageBytes?: number;
    /**
     * Anchoring transactions in a day (UTC).
     */
    anchorsPerDay?: number;
  };
  /**
   * Networks from which the tenant's credentials work; from everywhere when empty.
   *
   * @maxItems 64
   *
   * Items: A network in CIDR form.
   */
  ipAllowlist?: string[];
  /**
   * Whether users must have a second factor.
   */
  mfaRequired?: boolean;
  /**
   * Defaults for devices without a profile.
   */
  defaults?: {
    /**
     * Tags that such a device inherits; its own tags win.
     */
    tags?: {
      /**
       * Value of the tag.
       */
      [k: string]: string;
    };
    /**
     * What a telemetry point may hold. Points that do not fit are rejected one by one.
     */
    telemetrySchema?: TelemetrySchema;
    /**
     * How updates reach these devices; a rollout's own values win.
     */
    otaPolicy?: OtaPolicy;
    /**
     * Seconds after its last sign of life at which such a device counts as offline.
     */
    offlineAfterSeconds?: number;
    /**
     * How the points of such devices are committed to the blockchain; Merkle when absent.
     */
    anchoringPolicy?: AnchoringPolicy;
  };
  /**
   * Ed25519 public keys whose signatures on packages are trusted.
   *
   * @maxItems 16
   *
   * Items: A public key in PEM form.
   */
  trustedSigningKeys?: string[];
}
/**
 * What the operator last observed. Written by the operator alone.
 */
export interface TenantStatus {
  /**
   * metadata.generation that the rest of the status speaks of.
   */
  observedGeneration?: number;
  /**
   * Namespace of the tenant's resources.
   */
  namespace?: string;
  /**
   * metadata.uid of that namespace; another one of its name is not the tenant's.
   */
  namespaceUid?: string;
  /**
   * Accepted, ReferencesResolved, Synced and their summary Ready.
   */
  conditions?: Condition[];
}
