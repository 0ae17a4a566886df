// The tenants' part of AuthService.
import { AuthService } from '@kellet/proto/es/kellet/v1/auth_pb';
import type { AuthPlatform } from '../auth/credentials/auth-platform.ts';
import type { ServiceModule } from '../config/module.ts';
import { TenantApplier } from './tenant-applier.ts';
import { TenantResources, type TenantResourcesOptions } from './tenant-resources.ts';
import { type MeasureUsage, usageReader } from './tenant-usage.ts';
import { tenantHandlers } from './tenants.ts';

/**
 * Creates the handlers of `tenant` and `tenants`, which write Tenant resources through the Kubernetes API. `measure`
 * measures what a tenant uses of the other services.
 */
export function createTenants(
  platform: AuthPlatform,
  kubernetes: TenantResourcesOptions['kubernetes'],
  measure: MeasureUsage,
): ServiceModule {
  const { database, logger } = platform;
  const resources = new TenantResources({ database, kubernetes, applier: new TenantApplier(platform), logger });
  return {
    register: (registry) =>
      registry.register(AuthService, tenantHandlers(platform, resources, usageReader(platform, measure))),
  };
}
