// Scopes, and the roles that are sets of them (API.md, Callers). Pure: what a role may do is decided here and nowhere else.

/** What scopes are over. `entities` covers customers, assets and entity views. */
export const scopeAreas = [
  'devices',
  'profiles',
  'provisioning',
  'telemetry',
  'rpc',
  'ota',
  'rules',
  'anchors',
  'verify',
  'alarms',
  'entities',
  'users',
  'keys',
  'tenant',
  'events',
] as const;

/** The scopes that a credential of a person or a service account can hold. */
export const allScopes: readonly string[] = scopeAreas.flatMap((area) => [`${area}:read`, `${area}:write`]);

/** A role as it is stored and named in the API. */
export type Role = 'platform_admin' | 'tenant_admin' | 'operator' | 'viewer';

/** The roles that a tenant can give. */
export const tenantRoles = ['tenant_admin', 'operator', 'viewer'] as const satisfies readonly Role[];

const reading = allScopes.filter((scope) => scope.endsWith(':read'));
const operated = ['devices:write', 'rpc:write', 'rules:write', 'alarms:write', 'entities:write'];

/** Role → scopes. The platform administrator works on tenants by its kind of caller and holds no scope inside any. */
const scopesByRole: Readonly<Record<Role, ReadonlySet<string>>> = {
  platform_admin: new Set(),
  tenant_admin: new Set(allScopes),
  operator: new Set([...reading, ...operated]),
  viewer: new Set(reading),
};

/** The scopes of a role. */
export const scopesOfRole = (role: Role): ReadonlySet<string> => scopesByRole[role];

/**
 * The scopes of a device key. It may use them for its own device only (and, for a gateway, its children's): which methods
 * a device may call at all, and on which device, the contract's method option says.
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

/** The scopes asked for that do not exist. */
export function unknownScopes(asked: Iterable<string>): string[] {
  return [...asked].filter((scope) => !allScopes.includes(scope));
}

/** The scopes asked for that the grantor does not hold: nobody can grant more than they hold. */
export function scopesBeyond(asked: Iterable<string>, held: ReadonlySet<string>): string[] {
  return [...asked].filter((scope) => !held.has(scope));
}
