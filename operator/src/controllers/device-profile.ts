// DeviceProfile: defaults that devices inherit. It has no references and can be deleted once nothing uses it.
import type { DeviceProfile, DeviceProfileSpec } from '@kellet/crds';
import type { DeviceProfileSpec as DeviceProfileMessage } from '@kellet/proto/ts/kellet/control/v1/control';
import { holds, withReady } from '../conditions.ts';
import { toLowerCase, toOtaPolicy, toTelemetrySchema } from '../messages.ts';
import type { KindReconciler } from '../reconciler.ts';

/** Converts the manifest to the message of the control protocol. */
export function toDeviceProfileMessage(spec: DeviceProfileSpec): DeviceProfileMessage {
  return {
    type: spec.type ?? '',
    default_tags: new Map(Object.entries(spec.defaultTags ?? {})),
    anchoring_mode: toLowerCase(spec.anchoringPolicy?.mode),
    telemetry_schema: toTelemetrySchema(spec.telemetrySchema),
    ota_policy: toOtaPolicy(spec.otaPolicy),
    offline_after_seconds: spec.offlineAfterSeconds ?? 0,
  };
}

/** Reconciles profiles. */
export const deviceProfileReconciler: KindReconciler<'DeviceProfile'> = {
  kind: 'DeviceProfile',
  aspects: ['Accepted', 'Synced'],
  async prepare({ spec }: DeviceProfile) {
    return { spec: { device_profile: toDeviceProfileMessage(spec) }, findings: [] };
  },
  async observe(_object, _tenantId, { id, device_profile }) {
    return {
      status: { profileId: id, devices: device_profile?.devices ?? 0 },
      findings: withReady([holds('Accepted', 'Accepted'), holds('Synced', 'Synced')], {
        reason: 'Synced',
        message: 'the profile is applied',
      }),
    };
  },
};
