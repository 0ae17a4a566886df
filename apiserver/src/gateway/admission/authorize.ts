// May this caller make this call? Decided from the contract's access option and the credential alone.
import { Access_Caller, type Access } from '@kellet/proto/es/kellet/v1/options_pb';
import { isAllowed } from '../../platform/address-ranges.ts';
import type { Caller, CallerKind } from '../../platform/rpc.ts';

/** A refusal, in words for the caller; undefined: go on. */
export type Refusal = string | undefined;

const callerOf: Record<Exclude<CallerKind, 'kubernetes'>, Access_Caller> = {
  public: Access_Caller.PUBLIC,
  user: Access_Caller.USER,
  service: Access_Caller.SERVICE,
  device: Access_Caller.DEVICE,
  platform: Access_Caller.PLATFORM,
};

/** Whether a method is open to callers without a credential. */
export const isPublic = (access: Access): boolean => access.callers.includes(Access_Caller.PUBLIC);

/**
 * Kind of caller, scope and address. A device key and the platform administrator hold no scopes to choose from: for them the
 * kind is enough, and the method's callers say what the kind may do.
 */
export function authorize(access: Access, caller: Caller, address: string): Refusal {
  if (isPublic(access)) return undefined;
  if (caller.kind === 'kubernetes') return authorizeKubernetes(access, caller, address);
  if (!access.callers.includes(callerOf[caller.kind])) return `a ${caller.kind} credential may not call this method`;
  const holdsScopes = caller.kind === 'user' || caller.kind === 'service';
  if (holdsScopes && access.scope !== '' && !caller.scopes.has(access.scope))
    return `the scope ${access.scope} is required`;
  return refuseAddress(caller, address);
}

/** RBAC has decided; here it is only looked whether it was asked about this method, and what it said. */
function authorizeKubernetes(access: Access, caller: Caller, address: string): Refusal {
  const { kubernetesPermission: permission } = access;
  if (permission === '') return 'a Kubernetes identity may not call this method';
  if (!caller.scopes.has(permission)) return `${caller.name} may not ${permission}.kellet.dev in a tenant's namespace`;
  return refuseAddress(caller, address);
}

const refuseAddress = (caller: Caller, address: string): Refusal =>
  isAllowed(address, caller.ipAllowlist) ? undefined : 'this address is not on the allowlist';

/**
 * The device that a device key names in a request, when it is another one than its own: then only being its gateway can
 * justify the call. Undefined: nothing to check.
 */
export function foreignDevice(access: Access, caller: Caller, named: string): string | undefined {
  if (caller.kind !== 'device' || access.deviceField === '' || named === caller.deviceId) return undefined;
  return named;
}

/** An IPv4 address as such also when the socket is a dual-stack one (::ffff:192.0.2.1). */
export const plainAddress = (address: string): string =>
  address.startsWith('::ffff:') && address.includes('.') ? address.slice('::ffff:'.length) : address;
