// Logs what Kubernetes identities change: one line for every call, with the id under which the cluster's audit log knows the
// token, which the audit log of the tenant does not have. Denied attempts are logged by auth/credentials/kubernetes-identities.ts.
import type { DescMethod } from '@bufbuild/protobuf';
import { parsePermission } from '../../auth/credentials/kubernetes-token.ts';
import { toKelletError } from '../../platform/errors.ts';
import type { Logger } from '../../platform/observability/logger.ts';
import type { CallContext, Invoker } from '../../platform/rpc.ts';
import { accessOf } from '../transcoding/routes.ts';

const reading: readonly (string | undefined)[] = ['get', 'list', 'watch'];

/** Request fields that identify the subject of a call, by local name. */
const about = { rolloutId: 'rollout_id', packageId: 'package_id', deviceIds: 'device_ids' } as const;

/** Wraps an invoker to log the calls of Kubernetes identities. */
export function withKubernetesLog(invoker: Invoker, logger: Logger): Invoker {
  const isRecorded = (method: DescMethod, context: CallContext): boolean =>
    context.caller.kind === 'kubernetes' &&
    !reading.includes(parsePermission(accessOf(method).kubernetesPermission)?.verb);
  /** `request` may be completed until the outcome is known. */
  const recorded = async <T>(
    method: DescMethod,
    request: () => object,
    context: CallContext,
    call: () => Promise<T>,
  ): Promise<T> => {
    let code = 'OK';
    try {
      return await call();
    } catch (error) {
      code = toKelletError(error).code;
      throw error;
    } finally {
      const { caller, requestId } = context;
      const who = { user: caller.name, credential_id: caller.credentialId ?? '', tenant: caller.tenantId };
      const what = { permission: accessOf(method).kubernetesPermission, ...idsOf(request()) };
      logger.info({ audit: 'kubernetes', ...who, ...what, request_id: requestId, code }, method.name);
    }
  };
  return {
    unary: (method, request, context) =>
      isRecorded(method, context)
        ? recorded(
            method,
            () => request,
            context,
            () => invoker.unary(method, request, context),
          )
        : invoker.unary(method, request, context),
    stream: (method) => {
      const handler = invoker.stream(method);
      return (requests, context) => {
        if (!isRecorded(method, context) || !(Symbol.asyncIterator in requests)) return handler(requests, context);
        let first: object = {};
        const noted = async function* () {
          for await (const request of requests) {
            if (Object.keys(first).length === 0) first = request;
            yield request;
          }
        };
        const result = handler(noted(), context);
        return Symbol.asyncIterator in result
          ? result
          : recorded(
              method,
              () => first,
              context,
              () => result,
            );
      };
    },
  };
}

function idsOf(request: object): Record<string, unknown> {
  return Object.fromEntries(
    Object.entries(about)
      .map(([field, name]) => [name, (request as Record<string, unknown>)[field]] as const)
      .filter(([, value]) => value !== undefined && value !== '' && (!Array.isArray(value) || value.length > 0)),
  );
}
