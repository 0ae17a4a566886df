// A tenant that a request describes, in the form of its custom resource. The password is not part of it.
import type { TenantSpec as Manifest } from '@kellet/crds';
import type { CreateTenantRequest, TenantDefaults } from '@kellet/proto/es/kellet/v1/auth_pb';
import { anchoringManifest, otaManifest, telemetryManifest } from '../policies/policy-manifests.ts';

/** The custom resource's spec of a tenant whose fields have been checked. What is unset is left out. */
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
