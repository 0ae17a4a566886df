// Generated from the custom resource definitions by crds/generate.ts. Do not edit.
import type { ObjectMeta } from '../object-meta.ts';
import type { Condition } from './shared.ts';

/**
 * ProvisioningTemplate lets devices claim an identity with a provision key. The operator generates the key into the Secret <name>-provision-key (data key provisionKey) unless keySecretRef or keySha256 is set.
 */
export interface ProvisioningTemplate {
  /**
   * Version of this schema, kellet.dev/v1alpha1.
   */
  apiVersion: 'kellet.dev/v1alpha1';
  /**
   * Kind of the resource, ProvisioningTemplate.
   */
  kind: 'ProvisioningTemplate';
  /**
   * Standard object metadata.
   */
  metadata: ObjectMeta;
  spec: ProvisioningTemplateSpec;
  status?: ProvisioningTemplateStatus;
}
/**
 * Desired template.
 */
export interface ProvisioningTemplateSpec {
  /**
   * DeviceProfile that claimed devices join, in the same namespace.
   */
  profileRef: {
    /**
     * Name of the DeviceProfile.
     */
    name: string;
  };
  /**
   * Pattern of hardware ids that may claim: * matches any number of characters, ? exactly one.
   */
  hardwareIdPattern?: string;
  /**
   * Once invalidates the key for further devices after the first one has claimed with it.
   */
  keyUse?: 'Once' | 'Unlimited';
  /**
   * Seconds from the issue of the key until it expires. Never expires by default.
   */
  expiresInSeconds?: number;
  /**
   * Type of credential that a claim returns.
   */
  credentialType?: 'ApiKey' | 'Psk' | 'Certificate';
  /**
   * Ids of the device groups that claimed devices join.
   *
   * @maxItems 32
   *
   * Items: Id of a device group.
   */
  defaultGroups?: string[];
  /**
   * Secret that contains the provision key, in the same namespace.
   */
  keySecretRef?: {
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
   * SHA-256 of the provision key, if the key itself is stored elsewhere. Requires keyBinding.
   */
  keySha256?: string;
  /**
   * SHA-256 of the text kellet-provision-key:<tenant>:<key>. Proves that the author of the manifest has the key, so that a copy of keySha256 is useless in another tenant.
   */
  keyBinding?: string;
  /**
   * Rejects all claims with this template's key while true.
   */
  suspended?: boolean;
}
/**
 * Last observed state. Written only by the operator.
 */
export interface ProvisioningTemplateStatus {
  /**
   * metadata.generation to which this status refers.
   */
  observedGeneration?: number;
  /**
   * Id in the REST and gRPC API (a UUIDv5 of tenant, kind and name).
   */
  templateId?: string;
  /**
   * State of the provision key.
   */
  keyState?: 'Active' | 'Used' | 'Expired' | 'Disabled';
  /**
   * Time at which the key expires; absent if it never does.
   */
  keyExpiresAt?: string;
  /**
   * Secret that contains the provision key; absent if only its hash is known.
   */
  keySecretName?: string;
  /**
   * Number of devices that claimed an identity with this template.
   */
  claims?: number;
  /**
   * Conditions: Accepted, ReferencesResolved, KeyIssued, Synced, and their summary Ready.
   */
  conditions?: Condition[];
}
