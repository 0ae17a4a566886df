// OtaPackage: a build. The data plane fetches and verifies the artifact; the result is reported as conditions.
import type { OtaPackageObserved } from '@kellet/proto/ts/kellet/control/v1/control';
import { fails, holds, unknown, withReady, type Finding } from '../conditions.ts';
import type { KindReconciler } from '../reconciler.ts';

/** Interval at which a pending artifact is polled, as a fallback for the data plane's notification. */
const fetchRetryMilliseconds = 30_000;

/** Returns the finding Verified: whether the artifact is verified, and if not, why. */
export function verifiedFinding(observed: OtaPackageObserved, uri: string): Finding {
  switch (observed.status) {
    case 'available':
    case 'deprecated':
      if (observed.signature_verified)
        return holds('Verified', 'SignatureVerified', 'the checksum and signature of the artifact are verified');
      return holds('Verified', 'ChecksumVerified', 'the checksum of the artifact is verified');
    case 'rejected':
      return fails('Verified', observed.checksum_verified ? 'SignatureInvalid' : 'ChecksumMismatch', observed.message);
    default:
      if (uri === 'upload://')
        return unknown('Verified', 'AwaitingUpload', observed.message || 'waiting for the artifact to be uploaded');
      return unknown('Verified', 'Fetching', observed.message || 'the artifact is being fetched');
  }
}

/** Returns the reason and message of Ready for a package whose artifact is verified. */
function readyAs({ status }: OtaPackageObserved, verified: Finding): { reason: string; message: string } {
  return status === 'deprecated'
    ? { reason: 'Deprecated', message: 'the package is deprecated: it can be rolled back to, but not rolled out' }
    : { reason: verified.reason, message: 'the package can be rolled out' };
}

/** Reconciles packages. */
export const otaPackageReconciler: KindReconciler<'OtaPackage'> = {
  kind: 'OtaPackage',
  aspects: ['Accepted', 'Synced', 'Verified'],
  async observe({ spec }, _tenantId, { id, ota_package }) {
    if (!ota_package) throw new Error('the data plane returned no observation of the package');
    const verified = verifiedFinding(ota_package, spec.artifact.uri);
    const findings = withReady(
      [holds('Accepted', 'Accepted'), holds('Synced', 'Synced'), verified],
      readyAs(ota_package, verified),
    );
    if (verified.status === 'False') findings.push(holds('Stalled', verified.reason, verified.message));
    return {
      status: {
        packageId: id,
        signatureVerified: ota_package.signature_verified,
        sizeBytes: ota_package.size_bytes || undefined,
      },
      findings,
      ...(verified.status === 'Unknown' && { requeueAfterMilliseconds: fetchRetryMilliseconds }),
    };
  },
};
