// Converts a request for a tenant to its custom resource, without the password.
import type { TenantSpec as Manifest } from '@kellet/crds';
import type { CreateTenantRequest, TenantDefaults } from '@kellet/proto/es/kellet/v1/auth_pb';
import { anchoringManifest, otaManifest, telemetryManifest } from '../policies/policy-manifests.ts';

/** Returns the custom resource's spec of a tenant whose fields have been checked. Unset fields are omitted. */
export function tenantManifest(request: CreateTenantRequest): Manifest {
  const { quotas, defaults } = request;
  return {
    ...(request.name === '' ? {} : { name: request.name }),
    ...(request.adminEmail === '' ? {} : { adminEmail: request.adminEmail }),
    ...(request.rateLimitPerMinute === 0 ? {} : { rateLimitPerMinute: request.rateLimitPerMinute }),
    ...(quotas
      ? {
          quotas: {
            devices: quotas.devices,
            pointsPerDay: quotas.pointsPerDay,
            storageBytes: quotas.storageBytes,
            anchorsPerDay: quotas.anchorsPerDay,
          },
        }
      : {}),
    ...(request.ipAllowlist.length === 0 ? {} : { ipAllowlist: [...request.ipAllowlist] }),
    ...(request.mfaRequired ? { mfaRequired: true } : {}),
    ...(defaults ? { defaults: defaultsManifest(defaults) } : {}),
    ...(request.trustedSigningKeys.length === 0 ? {} : { trustedSigningKeys: [...request.trustedSigningKeys] }),
  };
}

function defaultsManifest(defaults: TenantDefaults): NonNullable<Manifest['defaults']> {
  const anchoringPolicy = anchoringManifest(defaults.anchoringPolicy);
  return {
    ...(Object.keys(defaults.tags).length === 0 ? {} : { tags: { ...defaults.tags } }),
    ...(defaults.telemetrySchema ? { telemetrySchema: telemetryManifest(defaults.telemetrySchema) } : {}),
    ...(defaults.otaPolicy ? { otaPolicy: otaManifest(defaults.otaPolicy) } : {}),
    ...(defaults.offlineAfterSeconds === 0 ? {} : { offlineAfterSeconds: defaults.offlineAfterSeconds }),
    ...(anchoringPolicy ? { anchoringPolicy } : {}),
  };
}
