// Converts fields of custom resources to messages of the control protocol: CamelCase values become snake_case, and
// absent fields become the protocol's zero values.
import {
  displayNameAnnotation,
  intentAnnotation,
  type OtaPolicy,
  type TelemetrySchema,
  type UpdateWindow,
} from '@kellet/crds';
import type { KubernetesObject } from '@kellet/kubernetes';
import type {
  OtaPolicy as OtaPolicyMessage,
  TelemetrySchema as TelemetrySchemaMessage,
} from '@kellet/proto/ts/kellet/control/v1/control';
import {
  Window as WindowMessage,
  type ApplyRequest,
  type ObjectMeta as ObjectMetaMessage,
} from '@kellet/proto/ts/kellet/control/v1/control';

/** The part of an ApplyRequest that a kind fills in. */
export type SpecMessage = Omit<ApplyRequest, 'meta' | 'dry_run'>;

/** Returns the identity of a custom resource in the control protocol. */
export function toMeta(tenantId: string, { metadata }: KubernetesObject): ObjectMetaMessage {
  return {
    tenant_id: tenantId,
    namespace: metadata.namespace ?? '',
    name: metadata.name,
    uid: metadata.uid ?? '',
    generation: BigInt(metadata.generation ?? 0),
    resource_version: metadata.resourceVersion ?? '',
    display_name: metadata.annotations?.[displayNameAnnotation] ?? '',
    intent_id: metadata.annotations?.[intentAnnotation] ?? '',
  };
}

/** `PerEvent` → `per_event`; undefined → `''`. */
export function toLowerCase(value: string | undefined): string {
  return (value ?? '').replace(/(?<!^)[A-Z]/g, (letter) => `_${letter}`).toLowerCase();
}

/** `rolling_back` → `RollingBack`; `''` → undefined. */
export function toCamelCase<T extends string>(value: string): T | undefined {
  if (value === '') return undefined;
  return value.replace(/(^|_)([a-z])/g, (_match, _start, letter: string) => letter.toUpperCase()) as T;
}

/** Converts an update window. Days become their first three letters. */
export function toWindow(window: UpdateWindow | undefined): WindowMessage | undefined {
  if (!window) return undefined;
  return WindowMessage.fromPartial({
    start: window.start,
    end: window.end,
    days: (window.days ?? []).map((day) => day.slice(0, 3).toLowerCase()),
    time_zone: window.timeZone ?? '',
  });
}

/** Converts an update policy. */
export function toOtaPolicy(policy: OtaPolicy | undefined): OtaPolicyMessage | undefined {
  if (!policy) return undefined;
  return {
    device_timeout_seconds: policy.deviceTimeoutSeconds ?? 0,
    max_attempts: policy.maxAttempts ?? 0,
    window: toWindow(policy.window),
    require_signature: policy.requireSignature ?? false,
  };
}

/** Converts a telemetry schema. */
export function toTelemetrySchema(schema: TelemetrySchema | undefined): TelemetrySchemaMessage | undefined {
  if (!schema) return undefined;
  const keys = Object.entries(schema.keys ?? {}).map(
    ([name, key]) =>
      [
        name,
        {
          type: toLowerCase(key.type),
          required: key.required ?? false,
          min: key.min,
          max: key.max,
          unit: key.unit ?? '',
          enum: key.enum ?? [],
          max_length: key.maxLength ?? 0,
        },
      ] as const,
  );
  return { keys: new Map(keys), reject_additional_keys: schema.additionalKeys === 'Reject' };
}

/** Converts a timestamp to milliseconds since 1970. */
export function toMilliseconds(timestamp: { seconds: bigint; nanos: number } | undefined): number | undefined {
  return timestamp && Number(timestamp.seconds) * 1000 + Math.floor(timestamp.nanos / 1e6);
}
