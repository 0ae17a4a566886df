// What may be asked of packages and rollouts: pure, each answers the first thing that is wrong, naming the field.
import type { CreatePackageRequest, CreateRolloutRequest } from '@kellet/proto/es/kellet/v1/ota_pb';
import { OtaPackage_Type } from '@kellet/proto/es/kellet/v1/ota_pb';
import type { OutboundGuard } from '../../../platform/outbound/outbound-guard.ts';
import { uriProblem } from '../packages/artifact-fetch.ts';
import type { Exclusion } from './cohort.ts';
import { compareVersions, isVersion } from '../packages/version.ts';

const longestText = 253;
const longestReleaseNotes = 16_384;

/** What is wrong with a package, or undefined. */
export function packageProblem(
  request: Pick<
    CreatePackageRequest,
    'version' | 'artifactUri' | 'sha256' | 'signature' | 'sizeBytes' | 'compatibility' | 'releaseNotes' | 'name'
  > & { type?: OtaPackage_Type | undefined },
  guard: OutboundGuard,
): string | undefined {
  const { compatibility } = request;
  if (request.type === undefined || request.type === OtaPackage_Type.type_unspecified) return 'type must be fw or sw';
  if (request.name.length > longestText) return `name must be at most ${longestText} characters`;
  if (!isVersion(request.version)) return 'version must be a semantic version (1.2.3)';
  const uri = uriProblem(request.artifactUri, guard);
  if (uri) return uri;
  if (!/^[0-9a-f]{64}$/i.test(request.sha256)) return 'sha256 must be 64 hexadecimal digits';
  if (request.signature !== '' && !isSignature(request.signature)) {
    return 'signature must be the base64 of an Ed25519 signature (64 bytes)';
  }
  if (request.releaseNotes.length > longestReleaseNotes)
    return `release_notes must be at most ${longestReleaseNotes} characters`;
  if (compatibility) {
    for (const [field, version] of [
      ['min_version', compatibility.minVersion],
      ['max_version', compatibility.maxVersion],
    ] as const) {
      if (version !== '' && !isVersion(version)) return `compatibility.${field} must be a semantic version`;
    }
    const { minVersion, maxVersion } = compatibility;
    if (minVersion !== '' && maxVersion !== '' && compareVersions(minVersion, maxVersion) > 0)
      return 'compatibility.min_version must not be above max_version';
    if (compatibility.deviceType.length > longestText)
      return `compatibility.device_type must be at most ${longestText} characters`;
    if (compatibility.hardwareIdPattern.length > longestText) {
      return `compatibility.hardware_id_pattern must be at most ${longestText} characters`;
    }
  }
  return undefined;
}

/** Whether the text can be a signature at all; whether it is one of ours is decided with the artifact (signature.ts). */
const isSignature = (text: string): boolean =>
  /^[A-Za-z0-9+/]+={0,2}$/.test(text) && Buffer.from(text, 'base64').length === 64;

const mostSteps = 20;
/** 30 days. */
const mostSeconds = 2_592_000;
const mostPerMinute = 1_000_000;
const mostFailures = 1_000_000;
const mostAttempts = 100;

/** What is wrong with a rollout, or undefined. The limits are those of the custom resource definition. */
export function rolloutProblem(request: CreateRolloutRequest): string | undefined {
  const { canaryPercent, minFailures, steps } = request;
  if (request.packageId === '') return 'package_id is required';
  if (request.targetProfileId === '') return 'target_profile_id is required';
  if (request.name.length > longestText) return `name must be at most ${longestText} characters`;
  if (canaryPercent < 1 || canaryPercent > 100) return 'canary_percent must be from 1 to 100';
  if ((request.failureThresholdPercent ?? 0) > 100) return 'failure_threshold_percent must be from 0 to 100';
  if (request.packageId.toLowerCase() === request.rollbackPackageId.toLowerCase())
    return 'rollback_package_id must name another package than package_id';
  if (minFailures !== undefined && (minFailures < 1 || minFailures > mostFailures))
    return `min_failures must be from 1 to ${mostFailures}`;
  if (request.maxPerMinute > mostPerMinute) return `max_per_minute must be at most ${mostPerMinute}`;
  if (request.deviceTimeoutSeconds > mostSeconds) return `device_timeout_seconds must be at most ${mostSeconds}`;
  if (request.maxAttempts > mostAttempts) return `max_attempts must be at most ${mostAttempts}`;
  if (steps.length > mostSteps) return `steps must be at most ${mostSteps}`;
  let last = canaryPercent;
  for (const [index, step] of steps.entries()) {
    if (step.percent <= last || step.percent > 100) {
      return `steps[${index}].percent must be greater than the stage before it (${last}) and at most 100`;
    }
    if (step.soakSeconds > mostSeconds) return `steps[${index}].soak_seconds must be at most ${mostSeconds}`;
    last = step.percent;
  }
  return undefined;
}

/**
 * Why no device of a fleet can ever take the package, or undefined. Versions and assignments change, and a fleet without
 * devices may get some: neither is a reason.
 */
export function fleetProblem(fleet: {
  readonly devices: readonly unknown[];
  readonly excluded: readonly { readonly reason: Exclusion }[];
}): string | undefined {
  const { devices, excluded } = fleet;
  if (devices.length > 0 || excluded.length === 0 || excluded.some(({ reason }) => reason !== 'hardware_id'))
    return undefined;
  return 'the hardware id of no device of the profile matches the package’s hardware_id_pattern';
}
