// Checks rollouts. Pure: each function returns the first problem, naming the field.
import type { CreateRolloutRequest } from '@kellet/proto/es/kellet/v1/ota_pb';
import { isLonger } from '../../../../platform/requests/fields.ts';
import type { Exclusion } from './cohort.ts';

const maxTextLength = 253;
const maxSteps = 20;
/** 30 days. */
const maxSeconds = 2_592_000;
const maxPerMinuteLimit = 1_000_000;
const maxMinFailures = 1_000_000;
const maxAttemptsLimit = 100;

/** Returns what is wrong with a rollout, or undefined. The limits equal those of the custom resource definition. */
export function rolloutProblem(request: CreateRolloutRequest): string | undefined {
  const { canaryPercent, minFailures, steps } = request;
  if (request.packageId === '') return 'package_id is required';
  if (request.targetProfileId === '') return 'target_profile_id is required';
  if (isLonger(request.name, maxTextLength)) return `name must be at most ${maxTextLength} characters`;
  if (canaryPercent < 1 || canaryPercent > 100) return 'canary_percent must be from 1 to 100';
  if ((request.failureThresholdPercent ?? 0) > 100) return 'failure_threshold_percent must be from 0 to 100';
  if (request.packageId.toLowerCase() === request.rollbackPackageId.toLowerCase())
    return 'rollback_package_id must name another package than package_id';
  if (minFailures !== undefined && (minFailures < 1 || minFailures > maxMinFailures))
    return `min_failures must be from 1 to ${maxMinFailures}`;
  if (request.maxPerMinute > maxPerMinuteLimit) return `max_per_minute must be at most ${maxPerMinuteLimit}`;
  if (request.deviceTimeoutSeconds > maxSeconds) return `device_timeout_seconds must be at most ${maxSeconds}`;
  if (request.maxAttempts > maxAttemptsLimit) return `max_attempts must be at most ${maxAttemptsLimit}`;
  if (steps.length > maxSteps) return `steps must be at most ${maxSteps}`;
  let last = canaryPercent;
  for (const [index, step] of steps.entries()) {
    if (step.percent <= last || step.percent > 100) {
      return `steps[${index}].percent must be greater than the stage before it (${last}) and at most 100`;
    }
    if (step.soakSeconds > maxSeconds) return `steps[${index}].soak_seconds must be at most ${maxSeconds}`;
    last = step.percent;
  }
  return undefined;
}

/**
 * Returns why no device of a fleet can take the package, or undefined. Devices may be updated first, assignments may change, and an
 * empty fleet may grow, so none of these is a reason.
 */
export function fleetProblem(fleet: {
  readonly eligible: number;
  readonly excludedCounts: Partial<Record<Exclusion, number>>;
}): string | undefined {
  const reasons = Object.keys(fleet.excludedCounts);
  if (fleet.eligible > 0 || reasons.length === 0) return undefined;
  if (reasons.some((reason) => reason !== 'hardware_id' && reason !== 'downgrade')) return undefined;
  if (reasons.includes('downgrade')) {
    return 'every device that the package is for runs a later version; compatibility.max_version of the package allows a downgrade';
  }
  return 'the hardware id of no device of the profile matches the pattern of the package';
}
