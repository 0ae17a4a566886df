// Converts the identity of custom resources to messages of the control protocol, and values of its observations back.
import { displayNameAnnotation, intentAnnotation } from '@kellet/crds';
import type { KubernetesObject } from '@kellet/kubernetes';
import type { ObjectMeta as ObjectMetaMessage } from '@kellet/proto/ts/kellet/control/v1/control';

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

/** `rolling_back` → `RollingBack`; `''` → undefined. */
export function toCamelCase<T extends string>(value: string): T | undefined {
  if (value === '') return undefined;
  return value.replace(/(^|_)([a-z])/g, (_match, _start, letter: string) => letter.toUpperCase()) as T;
}

/** Converts a timestamp to milliseconds since 1970. */
export function toMilliseconds(timestamp: { seconds: bigint; nanos: number } | undefined): number | undefined {
  return timestamp && Number(timestamp.seconds) * 1000 + Math.floor(timestamp.nanos / 1e6);
}
