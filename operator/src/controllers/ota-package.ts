// OtaPackage: a build. The data plane fetches and verifies the artifact; here its verdict becomes conditions.
import type { OtaPackage, OtaPackageSpec } from '@kellet/crds';
import type {
  OtaPackageObserved,
  OtaPackageSpec as OtaPackageMessage,
} from '@kellet/proto/ts/kellet/control/v1/control';
import { fails, holds, unknown, withReady, type Finding } from '../conditions.ts';
import type { KindReconciler } from '../reconciler.ts';

/** How often an artifact that is on its way is asked about; the data plane tells by itself when it has arrived. */
const fetchRetryMs = 30_000;

/** The manifest as the data plane takes it. */
export function toOtaPackageMessage(spec: OtaPackageSpec): OtaPackageMessage {
  const { compatibility } = spec;
  return {
    type: spec.type === 'Firmware' ? 'fw' : 'sw',
    version: spec.version,
    artifact_uri: spec.artifact.uri,
    sha256: spec.artifact.sha256,
    signature: spec.artifact.signature ?? '',
    size_bytes: spec.artifact.sizeBytes ?? 0,
    compatibility: compatibility && {
      device_type: compatibility.deviceType ?? '',
      min_version: compatibility.minVersion ?? '',
      max_version: compatibility.maxVersion ?? '',
      hardware_id_pattern: compatibility.hardwareIdPattern ?? '',
    },
    release_notes: spec.releaseNotes ?? '',
  };
}

/** @returns whether the artifact is verified, or why it is not yet or never will be */
export function verifiedFinding(observed: OtaPackageObserved, uri: string): Finding {
  switch (observed.status) {
    case 'available':
    case 'deprecated':
      if (observed.signature_verified)
        return holds('Verified', 'SignatureVerified', 'checksum and signature are right');
      return holds('Verified', 'ChecksumVerified', 'the artifact has the declared checksum');
    case 'rejected':
      return fails('Verified', observed.checksum_verified ? 'SignatureInvalid' : 'ChecksumMismatch', observed.message);
    default:
      if (uri === 'upload://') return unknown('Verified', 'AwaitingUpload', observed.message || 'waits for the upload');
      return unknown('Verified', 'Fetching', observed.message || 'the data plane fetches the artifact');
  }
}

/** What is particular to packages. */
export const otaPackageReconciler: KindReconciler<'OtaPackage'> = {
  kind: 'OtaPackage',
  aspects: ['Accepted', 'Synced', 'Verified'],
  async prepare({ spec }: OtaPackage) {
    return { spec: { ota_package: toOtaPackageMessage(spec) }, findings: [] };
  },
  async observe({ spec }, _tenantId, { id, ota_package }) {
    if (!ota_package) throw new Error('the data plane answered nothing about the package');
    const verified = verifiedFinding(ota_package, spec.artifact.uri);
    const findings = withReady([holds('Accepted', 'Accepted'), holds('Synced', 'Synced'), verified], {
      reason: verified.reason,
      message: 'the package can be rolled out',
    });
    if (verified.status === 'False') findings.push(holds('Stalled', verified.reason, verified.message));
    return {
      status: { packageId: id, signatureVerified: ota_package.signature_verified },
      findings,
      ...(verified.status === 'Unknown' && { requeueAfterMs: fetchRetryMs }),
    };
  },
};
