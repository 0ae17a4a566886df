// Long-lived calls on both public ports: they continue as long as their caller is authorised.
import { isDeepStrictEqual } from 'node:util';
import type { DescMethod } from '@bufbuild/protobuf';
import { DeviceRegistryService } from '@kellet/proto/es/kellet/v1/device_registry_pb';
import { OtaService } from '@kellet/proto/es/kellet/v1/ota_pb';
import type { Credential } from '../../auth/credentials/device-proof.ts';
import { unavailable } from '../../platform/errors.ts';
import { type CallContext, type Caller, isOpenEnded } from '../../platform/rpc.ts';
import { accessOf } from '../transcoding/routes.ts';
import type { Authenticator } from './authenticate.ts';
import { authorize } from './authorize.ts';

/** The credential of a call and where it came from. */
export interface CallCredential {
  readonly credential: Credential | undefined;
  /** Where a Kubernetes token is used. */
  readonly namespace: string | undefined;
}

/** Dependencies that end calls. */
export interface OpenCallParts {
  readonly authenticator: Authenticator;
  /** Aborted when the process stops. */
  readonly stopping: AbortSignal;
}

/**
 * Runs a call. Streams, calls that may wait, changes of many devices and creations of packages end when their credential is revoked,
 * expires or no longer suffices (UNAUTHENTICATED, PERMISSION_DENIED). When the process stops, open-ended calls end with UNAVAILABLE, while uploads
 * may finish. The context is aborted when the call ends.
 */
export async function whileAllowed<T>(
  parts: OpenCallParts,
  method: DescMethod,
  { credential, namespace }: CallCredential,
  context: CallContext & { abort(): void },
  call: () => Promise<T>,
): Promise<T> {
  if (!isLong(method)) return call();
  let end: (error: Error) => void = () => undefined;
  const ended = new Promise<never>((_resolve, reject) => {
    end = (error) => {
      reject(error);
      context.abort();
    };
  });
  const stop = (): void => end(unavailable('the server is stopping'));
  const { caller, address } = context;
  const access = accessOf(method);
  const stopWatching =
    credential === undefined
      ? undefined
      : parts.authenticator.watch({
          ...{ credential, caller, address, end },
          use: { namespace: namespace ?? '', permission: access.kubernetesPermission },
          refusalOf: (now) => movedTo(now, caller) ?? authorize(access, now, address),
        });
  if (isOpenEnded(method)) parts.stopping.addEventListener('abort', stop);
  try {
    return await Promise.race([call(), ended]);
  } finally {
    stopWatching?.();
    parts.stopping.removeEventListener('abort', stop);
  }
}

/** Calls with one response that change many devices, or fetch an artifact first, for up to half an hour. */
const lasting: ReadonlySet<DescMethod> = new Set([
  DeviceRegistryService.method.changeDevices,
  OtaService.method.createPackage,
]);

/** Reports whether a call may take long: long enough for its credential to be revoked because of it. */
const isLong = (method: DescMethod): boolean =>
  method.methodKind !== 'unary' || isOpenEnded(method) || lasting.has(method);

/**
 * Returns why a call must end whose caller now reaches other devices than when it was admitted: what it has selected may
 * not be among them.
 */
export function movedTo(now: Caller, admitted: Caller): string | undefined {
  if (now.customerId !== admitted.customerId) return 'the user now belongs to another customer';
  return isDeepStrictEqual(now.limitedGrants, admitted.limitedGrants)
    ? undefined
    : 'the user’s scopes are now limited to other devices';
}
