// Generated from the custom resource definitions by crds/generate.ts. Do not edit.
import type { ObjectMeta } from '../object-meta.ts';
import type { AnchoringPolicy, Condition, OtaPolicy, TelemetrySchema } from './shared.ts';

/**
 * Tenant is a customer of the installation; its metadata.name is the tenant_id. The operator creates the namespace kellet-<name>, or adopts the one named in spec.namespace if it has the label kellet.dev/tenant=<name>. Deleting a Tenant refuses everything of the tenant at once. The resource and the namespace stay for a period of grace, in which the tenant can be restored through the API; then all its data is purged. Its name cannot be reused.
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
 * Desired limits, defaults and first administrator.
 */
export interface TenantSpec {
  /**
   * Display name. Defaults to metadata.name.
   */
  name?: string;
  /**
   * Namespace of the tenant's resources. Defaults to kellet-<metadata.name>. An existing namespace is adopted only if it is named here and has the label kellet.dev/tenant=<metadata.name>.
   */
  namespace?: string;
  /**
   * E-mail address of the first tenant administrator. Without adminPasswordSecretRef, the operator generates a password into the Secret <name>-admin in the tenant's namespace (data key password).
   */
  adminEmail?: string;
  /**
   * Secret that contains the first administrator's password (at least 12 characters), in the tenant's namespace or the operator's.
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
     * Data key in the Secret.
     */
    key?: string;
  };
  /**
   * Maximum number of requests per minute. Defaults to the installation's setting.
   */
  rateLimitPerMinute?: number;
  /**
   * Quotas of the tenant. Absent or 0 means unlimited.
   */
  quotas?: {
    /**
     * Maximum number of devices.
     */
    devices?: number;
    /**
     * Maximum number of telemetry points per day (UTC).
     */
    pointsPerDay?: number;
    /**
     * Maximum size of all artifacts in bytes, including those being transferred.
     */
    storageBytes?: number;
    /**
     * Maximum number of anchoring transactions per day (UTC). Batches are sealed no more often than this allows for, but at least every hour.
     */
    anchorsPerDay?: number;
  };
  /**
   * Networks from which the tenant's credentials are accepted. Empty means everywhere.
   *
   * @maxItems 64
   *
   * Items: Network in CIDR notation.
   */
  ipAllowlist?: string[];
  /**
   * Days that the values of points are kept, counted from their own time; 0 means for ever. Proofs are kept in any case.
   */
  retentionDays?: number;
  /**
   * Least seconds after which a batch of the tenant's points is sealed, if that is longer than the installation's setting: the tenant pays for fewer transactions, and proofs come later. 0 means the installation's setting.
   */
  batchSeconds?: number;
  /**
   * Whether users must use a second factor.
   */
  mfaRequired?: boolean;
  /**
   * Defaults for devices without a profile.
   */
  defaults?: {
    /**
     * Tags that such a device inherits. Its own tags take precedence.
     */
    tags?: {
      /**
       * Value of the tag.
       */
      [k: string]: string;
    };
    /**
     * Schema of telemetry points. Points that do not match are rejected individually.
     */
    telemetrySchema?: TelemetrySchema;
    /**
     * Update policy for these devices. A rollout's own values take precedence.
     */
    otaPolicy?: OtaPolicy;
    /**
     * Seconds without activity after which such a device counts as offline.
     */
    offlineAfterSeconds?: number;
    /**
     * How the points of such devices are anchored on the blockchain. Defaults to Merkle.
     */
    anchoringPolicy?: AnchoringPolicy;
  };
  /**
   * Ed25519 public keys whose signatures on packages are trusted.
   *
   * @maxItems 16
   *
   * Items: Public key in PEM format.
   */
  trustedSigningKeys?: string[];
}
/**
 * Last observed state. Written only by the operator.
 */
export interface TenantStatus {
  /**
   * metadata.generation to which this status refers.
   */
  observedGeneration?: number;
  /**
   * Namespace of the tenant's resources.
   */
  namespace?: string;
  /**
   * metadata.uid of that namespace. A recreated namespace with the same name does not belong to the tenant.
   */
  namespaceUid?: string;
  /**
   * Conditions: Accepted, ReferencesResolved, Synced, and their summary Ready.
   */
  conditions?: Condition[];
}
