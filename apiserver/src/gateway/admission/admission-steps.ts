// The steps before every handler, on both ports: authenticate → rate limit → authorise.
import type { DescMethod, Message } from '@bufbuild/protobuf';
import type { Access } from '@kellet/proto/es/kellet/v1/options_pb';
import type { Credential } from '../../auth/credentials/device-proof.ts';
import { addressBlock } from '../../platform/addresses/address-block.ts';
import type { Clock } from '../../platform/clock.ts';
import { notFound, permissionDenied } from '../../platform/errors.ts';
import { storedId } from '../../platform/ids.ts';
import { inSomeTrace, setTraceOwner } from '../../platform/observability/tracing.ts';
import { type Caller, publicCaller } from '../../platform/rpc.ts';
import { holdsInPart, type Visibility, visibilityOf } from '../../platform/visibility.ts';
import type { AccessEntry } from '../observability/access-log.ts';
import type { AuditLog } from '../observability/audit-log.ts';
import { type RateLimiter, rateLimitHeaders, type WindowState } from '../rate-limit/rate-limit.ts';
import { RateLimitExceeded } from '../rate-limit/rate-limit-exceeded.ts';
import type { Authenticator } from './authenticate.ts';
import { authorize, foreignDevice, isPublic, mustBeVisible, needsStepUp } from './authorize.ts';
import type { CallCredential } from './open-call.ts';
import { StepUpRequired } from './step-up-required.ts';

const readingDevices = 'devices:read';

/** Milliseconds that a request may take to arrive before its caller is looked up again. */
const freshMilliseconds = 1000;

/** Reports whether a gateway device may act for another device of its tenant (a connected child). */
export type IsGatewayOf = (tenantId: string, gatewayDeviceId: string, deviceId: string) => Promise<boolean>;

/** Reports whether the tenant has a device and a limited caller reaches it. */
export type IsVisible = (tenantId: string, deviceId: string, visibility: Visibility) => Promise<boolean>;

/** Queries of the registry about devices. */
export interface DeviceRelations {
  readonly isGatewayOf: IsGatewayOf;
  readonly isVisible: IsVisible;
}

/** Reports whether a caller may do nothing in any tenant: it must use up no window, nor that of the platform's administrators. */
const isWithoutRights = ({ kind, tenantId }: Caller): boolean => kind === 'kubernetes' && tenantId === '';

/** The steps before a handler. */
export class Admission {
  private readonly authenticator: Authenticator;
  private readonly limiter: RateLimiter;
  private readonly devices: DeviceRelations;
  private readonly clock: Clock;
  private readonly audit: Pick<AuditLog, 'refused'>;

  /** `audit` records the calls that are refused. */
  constructor(
    authenticator: Authenticator,
    limiter: RateLimiter,
    devices: DeviceRelations,
    clock: Clock,
    audit: Pick<AuditLog, 'refused'>,
  ) {
    this.clock = clock;
    this.audit = audit;
    this.authenticator = authenticator;
    this.limiter = limiter;
    this.devices = devices;
  }

  /**
   * Returns the caller if the call may proceed. Throws UNAUTHENTICATED, RESOURCE_EXHAUSTED or PERMISSION_DENIED, checked
   * in this order, and then StepUpRequired if the caller's sign-in is too old for the method. Adds the rate limit headers
   * to `headers`, and the caller to `entry`, even when it throws. `namespace` is where a Kubernetes token is used; it is
   * ignored for other credentials.
   */
  async admit(
    access: Access,
    credential: Credential | undefined,
    address: string,
    headers: Map<string, string>,
    namespace = '',
    entry?: AccessEntry,
  ): Promise<Caller> {
    try {
      return await this.admitCaller(access, { credential, address, namespace }, headers, entry);
    } catch (error) {
      if (entry) this.audit.refused(entry, error);
      throw error;
    }
  }

  private async admitCaller(
    access: Access,
    { credential, address, namespace }: { credential: Credential | undefined; address: string; namespace: string },
    headers: Map<string, string>,
    entry: AccessEntry | undefined,
  ): Promise<Caller> {
    setTraceOwner(addressBlock(address));
    if (isPublic(access)) {
      if (entry) entry.caller = publicCaller;
      this.limiter.throttleAddress(address);
      return publicCaller;
    }
    const use = { namespace, permission: access.kubernetesPermission };
    const identity = await this.authenticator.authenticate(credential, address, use);
    if (entry) entry.caller = identity.caller;
    const { tenantId } = identity.caller;
    if (tenantId !== '') setTraceOwner(tenantId);
    if (isWithoutRights(identity.caller)) this.limiter.throttleAddress(address);
    else this.setHeaders(await this.limiter.count(access, identity), headers);
    this.authorize(access, identity.caller, address);
    return identity.caller;
  }

