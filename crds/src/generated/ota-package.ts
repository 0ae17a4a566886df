// Generated from the custom resource definitions by crds/generate.ts. Do not edit.
import type { ObjectMeta } from '../object-meta.ts';
import type { Condition } from './shared.ts';

/**
 * OtaPackage is a build of firmware or software. The data plane fetches the artifact and verifies its checksum before the package can be rolled out. Type, version and artifact are immutable: create a new OtaPackage for a new build.
 */
export interface OtaPackage {
  /**
   * Version of this schema, kellet.dev/v1alpha1.
   */
  apiVersion: 'kellet.dev/v1alpha1';
  /**
   * Kind of the resource, OtaPackage.
   */
  kind: 'OtaPackage';
  /**
   * Standard object metadata.
   */
  metadata: ObjectMeta;
  spec: OtaPackageSpec;
  status?: OtaPackageStatus;
}
/**
 * Desired package.
 */
export interface OtaPackageSpec {
  /**
   * Firmware replaces a device's firmware, Software an application running on it.
   */
  type: 'Firmware' | 'Software';
  /**
   * Semantic version of the build.
   */
  version: string;
  /**
   * File that devices download.
   */
  artifact: {
    /**
     * Source of the file: an https or s3 URL to fetch it from, or exactly upload:// for a file that is uploaded to Kellet. Plain http works only for servers that the installation allows.
     */
    uri: string;
    /**
     * SHA-256 of the file.
     */
    sha256: string;
    /**
     * Size of the file in bytes. If set, a file of any other size is rejected.
     */
    sizeBytes?: number;
    /**
     * Ed25519 signature over the file's SHA-256 digest, in base64, by one of the tenant's trustedSigningKeys.
     */
    signature?: string;
  };
  /**
   * Secret in the same namespace, of type kellet.dev/artifact-credentials, with the credentials of a private source. Its data key prefix is the beginning of the addresses to which they may be sent.
   */
  artifactSecretRef?: {
    /**
     * Name of the Secret.
     */
    name: string;
  };
  /**
   * Restricts the devices on which the build may be installed. Absent fields are not checked.
   */
  compatibility?: {
    /**
     * Device type that the device's profile must have.
     */
    deviceType?: string;
    /**
     * Minimum version that a device must be running.
     */
    minVersion?: string;
    /**
     * Maximum version that a device may be running. Without it, rollouts exclude devices that run a later version than the package's; with it, such devices up to this version are downgraded.
     */
    maxVersion?: string;
    /**
     * Pattern that a device's hardware id must match: * matches any number of characters, ? exactly one.
     */
    hardwareIdPattern?: string;
  };
  /**
   * Human-readable description of the changes.
   */
  releaseNotes?: string;
}
/**
 * Last observed state. Written only by the operator.
 */
export interface OtaPackageStatus {
  /**
   * metadata.generation to which this status refers.
   */
  observedGeneration?: number;
  /**
   * Id in the REST and gRPC API (a UUIDv5 of tenant, kind and name).
   */
  packageId?: string;
  /**
   * Size of the artifact in bytes. Absent until it is known.
   */
  sizeBytes?: number;
  /**
   * Whether the signature was verified with one of the tenant's trustedSigningKeys.
   */
  signatureVerified?: boolean;
  /**
   * Conditions: Accepted, Synced, Verified, and their summary Ready.
   */
  conditions?: Condition[];
}
