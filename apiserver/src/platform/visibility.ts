// What a caller sees of its tenant: everything, what belongs to one customer (docs/customers.md), or the devices of some
// device groups (docs/users.md).
import type { Caller } from './rpc.ts';

/** The devices that a caller reaches with a scope. Both limits apply if both are set. */
export interface Visibility {
  /** Null: not limited to a customer. */
  readonly customerId: string | null;
  /** Null: not limited to device groups. */
  readonly deviceGroupIds: readonly string[] | null;
}

/** Returns those of the devices, by the id as requested, that exist in the tenant and are visible. */
export type VisibleDevices = (
  tenantId: string,
  deviceIds: readonly string[],
  visibility: Visibility,
) => Promise<Set<string>>;

/** Everything of the tenant. */
export const wholeTenant: Visibility = { customerId: null, deviceGroupIds: null };

/** Returns the customer to which a caller is limited, or null if it is not limited to one. */
export const customerOf = (caller: Caller): string | null => caller.customerId || null;

/** Returns the device groups to which a caller's scope is limited, or null if it is not limited to any. */
export function deviceGroupsOf({ scopes, limitedGrants }: Caller, scope: string): readonly string[] | null {
  if (limitedGrants.length === 0 || scopes.has(scope)) return null;
  const granting = limitedGrants.filter((grant) => grant.scopes.includes(scope));
  return granting.length === 0 ? null : [...new Set(granting.flatMap(({ deviceGroupIds }) => deviceGroupIds))].sort();
}

/** Reports whether a caller holds a scope, be it for some devices only. */
export const holdsInPart = (caller: Caller, scope: string): boolean =>
  caller.scopes.has(scope) || deviceGroupsOf(caller, scope) !== null;

/** Reports whether a caller holds a scope for all devices for which it holds another. */
export function holdsAsFar(caller: Caller, scope: string, other: string): boolean {
  if (caller.scopes.has(scope)) return true;
  const [groups, others] = [deviceGroupsOf(caller, scope), deviceGroupsOf(caller, other)];
  return groups !== null && others !== null && others.every((groupId) => groups.includes(groupId));
}

/** Returns what the caller reaches with a scope that it holds. */
export const visibilityOf = (caller: Caller, scope: string): Visibility => ({
  customerId: customerOf(caller),
  deviceGroupIds: deviceGroupsOf(caller, scope),
});

/** Reports whether anything of the tenant may be hidden. */
export const isLimited = ({ customerId, deviceGroupIds }: Visibility): boolean =>
  customerId !== null || deviceGroupIds !== null;

/**
 * Returns those of the scopes that a caller does not hold for all devices. Who lacks a scope altogether lacks it too: otherwise a key
 * with fewer scopes, or leaving a group, would tell limited users what they may not read.
 */
export const lackedForAll = (caller: Caller, scopes: readonly string[]): readonly string[] =>
  customerOf(caller) === null ? scopes.filter((scope) => !caller.scopes.has(scope)) : scopes;

/** What events tell of all devices, besides the audit log: who may not read some of it is shown none. */
export const toldByEvents = ['events:read', 'devices:read', 'telemetry:read', 'alarms:read', 'ota:read'] as const;

/** Returns those of a device's groups that a caller may know: none for users of customers, who share groups. */
export function visibleGroups(groupIds: readonly string[], { customerId, deviceGroupIds }: Visibility): string[] {
  if (customerId !== null) return [];
  return groupIds.filter((id) => deviceGroupIds?.includes(id) ?? true);
}

/**
 * Returns the SQL condition of a row that is visible to the customer in `parameter`; every row is if that is null. For
 * lookups by key: a list names the customer only if there is one, so that it is read along the customer's index.
 */
export const visibleTo = (parameter: string, column = 'customer_id'): string =>
  `(${parameter}::uuid IS NULL OR ${column} = ${parameter})`;

/** Returns the SQL condition of a row whose device is in one of the device groups in `parameter`. */
export const inDeviceGroups = (row: string, parameter: string): string =>
  `EXISTS (SELECT FROM device_group_members grouped WHERE grouped.tenant_id = ${row}.tenant_id
     AND grouped.device_id = ${row}.device_id AND grouped.group_id = ANY(${parameter}::uuid[]))`;

/** Returns the SQL condition of a row whose device belongs to the customer in `parameter`. */
const ofCustomersDevice = (row: string, parameter: string): string =>
  `EXISTS (SELECT FROM devices seen WHERE seen.tenant_id = ${row}.tenant_id AND seen.device_id = ${row}.device_id
     AND seen.customer_id = ${parameter})`;

/**
 * Returns SQL conditions, each preceded by AND, of rows about devices that are visible, and appends their parameters to
 * `values`. Nothing is added for a caller that sees the whole tenant.
 */
export function visibleDevices(row: string, { customerId, deviceGroupIds }: Visibility, values: unknown[]): string {
  const conditions: string[] = [];
  if (customerId !== null) conditions.push(ofCustomersDevice(row, `$${values.push(customerId)}`));
  if (deviceGroupIds !== null) conditions.push(inDeviceGroups(row, `$${values.push(deviceGroupIds)}`));
  return conditions.map((condition) => `AND ${condition}`).join(' ');
}
