// The scopes that a credential of a person or a service account can hold.

/** The areas of scopes. `entities` covers customers, assets and entity views. */
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

/** All scopes: of each area one to read and one to write. */
export const allScopes: readonly string[] = scopeAreas.flatMap((area) => [`${area}:read`, `${area}:write`]);

/** Reports whether a credential holds every scope for all devices, as that of a tenant administrator does. */
export const holdsEveryScope = ({ scopes }: { readonly scopes: ReadonlySet<string> }): boolean =>
  allScopes.every((scope) => scopes.has(scope));
