// Generated from the custom resource definitions by crds/generate.ts. Do not edit.
import type { ObjectMeta } from '../object-meta.ts';
import type { Condition } from './shared.ts';

/**
 * ProvisioningTemplate lets devices claim an identity with a provision key. The operator mints the key into the Secret <name>-provision-key (data key provisionKey) unless keySecretRef or keySha256 gives one.
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
 * Who may claim, with which key, and what a claim gives.
 */
export interface ProvisioningTemplateSpec {
  /**
   * DeviceProfile in the same namespace that claimed devices join.
   */
  profileRef: {
    /**
     * Name of the DeviceProfile.
     */
    name: string;
  };
  /**
   * Hardware ids that may claim: * stands for any run of characters, ? for one, everything else for itself.
   */
  hardwareIdPattern?: string;
  /**
   * Once marks the key used after one new device has claimed with it.
   */
  keyUse?: 'Once' | 'Unlimited';
  /**
   * Seconds from the key's issue until it expires; it never expires when absent.
   */
  expiresInSeconds?: number;
  /**
   * What a claim answers with.
   */
  credentialType?: 'ApiKey' | 'Psk' | 'Certificate';
  /**
   * Ids of the device groups that each claimed device joins.
   *
   * @maxItems 32
   *
   * Items: Id of a device group.
   */
  defaultGroups?: string[];
  /**
   * Secret in the same namespace that holds the provision key to use.
   */
  keySecretRef?: {
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
   * SHA-256 of the provision key, for whoever keeps the key itself elsewhere. It needs keyBinding.
   */
  keySha256?: string;
  /**
   * SHA-256 of the text kellet-provision-key:<tenant>:<key>. It shows that whoever wrote the manifest has the key, so that a copy of keySha256 opens nothing in another tenant.
   */
  keyBinding?: string;
  /**
   * While true no claim is accepted with this template's key.
   */
  suspended?: boolean;
}
/**
 * What the operator last observed. Written by the operator alone.
 */
export interface ProvisioningTemplateStatus {
  /**
   * metadata.generation that the rest of the status speaks of.
   */
  observedGeneration?: number;
  /**
   * The id that the REST and gRPC API use (a UUIDv5 of tenant, kind and name).
   */
  templateId?: string;
  /**
   * State of the provision key.
   */
  keyState?: 'Active' | 'Used' | 'Expired' | 'Disabled';
  /**
   * When the key expires; absent when it never does.
   */
  keyExpiresAt?: string;
  /**
   * Secret that holds the provision key; absent when only its hash is known.
   */
  keySecretName?: string;
  /**
   * Devices that claimed an identity with this template.
   */
  claims?: number;
  /**
   * Accepted, ReferencesResolved, KeyIssued, Synced and their summary Ready.
   */
  conditions?: Condition[];
}
