// Generated from the custom resource definitions by crds/generate.ts. Do not edit.
import type { ObjectMeta } from '../object-meta.ts';
import type { Condition } from './shared.ts';

/**
 * OtaPackage is one build of firmware or software. The data plane fetches the artifact and compares its checksum before the package can be rolled out. Type, version and artifact never change: a new build is a new OtaPackage.
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
 * The build.
 */
export interface OtaPackageSpec {
  /**
   * Firmware replaces a device's firmware, Software something that runs on it.
   */
  type: 'Firmware' | 'Software';
  /**
   * Semantic version of the build.
   */
  version: string;
  /**
   * The file that devices download.
   */
  artifact: {
    /**
     * Where the data plane fetches the file: https, s3, or exactly upload:// for a file that is uploaded to Kellet. Plain http works where the installation allows it.
     */
    uri: string;
    /**
     * SHA-256 of the file.
     */
    sha256: string;
    /**
     * Size of the file; when given, no more than this is fetched and no less accepted.
     */
    sizeBytes?: number;
    /**
     * Ed25519 signature over the file's SHA-256 digest, in base64, by one of the tenant's trustedSigningKeys.
     */
    signature?: string;
  };
  /**
   * Devices that the build may be installed on. What is absent is not checked.
   */
  compatibility?: {
    /**
     * Type of the devices' profile.
     */
    deviceType?: string;
    /**
     * Least version that a device must run to take this build.
     */
    minVersion?: string;
    /**
     * Greatest version that a device may run to take this build.
     */
    maxVersion?: string;
    /**
     * Hardware ids that may take it: * stands for any run of characters, ? for one, everything else for itself.
     */
    hardwareIdPattern?: string;
  };
  /**
   * What is new, for people.
   */
  releaseNotes?: string;
}
/**
 * What the operator last observed. Written by the operator alone.
 */
export interface OtaPackageStatus {
  /**
   * metadata.generation that the rest of the status speaks of.
   */
  observedGeneration?: number;
  /**
   * The id that the REST and gRPC API use (a UUIDv5 of tenant, kind and name).
   */
  packageId?: string;
  /**
   * Whether the signature was made by one of the tenant's trustedSigningKeys.
   */
  signatureVerified?: boolean;
  /**
   * Accepted, Synced, Verified and their summary Ready.
   */
  conditions?: Condition[];
}
