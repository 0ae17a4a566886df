// Decides whether a caller may make a call, from the contract's access option and the credential alone.
import {
  type Access,
  Access_Caller,
  Access_CustomerAccess as CustomerAccess,
} from '@kellet/proto/es/kellet/v1/options_pb';
import { addressRefusal } from '../../platform/addresses/address-ranges.ts';
import type { Caller, CallerKind } from '../../platform/rpc.ts';
import { holdsEveryScope } from '../../platform/scopes.ts';
import { deviceGroupsOf, isLimited, type Visibility } from '../../platform/visibility.ts';

/** Reason for a rejection, for the caller; undefined means allowed. */
export type Refusal = string | undefined;

const callerOf: Record<Exclude<CallerKind, 'kubernetes'>, Access_Caller> = {
  public: Access_Caller.PUBLIC,
  user: Access_Caller.USER,
  service: Access_Caller.SERVICE,
  device: Access_Caller.DEVICE,
  platform: Access_Caller.PLATFORM,
};

/** Reports whether a method is open to callers without a credential. */
export const isPublic = (access: Access): boolean => access.callers.includes(Access_Caller.PUBLIC);

/**
 * Checks kind of caller, scope, limits to some devices, and address. Device keys and the platform administrator have no
 * selectable scopes: for them, being listed among the method's callers suffices.
 */
export function authorize(access: Access, caller: Caller, address: string): Refusal {
  if (isPublic(access)) return undefined;
  if (caller.kind === 'kubernetes') return authorizeKubernetes(access, caller, address);
  if (!access.callers.includes(callerOf[caller.kind])) return `a ${caller.kind} credential may not call this method`;
  if (caller.mustEnroll && !access.beforeEnrollment) {
    return 'the tenant requires a second factor: enroll one first, with POST /api/v1/auth/mfa/totp or a security key';
  }
  const holdsScopes = caller.kind === 'user' || caller.kind === 'service';
  // First, because the scope alone would not suffice.
  if (holdsScopes && access.everyScope && !holdsEveryScope(caller)) return everyScopeRequired;
  const deviceGroups = deviceGroupsOf(caller, access.scope);
  if (holdsScopes && access.scope !== '' && !caller.scopes.has(access.scope) && deviceGroups === null)
    return `the scope ${access.scope} is required`;
  if (caller.customerId !== '' && !isForCustomers(access)) return 'a user of a customer may not call this method';
  if (deviceGroups !== null && !isForDeviceGroups(access))
    return `the scope ${access.scope} is limited to device groups, which does not suffice for this method`;
  return refuseAddress(caller, address);
}

const everyScopeRequired = 'every scope of the tenant is required, as a tenant_admin holds them';

/** Reports whether a caller must sign in again before making a call, with a second factor if there is one. */
export function needsStepUp({ stepUp, beforeEnrollment }: Access, caller: Caller, milliseconds: number): boolean {
  if (!stepUp) return false;
  const until = caller.stepUpUntil ?? (beforeEnrollment ? caller.enrollUntil : undefined);
  return until !== undefined && until * 1000 <= milliseconds;
}

/** Methods that say nothing are not. */
const isForCustomers = ({ customerAccess }: Access): boolean =>
  customerAccess === CustomerAccess.FILTERED_ENTITIES ||
  customerAccess === CustomerAccess.UNLIMITED ||
  isForDeviceGroups({ customerAccess });

const isForDeviceGroups = ({ customerAccess }: Pick<Access, 'customerAccess'>): boolean =>
  customerAccess === CustomerAccess.OWN_DEVICE || customerAccess === CustomerAccess.FILTERED;

/** RBAC has already decided: this checks that the decision was about this method, and what it was. */
function authorizeKubernetes(access: Access, caller: Caller, address: string): Refusal {
  const { kubernetesPermission: permission } = access;
  if (permission === '') return 'a Kubernetes identity may not call this method';
  if (!caller.scopes.has(permission)) return `${caller.name} may not ${permission}.kellet.dev in a tenant's namespace`;
  return refuseAddress(caller, address);
}

const refuseAddress = (caller: Caller, address: string): Refusal => addressRefusal(address, caller.ipAllowlist);

/**
 * Returns the device named in a device key's request if it is not the caller's own: then the call is allowed only if
 * the caller is its gateway. Returns undefined if there is nothing to check.
 */
export function foreignDevice(access: Access, caller: Caller, named: string): string | undefined {
  if (caller.kind !== 'device' || access.deviceField === '' || named === caller.deviceId) return undefined;
  return named;
}

/** Reports whether the named device must be one that the caller, who is limited to some, reaches. */
export const mustBeVisible = (access: Access, visibility: Visibility): boolean =>
  isLimited(visibility) && access.customerAccess === CustomerAccess.OWN_DEVICE;

/** Unwraps IPv4 addresses of dual-stack sockets (::ffff:192.0.2.1). */
export const plainAddress = (address: string): string =>
  address.startsWith('::ffff:') && address.includes('.') ? address.slice('::ffff:'.length) : address;
