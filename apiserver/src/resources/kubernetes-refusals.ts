// What the API server's refusal of a resource means to the caller of the API who asked for it.
import type { Kind } from '@kellet/crds';
import type { KubernetesError } from '@kellet/kubernetes';
import { failedPrecondition, invalidArgument, unavailable } from '../platform/errors.ts';
import { conflictMessage } from './field-ownership.ts';
import { inContract } from '../control/field-names.ts';

/** The error for the caller; it names the fields as the contract does. */
export function refusedByKubernetes(kind: Kind, error: KubernetesError): Error {
  if (error.failure === 'invalid') {
    const causes = error.causes.map(({ field = '', message = '' }) =>
      // A rule about the whole spec names its fields in the message.
      field === '' || field === 'spec' || field === '<nil>' ? message : `${field}: ${message}`,
    );
    return invalidArgument(inContract(kind, causes.length > 0 ? causes.join('; ') : error.message));
  }
  if (error.failure === 'conflict')
    return failedPrecondition(inContract(kind, conflictMessage(error) ?? error.message));
  // No namespace, or the definitions are not installed: the tenant is not ready to hold resources.
  if (error.failure === 'notFound') return unavailable("the tenant's namespace cannot hold resources now", error);
  return error;
}
