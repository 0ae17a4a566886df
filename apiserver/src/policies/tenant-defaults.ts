// A tenant's defaults as the column tenants.defaults holds them: the JSON of kellet.v1.TenantDefaults with proto names.
import { fromJson, type JsonValue } from '@bufbuild/protobuf';
import { TenantDefaultsSchema } from '@kellet/proto/es/kellet/v1/auth_pb';
import type { TenantDefaultFacts } from './inheritance.ts';
import { anchoringModeName } from './policies.ts';

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
