// Converts the policies of profiles and tenants to the form of custom resources; policies.ts converts them back.
import type {
  AnchoringPolicy as AnchoringManifest,
  OtaPolicy as OtaManifest,
  TelemetrySchema as TelemetryManifest,
  UpdateWindow,
} from '@kellet/crds';
import {
  AnchoringPolicy_Mode,
  TelemetrySchema_AdditionalKeys,
  TelemetrySchema_Key_Type,
  type AnchoringPolicy,
  type OtaPolicy,
  type TelemetrySchema,
  type Window,
} from '@kellet/proto/es/kellet/v1/common_pb.ts';

/** Converts an anchoring policy to the custom resource's form; undefined if it states no mode. */
export function anchoringManifest(policy: AnchoringPolicy | undefined): AnchoringManifest | undefined {
  const mode = anchoringModes[policy?.mode ?? 0];
  return mode && { mode };
}

const anchoringModes: Record<number, AnchoringManifest['mode']> = {
  [AnchoringPolicy_Mode.merkle]: 'Merkle',
  [AnchoringPolicy_Mode.per_event]: 'PerEvent',
  [AnchoringPolicy_Mode.chain]: 'Chain',
};

/** Converts a telemetry schema to the custom resource's form. */
export function telemetryManifest(schema: TelemetrySchema): TelemetryManifest {
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

/** Converts an OTA policy to the custom resource's form. */
export function otaManifest(policy: OtaPolicy): OtaManifest {
  const stated: OtaManifest = {
    ...(policy.deviceTimeoutSeconds === 0 ? {} : { deviceTimeoutSeconds: policy.deviceTimeoutSeconds }),
    ...(policy.maxAttempts === 0 ? {} : { maxAttempts: policy.maxAttempts }),
    ...(policy.window ? { window: windowManifest(policy.window) } : {}),
    ...(policy.requireSignature ? { requireSignature: true } : {}),
  };
  // Never empty: Kubernetes turns an empty object applied over fields that we own into null, and rejects it.
  return Object.keys(stated).length > 0 ? stated : { requireSignature: false };
}

const dayNames: Record<string, NonNullable<UpdateWindow['days']>[number]> = {
  mon: 'Monday',
  tue: 'Tuesday',
  wed: 'Wednesday',
  thu: 'Thursday',
  fri: 'Friday',
  sat: 'Saturday',
  sun: 'Sunday',
};

/** Converts an update window to the custom resource's form, also of a rollout. */
export const windowManifest = (window: Window): UpdateWindow => ({
  start: window.start,
  end: window.end,
  ...(window.days.length === 0 ? {} : { days: window.days.flatMap((day) => dayNames[day] ?? []) }),
  ...(window.timeZone === '' ? {} : { timeZone: window.timeZone }),
});
