// Policy of a rollout: its own value, otherwise the profile's, otherwise the platform's default.
import type { OtaRolloutSpec, Window as ControlWindow } from '@kellet/proto/es/kellet/control/v1/control_pb';
import type { OtaPolicy, Window } from '@kellet/proto/es/kellet/v1/common_pb';

/** Default timeout of a device, from delivery. */
const defaultDeviceTimeoutSeconds = 3600;
const defaultMaxAttempts = 1;

/** Returns the seconds from delivery after which a device counts as timed out. */
export function deviceTimeout(spec: OtaRolloutSpec, profile: OtaPolicy | undefined): number {
  return spec.deviceTimeoutSeconds || profile?.deviceTimeoutSeconds || defaultDeviceTimeoutSeconds;
}

/** Returns how often the command is sent before a silent device counts as timed out. */
export function maxAttempts(spec: OtaRolloutSpec, profile: OtaPolicy | undefined): number {
  return spec.maxAttempts || profile?.maxAttempts || defaultMaxAttempts;
}

/** Returns the window in which commands are delivered; undefined: always. */
export function deliveryWindow(
  spec: OtaRolloutSpec,
  profile: OtaPolicy | undefined,
): ControlWindow | Window | undefined {
  return spec.window ?? profile?.window;
}
