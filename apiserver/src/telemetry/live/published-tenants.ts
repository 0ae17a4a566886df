// Determines which tenants' points are published on NATS: those configured, unless overridden with `kellet-apiserver
// publish-points`.
import type { FollowedTenants } from '../../policies/followed-tenants.ts';

/** Returns the tenants named by KELLET_PUBLISH_POINTS; contains `*` if it means all. */
export const configuredTenants = (setting: string): ReadonlySet<string> =>
  new Set(
    setting
      .split(',')
      .map((tenantId) => tenantId.trim())
      .filter((tenantId) => tenantId !== ''),
  );

/** The tenants configured, with the run-time overrides. */
export class PublishedTenants {
  private readonly configured: ReadonlySet<string>;
  private readonly choices: FollowedTenants<boolean>;

  constructor(setting: string, choices: FollowedTenants<boolean>) {
    this.configured = configuredTenants(setting);
    this.choices = choices;
  }

  /** Reports whether points of the tenant are published. */
  has(tenantId: string): boolean {
    return this.choices.get(tenantId) ?? (this.configured.has('*') || this.configured.has(tenantId));
  }
}