  private authorize(access: Access, caller: Caller, address: string): void {
    const refusal = authorize(access, caller, address);
    if (refusal !== undefined) throw permissionDenied(refusal);
    if (needsStepUp(access, caller, this.clock.now())) throw new StepUpRequired(caller.stepUpUntil !== undefined);
  }

  /**
   * Returns the caller of a request that has arrived as a whole. If that took a while, the credential may have been revoked
   * meanwhile, or its rights may have changed: then it is checked as in `admit`, but not counted, and the caller is the one of now.
   */
  async readmit(
    access: Access,
    caller: Caller,
    { credential, namespace = '' }: CallCredential,
    entry: AccessEntry,
  ): Promise<Caller> {
    if (isPublic(access) || performance.now() - entry.started < freshMilliseconds) return caller;
    try {
      const use = { namespace, permission: access.kubernetesPermission };
      const { caller: now } = await this.authenticator.authenticate(credential, entry.address, use);
      entry.caller = now;
      this.authorize(access, now, entry.address);
      return now;
    } catch (error) {
      this.audit.refused(entry, error);
      throw error;
    }
  }

  private async mayRead(caller: Caller, deviceId: string): Promise<boolean> {
    if (!holdsInPart(caller, readingDevices)) return false;
    return this.devices.isVisible(caller.tenantId, deviceId, visibilityOf(caller, readingDevices));
  }

  /** Adds the rate limit headers; throws when the window is exhausted. */
  private setHeaders(state: WindowState | undefined, headers: Map<string, string>): void {
    if (!state) return;
    for (const [name, value] of rateLimitHeaders(state)) headers.set(name, value);
    if (state.retryAfterSeconds > 0) throw new RateLimitExceeded(state.retryAfterSeconds);
  }

  /**
   * Returns the caller who opens a socket outside the contract's methods (/ws), counted as one request. The socket
   * itself authorises the caller. Throws UNAUTHENTICATED or RESOURCE_EXHAUSTED.
   */
  admitSocket(credential: string, address: string): Promise<Caller> {
    return inSomeTrace(async () => {
      setTraceOwner(addressBlock(address));
      const identity = await this.authenticator.authenticate(credential, address);
      if (isWithoutRights(identity.caller)) this.limiter.throttleAddress(address);
      else {
        const wait = (await this.limiter.countWindow(identity)).retryAfterSeconds;
        if (wait > 0) throw new RateLimitExceeded(wait);
      }
      return identity.caller;
    });
  }

  /**
   * Checks that a device names only itself or one of its children (PERMISSION_DENIED), and a limited caller only devices
   * that it reaches (NOT_FOUND, as for a device that does not exist; PERMISSION_DENIED if it may read the device, and
   * only lacks the scope of this call for it).
   */
  async admitDevice(
    access: Access,
    method: DescMethod,
    message: Message,
    caller: Caller,
    entry?: AccessEntry,
  ): Promise<void> {
    try {
      await this.checkDevice(access, method, message, caller);
    } catch (error) {
      if (entry) this.audit.refused(entry, error, message);
      throw error;
    }
  }

  private async checkDevice(access: Access, method: DescMethod, message: Message, caller: Caller): Promise<void> {
    const device = nameDevice(access, method, message);
    const visibility = visibilityOf(caller, access.scope);
    if (mustBeVisible(access, visibility)) {
      if (device === '') throw permissionDenied(`a limited caller must name a device: ${access.deviceField}`);
      if (!(await this.devices.isVisible(caller.tenantId, device, visibility))) {
        throw (await this.mayRead(caller, device))
          ? permissionDenied(`the scope ${access.scope} is limited to device groups that this device is not in`)
          : notFound(access.deviceField);
      }
    }
    if (access.deviceField === '' || caller.kind !== 'device') return;
    const named = foreignDevice(access, caller, device);
    if (named === undefined) return;
    if (named !== '' && (await this.devices.isGatewayOf(caller.tenantId, caller.deviceId, named))) return;
    throw permissionDenied('a device key may name only its own device');
  }
}

/**
 * Returns the device that a request names, empty if none. From here on the request spells it as it is stored: what handlers compare it
 * with, or wait for under its name, would not be found otherwise.
 */
function nameDevice({ deviceField }: Access, method: DescMethod, message: Message): string {
  if (deviceField === '') return '';
  const field = method.input.fields.find((candidate) => candidate.name === deviceField);
  if (!field) throw new Error(`${method.name}: device_field ${deviceField} does not exist`);
  const fields = message as Message & Record<string, unknown>;
  const given = fields[field.localName];
  return typeof given === 'string' ? (fields[field.localName] = storedId(given)) : '';
}
