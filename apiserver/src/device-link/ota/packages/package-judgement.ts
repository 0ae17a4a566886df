// Decides whether a package may be used.
import type { Transaction } from '../../../platform/database/database.ts';
import { lockArtifact } from '../artifacts/artifact-store.ts';
import { getPackage, setPackageSize, setPackageStatus } from './package-store.ts';
import { signatureState } from './signature.ts';

/**
 * Judges a package by the artifact in the content store and the keys that the tenant trusts now, and writes the verdict. Reports
 * whether it differs from the one before. A package without its artifact waits for it.
 */
export async function judgePackage(tx: Transaction, tenantId: string, packageId: string): Promise<boolean> {
  const row = await getPackage(tx, tenantId, packageId);
  // A process of an earlier release writes the status alone.
  const isDeprecated = row.deprecated || row.status === 'deprecated';
  const size = await lockArtifact(tx, tenantId, row.sha256);
  if (size === undefined) {
    if (row.status !== 'available' && !(row.status === 'deprecated' && row.checksum_verified)) return false;
    // The store has lost the artifact: it is fetched or uploaded once more.
    return setPackageStatus(tx, tenantId, packageId, { status: isDeprecated ? 'deprecated' : 'uploading' });
  }
  const reject = (rejection: 'ChecksumMismatch' | 'SignatureInvalid', message: string) =>
    setPackageStatus(tx, tenantId, packageId, { status: 'rejected', checksumVerified: true, rejection, message });
  if (row.size_bytes === 0n) await setPackageSize(tx, tenantId, packageId, size);
  else if (BigInt(size) !== row.size_bytes) {
    return reject('ChecksumMismatch', `the artifact has ${size} bytes, size_bytes says ${row.size_bytes.toString()}`);
  }
  const signature = signatureState(row.signature, row.sha256, row.trusted_signing_keys);
  if (signature === 'wrong') {
    return reject('SignatureInvalid', 'the signature is not one by any of the tenant’s trusted signing keys');
  }
  return setPackageStatus(tx, tenantId, packageId, {
    status: isDeprecated ? 'deprecated' : 'available',
    checksumVerified: true,
    signatureVerified: signature === 'good',
  });
}
