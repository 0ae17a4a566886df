// What happens to every call before its handler, on both ports alike: authenticate → rate limit → authorise (DECISIONS 22).
import type { DescMethod, Message } from '@bufbuild/protobuf';
import type { AccessEntry } from '../observability/access-log.ts';
import type { Access } from '@kellet/proto/es/kellet/v1/options_pb';
import { permissionDenied } from '../../platform/errors.ts';
import { publicCaller, type Caller } from '../../platform/rpc.ts';
import { authorize, foreignDevice, isPublic } from './authorize.ts';
import type { Authenticator } from './authenticate.ts';
import { rateLimitHeaders, type RateLimiter, type WindowState } from '../rate-limit/rate-limit.ts';
import { RateLimitExceeded } from '../rate-limit/rate-limit-exceeded.ts';

/** Whether a gateway device may speak for another device of its tenant (its connected child). */
export type IsGatewayOf = (tenantId: string, gatewayDeviceId: string, deviceId: string) => Promise<boolean>;

/** The steps before a handler. */
export class Admission {
  private readonly authenticator: Authenticator;
  private readonly limiter: RateLimiter;
  private readonly isGatewayOf: IsGatewayOf;

  constructor(authenticator: Authenticator, limiter: RateLimiter, isGatewayOf: IsGatewayOf) {
    this.authenticator = authenticator;
    this.limiter = limiter;
    this.isGatewayOf = isGatewayOf;
  }

  /**
   * Who calls, if the call may go on. The rate limit's headers are put into `headers` also when it may not. Throws
   * UNAUTHENTICATED, RESOURCE_EXHAUSTED, PERMISSION_DENIED, in this order. `namespace` is where a Kubernetes token is used;
   * with any other credential it means nothing. `entry` learns who calls also when the call is refused.
   */
  async admit(
    access: Access,
    credential: string | undefined,
    address: string,
    headers: Map<string, string>,
    namespace = '',
    entry?: AccessEntry,
  ): Promise<Caller> {
    if (isPublic(access)) {
      if (entry) entry.caller = publicCaller;
      this.limiter.throttleAddress(address);
      return publicCaller;
    }
    const use = { namespace, permission: access.kubernetesPermission };
    const identity = await this.authenticator.authenticate(credential, address, use);
    if (entry) entry.caller = identity.caller;
    const { kind, tenantId } = identity.caller;
    // Who holds no right in a tenant must not use up its window.
    if (kind === 'kubernetes' && tenantId === '') this.limiter.throttleAddress(address);
    else this.setHeaders(await this.limiter.count(access, identity), headers);
    const refusal = authorize(access, identity.caller, address);
    if (refusal !== undefined) throw permissionDenied(refusal);
    return identity.caller;
  }

  /** Shows the window, and refuses the call when it is used up. */
  private setHeaders(state: WindowState | undefined, headers: Map<string, string>): void {
    if (!state) return;
    for (const [name, value] of rateLimitHeaders(state)) headers.set(name, value);
    if (state.retryAfterSeconds > 0) throw new RateLimitExceeded(state.retryAfterSeconds);
  }

  /**
   * Who opens a socket outside the contract's methods (/ws), counted as one request. What the caller may do there is for the
   * socket to judge. Throws UNAUTHENTICATED, RESOURCE_EXHAUSTED.
   */
  async admitSocket(credential: string, address: string): Promise<Caller> {
    const identity = await this.authenticator.authenticate(credential, address);
    const wait = (await this.limiter.countWindow(identity)).retryAfterSeconds;
    if (wait > 0) throw new RateLimitExceeded(wait);
    return identity.caller;
  }

  /** Refuses a device that names a device which is neither itself nor its child. Throws PERMISSION_DENIED. */
  async admitDevice(access: Access, method: DescMethod, message: Message, caller: Caller): Promise<void> {
    if (access.deviceField === '' || caller.kind !== 'device') return;
    const named = foreignDevice(access, caller, fieldText(method, message, access.deviceField));
    if (named === undefined) return;
    if (named !== '' && (await this.isGatewayOf(caller.tenantId, caller.deviceId, named))) return;
    throw permissionDenied('a device key may name only its own device');
  }
}

function fieldText(method: DescMethod, message: Message, name: string): string {
  const field = method.input.fields.find((candidate) => candidate.name === name);
  if (!field) throw new Error(`${method.name}: device_field ${name} is no field`);
  const value = (message as Message & Record<string, unknown>)[field.localName];
  return typeof value === 'string' ? value : '';
}
