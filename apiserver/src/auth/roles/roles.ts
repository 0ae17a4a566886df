// The roles, which are sets of scopes. The only place that decides what a role may do.
import { allScopes } from '../../platform/scopes.ts';

/** A role as it is stored and named in the API. */
export type Role = 'platform_admin' | 'tenant_admin' | 'operator' | 'viewer';

/** The roles that a tenant can assign. */
export const tenantRoles = ['tenant_admin', 'operator', 'viewer'] as const satisfies readonly Role[];

const reading = allScopes.filter((scope) => scope.endsWith(':read'));
const operated = ['devices:write', 'rpc:write', 'rules:write', 'alarms:write', 'entities:write'];

/**
 * Scopes of each role. The platform administrator works on tenants by its kind of caller and holds no scope inside any.
 */
const scopesByRole: Readonly<Record<Role, ReadonlySet<string>>> = {
  platform_admin: new Set(),
  tenant_admin: new Set(allScopes),
  operator: new Set([...reading, ...operated]),
  viewer: new Set(reading),
};

/** The scopes of a role. */
export const scopesOfRole = (role: Role): ReadonlySet<string> => scopesByRole[role];

/**
 * The scopes of a device key, valid only for its own device and, for a gateway, its children. Which methods a device
 * may call, and on which device, is declared by the method option in proto/kellet/v1/options.proto.
 */
export const deviceScopes: ReadonlySet<string> = new Set([
  'telemetry:write',
  'ota:read',
  'rpc:read',
  'rpc:write',
  'attributes:read',
  'attributes:write',
  'verify:read',
]);

/** Returns the requested scopes that do not exist. */
export function unknownScopes(asked: Iterable<string>): string[] {
  return [...asked].filter((scope) => !allScopes.includes(scope));
}
