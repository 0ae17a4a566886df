// A profile in its three spellings: the public message, the custom resource's spec, and the spec that control applies.
import { create } from '@bufbuild/protobuf';
import type { DeviceProfileSpec as Manifest, UpdateWindow } from '@kellet/crds';
import type { DeviceProfileSpec } from '@kellet/proto/es/kellet/control/v1/control_pb.ts';
import {
  AnchoringPolicy_Mode,
  TelemetrySchema_AdditionalKeys,
  TelemetrySchema_Key_Type,
  type OtaPolicy,
  type TelemetrySchema,
  type Window,
} from '@kellet/proto/es/kellet/v1/common_pb.ts';
import { ProfileSchema, type Profile } from '@kellet/proto/es/kellet/v1/profile_pb.ts';
import { anchoringModeOf, otaPolicyOf, telemetrySchemaOf } from '../../device-registry/policies.ts';
import type { ProfileFields } from './profile-rules.ts';

/** The profile that a manifest describes. Throws INVALID_ARGUMENT for a word that the contract does not know. */
export function profileFromSpec(spec: DeviceProfileSpec): Profile {
  const mode = anchoringModeOf('anchoring_policy.mode', spec.anchoringMode);
  return create(ProfileSchema, {
    type: spec.type,
    defaultTags: spec.defaultTags,
    anchoringPolicy: mode === undefined ? undefined : { mode },
    telemetrySchema: spec.telemetrySchema && telemetrySchemaOf(spec.telemetrySchema),
    otaPolicy: spec.otaPolicy && otaPolicyOf(spec.otaPolicy),
    offlineAfterSeconds: spec.offlineAfterSeconds,
  });
}

/** The custom resource's spec of a profile whose fields have been checked. What is unset is left out. */
export function manifestOf(profile: ProfileFields): Manifest {
  const manifest: Manifest = {};
  if (profile.type !== '') manifest.type = profile.type;
  if (Object.keys(profile.defaultTags).length > 0) manifest.defaultTags = { ...profile.defaultTags };
  const mode = anchoringModes[profile.anchoringPolicy?.mode ?? 0];
  if (mode) manifest.anchoringPolicy = { mode };
  if (profile.telemetrySchema) manifest.telemetrySchema = telemetryManifest(profile.telemetrySchema);
  if (profile.otaPolicy) manifest.otaPolicy = otaManifest(profile.otaPolicy);
  if (profile.offlineAfterSeconds > 0) manifest.offlineAfterSeconds = profile.offlineAfterSeconds;
  return manifest;
}

const anchoringModes: Record<number, NonNullable<Manifest['anchoringPolicy']>['mode']> = {
  [AnchoringPolicy_Mode.merkle]: 'Merkle',
  [AnchoringPolicy_Mode.per_event]: 'PerEvent',
  [AnchoringPolicy_Mode.chain]: 'Chain',
};

function telemetryManifest(schema: TelemetrySchema): NonNullable<Manifest['telemetrySchema']> {
  const keys = Object.entries(schema.keys).map(([name, key]) => [
    name,
    {
      type: key.type === TelemetrySchema_Key_Type.number ? ('Number' as const) : ('String' as const),
      ...(key.required ? { required: true } : {}),
      ...(key.min === undefined ? {} : { min: key.min }),
      ...(key.max === undefined ? {} : { max: key.max }),
      ...(key.unit === '' ? {} : { unit: key.unit }),
      ...(key.enum.length === 0 ? {} : { enum: [...key.enum] }),
      ...(key.maxLength === undefined ? {} : { maxLength: key.maxLength }),
    },
  ]);
  return {
    ...(keys.length === 0 ? {} : { keys: Object.fromEntries(keys) as Record<string, never> }),
    additionalKeys: schema.additionalKeys === TelemetrySchema_AdditionalKeys.reject ? 'Reject' : 'Allow',
  };
}

const otaManifest = (policy: OtaPolicy): NonNullable<Manifest['otaPolicy']> => ({
  ...(policy.deviceTimeoutSeconds === 0 ? {} : { deviceTimeoutSeconds: policy.deviceTimeoutSeconds }),
  ...(policy.maxAttempts === 0 ? {} : { maxAttempts: policy.maxAttempts }),
  ...(policy.window ? { window: windowManifest(policy.window) } : {}),
  ...(policy.requireSignature ? { requireSignature: true } : {}),
});

const dayNames: Record<string, NonNullable<UpdateWindow['days']>[number]> = {
  mon: 'Monday',
  tue: 'Tuesday',
  wed: 'Wednesday',
  thu: 'Thursday',
  fri: 'Friday',
  sat: 'Saturday',
  sun: 'Sunday',
};

/** The custom resource's form of an update window; a rollout's is the same. */
export const windowManifest = (window: Window): UpdateWindow => ({
  start: window.start,
  end: window.end,
  ...(window.days.length === 0 ? {} : { days: window.days.flatMap((day) => dayNames[day] ?? []) }),
  ...(window.timeZone === '' ? {} : { timeZone: window.timeZone }),
});
