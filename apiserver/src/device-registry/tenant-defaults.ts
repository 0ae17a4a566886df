// A tenant's defaults as the column tenants.defaults holds them: the JSON of kellet.v1.TenantDefaults with proto names.
import { fromJson, type JsonValue } from '@bufbuild/protobuf';
import { AnchoringPolicy_Mode } from '@kellet/proto/es/kellet/v1/common_pb.ts';
import { TenantDefaultsSchema } from '@kellet/proto/es/kellet/v1/auth_pb.ts';
import type { TenantDefaultFacts } from './inheritance.ts';
import type { AnchoringMode } from './profile-reader.ts';

/** The name of an anchoring mode; undefined when it is left open. */
export function anchoringModeName(mode: AnchoringPolicy_Mode | undefined): AnchoringMode | undefined {
  switch (mode) {
    case AnchoringPolicy_Mode.merkle:
      return 'merkle';
    case AnchoringPolicy_Mode.per_event:
      return 'per_event';
    case AnchoringPolicy_Mode.chain:
      return 'chain';
    default:
      return undefined;
  }
}

/** Reads the column. */
export function readTenantDefaults(column: JsonValue): TenantDefaultFacts {
  const defaults = fromJson(TenantDefaultsSchema, column, { ignoreUnknownFields: true });
  return {
    tags: defaults.tags,
    telemetrySchema: defaults.telemetrySchema,
    anchoringMode: anchoringModeName(defaults.anchoringPolicy?.mode),
    offlineAfterSeconds: defaults.offlineAfterSeconds,
    otaPolicy: defaults.otaPolicy,
  };
}
