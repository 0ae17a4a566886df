// Policy of a rollout: its own value, otherwise the profile's, otherwise the platform's default.
import type { OtaPolicy, Window } from '@kellet/proto/es/kellet/v1/common_pb';
import type { RolloutSpec } from './rollout-spec.ts';

/** Default timeout of a device, from delivery. */
const defaultDeviceTimeoutSeconds = 3600;
const defaultMaxAttempts = 1;

/** Returns the seconds from delivery after which a device counts as timed out. */
export function deviceTimeout(spec: RolloutSpec, profile: OtaPolicy | undefined): number {
  return spec.deviceTimeoutSeconds || profile?.deviceTimeoutSeconds || defaultDeviceTimeoutSeconds;
}

/** Returns how often the command is sent before a silent device counts as timed out. */
export function maxAttempts(spec: RolloutSpec, profile: OtaPolicy | undefined): number {
  return spec.maxAttempts || profile?.maxAttempts || defaultMaxAttempts;
}

/** Returns the window in which commands are delivered; undefined: always. */
export function deliveryWindow(spec: Pick<RolloutSpec, 'window'>, profile: OtaPolicy | undefined): Window | undefined {
  return spec.window ?? profile?.window;
}
