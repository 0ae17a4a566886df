// Policy of a rollout: its own value, else the profile's, else the platform's.
import type { OtaRolloutSpec, Window as ControlWindow } from '@kellet/proto/es/kellet/control/v1/control_pb';
import type { OtaPolicy, Window } from '@kellet/proto/es/kellet/v1/common_pb';

/** A device that has not reported an hour after delivery counts as timed out, unless somebody says otherwise. */
const defaultDeviceTimeoutSeconds = 3600;
const defaultMaxAttempts = 1;

/** Seconds from delivery after which a device counts as timed out. */
export function deviceTimeout(spec: OtaRolloutSpec, profile: OtaPolicy | undefined): number {
  return spec.deviceTimeoutSeconds || profile?.deviceTimeoutSeconds || defaultDeviceTimeoutSeconds;
}

/** How often the command is sent before a silent device counts as timed out. */
export function maxAttempts(spec: OtaRolloutSpec, profile: OtaPolicy | undefined): number {
  return spec.maxAttempts || profile?.maxAttempts || defaultMaxAttempts;
}

/** The window in which commands leave; undefined: always. */
export function deliveryWindow(
  spec: OtaRolloutSpec,
  profile: OtaPolicy | undefined,
): ControlWindow | Window | undefined {
  return spec.window ?? profile?.window;
}
