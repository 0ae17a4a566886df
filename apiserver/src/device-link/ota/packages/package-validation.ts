// Checks the fields of a package.
import { type CreatePackageRequest, OtaPackage_Type } from '@kellet/proto/es/kellet/v1/ota_pb';
import type { OutboundGuard } from '../../../platform/outbound/outbound-guard.ts';
import { isLonger } from '../../../platform/requests/fields.ts';
import { uriProblem } from '../artifacts/artifact-fetch.ts';
import { compareVersions, isVersion } from './version.ts';

/** Returns what is wrong with a package, naming the field, or undefined. */
export function packageProblem(
  request: Pick<
    CreatePackageRequest,
    'version' | 'artifactUri' | 'sha256' | 'signature' | 'sizeBytes' | 'compatibility' | 'releaseNotes' | 'name'
  > & { type?: OtaPackage_Type | undefined },
  guard: OutboundGuard,
): string | undefined {
  const { compatibility } = request;
  if (request.type === undefined || request.type === OtaPackage_Type.type_unspecified) return 'type must be fw or sw';
  // The lengths are those of the definition (crds/ota-package.yaml).
  for (const [field, text, maximum] of [
    ['name', request.name, 253],
    ['version', request.version, 128],
    ['artifact_uri', request.artifactUri, 2048],
    ['release_notes', request.releaseNotes, 16_384],
    ['compatibility.device_type', compatibility?.deviceType ?? '', 128],
    ['compatibility.min_version', compatibility?.minVersion ?? '', 128],
    ['compatibility.max_version', compatibility?.maxVersion ?? '', 128],
    ['compatibility.hardware_id_pattern', compatibility?.hardwareIdPattern ?? '', 256],
  ] as const) {
    if (isLonger(text, maximum)) return `${field} must be at most ${maximum} characters`;
    if (text.includes('\0')) return `${field} must not contain NUL`;
  }
  if (!isVersion(request.version)) return 'version must be a semantic version (1.2.3)';
  const uri = uriProblem(request.artifactUri, guard);
  if (uri) return uri;
  if (!/^[0-9a-f]{64}$/i.test(request.sha256)) return 'sha256 must be 64 hexadecimal digits';
  if (request.signature !== '' && !isSignature(request.signature)) {
    return 'signature must be the base64 of an Ed25519 signature (64 bytes)';
  }
  if (compatibility) {
    for (const [field, version] of [
      ['min_version', compatibility.minVersion],
      ['max_version', compatibility.maxVersion],
    ] as const) {
      if (version !== '' && !isVersion(version)) return `compatibility.${field} must be a semantic version`;
    }
    const { minVersion, maxVersion } = compatibility;
    if (minVersion !== '' && maxVersion !== '' && compareVersions(minVersion, maxVersion) > 0)
      return 'compatibility.min_version must not be above compatibility.max_version';
    if (minVersion !== '' && compareVersions(minVersion, request.version) > 0)
      return 'compatibility.min_version must not be above version';
  }
  return undefined;
}

/** Reports whether the text has the form of a signature. signature.ts verifies it against the artifact. */
const isSignature = (text: string): boolean =>
  /^[A-Za-z0-9+/]+={0,2}$/.test(text) && Buffer.from(text, 'base64').length === 64;
