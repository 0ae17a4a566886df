// The policies that profiles and tenants state, as custom resources spell them; policies.ts goes the other way.
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

/** The custom resource's form of an anchoring policy; undefined when it states no mode. */
export function anchoringManifest(policy: AnchoringPolicy | undefined): AnchoringManifest | undefined {
  const mode = anchoringModes[policy?.mode ?? 0];
  return mode && { mode };
}

const anchoringModes: Record<number, AnchoringManifest['mode']> = {
  [AnchoringPolicy_Mode.merkle]: 'Merkle',
  [AnchoringPolicy_Mode.per_event]: 'PerEvent',
  [AnchoringPolicy_Mode.chain]: 'Chain',
};

/** The custom resource's form of a telemetry schema. */
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

/** The custom resource's form of an update policy. */
export function otaManifest(policy: OtaPolicy): OtaManifest {
  const stated: OtaManifest = {
    ...(policy.deviceTimeoutSeconds === 0 ? {} : { deviceTimeoutSeconds: policy.deviceTimeoutSeconds }),
    ...(policy.maxAttempts === 0 ? {} : { maxAttempts: policy.maxAttempts }),
    ...(policy.window ? { window: windowManifest(policy.window) } : {}),
    ...(policy.requireSignature ? { requireSignature: true } : {}),
  };
  // Never empty: Kubernetes makes null of an empty object that is applied over one whose fields we own, and refuses that.
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

/** The custom resource's form of an update window; a rollout's is the same. */
export const windowManifest = (window: Window): UpdateWindow => ({
  start: window.start,
  end: window.end,
  ...(window.days.length === 0 ? {} : { days: window.days.flatMap((day) => dayNames[day] ?? []) }),
  ...(window.timeZone === '' ? {} : { timeZone: window.timeZone }),
});
