// Calls that may last for minutes, on both public ports: they go on for as long as their caller may make them.
import type { DescMethod } from '@bufbuild/protobuf';
import { unavailable } from '../../platform/errors.ts';
import { isOpenEnded, type CallContext } from '../../platform/rpc.ts';
import type { Authenticator } from './authenticate.ts';
import { authorize } from './authorize.ts';
import { accessOf } from '../transcoding/routes.ts';

/** What a call was made with. */
export interface CallCredential {
  readonly credential: string | undefined;
  /** Where a Kubernetes token is used. */
  readonly namespace: string | undefined;
}

/** What ends calls. */
export interface OpenCallParts {
  readonly authenticator: Authenticator;
  /** Aborts when the process stops. */
  readonly stopping: AbortSignal;
}

/**
 * Runs a call. A stream, and a call that may wait, ends when its credential is revoked, expires or is no longer enough
 * (UNAUTHENTICATED, PERMISSION_DENIED). When the process stops, those that last until somebody ends them end with UNAVAILABLE;
 * an upload may finish. The context is aborted then.
 */
export async function whileAllowed<T>(
  parts: OpenCallParts,
  method: DescMethod,
  { credential, namespace }: CallCredential,
  context: CallContext & { abort(): void },
  call: () => Promise<T>,
): Promise<T> {
  if (method.methodKind === 'unary' && !isOpenEnded(method)) return call();
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
          refusalOf: (now) => authorize(access, now, address),
        });
  if (isOpenEnded(method)) parts.stopping.addEventListener('abort', stop);
  try {
    return await Promise.race([call(), ended]);
  } finally {
    stopWatching?.();
    parts.stopping.removeEventListener('abort', stop);
  }
}
