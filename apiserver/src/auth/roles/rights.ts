// What a user may do: the scopes of the role, and those that groups of users add. Pure.
import type { LimitedGrant } from '../../platform/rpc.ts';
import { type Role, scopesOfRole } from './roles.ts';

/** The scopes that a group of users grants; no device groups: for all devices. */
export type Grant = LimitedGrant;

/** The scopes that a credential holds, and those that it holds for some devices only. */
export interface Rights {
  readonly scopes: ReadonlySet<string>;
  readonly limitedGrants: readonly LimitedGrant[];
}

/** Returns the rights of a user with a role (null: none) and the grants of its groups. */
export function rightsOf(role: Role | null, grants: readonly Grant[]): Rights {
  const unlimited = grants.filter(({ deviceGroupIds }) => deviceGroupIds.length === 0);
  const scopes = new Set([...(role ? scopesOfRole(role) : []), ...unlimited.flatMap((grant) => grant.scopes)]);
  const limitedGrants = grants
    .filter(({ deviceGroupIds }) => deviceGroupIds.length > 0)
    .map((grant) => ({ ...grant, scopes: grant.scopes.filter((scope) => !scopes.has(scope)) }))
    .filter((grant) => grant.scopes.length > 0);
  return { scopes, limitedGrants };
}

/** Returns the scopes of a grant that are not held, or not for all of its devices; only what one holds can be granted. */
export function grantBeyond(asked: Grant, held: Rights): string[] {
  return asked.scopes.filter((scope) => {
    if (held.scopes.has(scope)) return false;
    if (asked.deviceGroupIds.length === 0) return true;
    const groups = new Set(
      held.limitedGrants.flatMap((grant) => (grant.scopes.includes(scope) ? grant.deviceGroupIds : [])),
    );
    return asked.deviceGroupIds.some((id) => !groups.has(id));
  });
}

/** Returns the scopes that a user holds beyond what another one holds. */
export const rightsBeyond = (asked: Rights, held: Rights): string[] => [
  ...new Set([
    ...grantBeyond({ scopes: [...asked.scopes], deviceGroupIds: [] }, held),
    ...asked.limitedGrants.flatMap((grant) => grantBeyond(grant, held)),
  ]),
];
