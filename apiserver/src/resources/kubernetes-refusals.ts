// Converts errors of the Kubernetes API server to errors for the caller of the API.
import type { Kind } from '@kellet/crds';
import type { KubernetesError } from '@kellet/kubernetes';
import { inContract } from '../control/field-names.ts';
import { failedPrecondition, invalidArgument, unavailable } from '../platform/errors.ts';
import { conflictMessage } from './field-ownership.ts';

/** Returns the error for the caller, with the API's field names. */
export function refusedByKubernetes(kind: Kind, error: KubernetesError): Error {
  if (error.failure === 'invalid') {
    const causes = error.causes.map(({ field = '', message = '' }) =>
      // The message of a rule for the whole spec already names the fields.
      field === '' || field === 'spec' || field === '<nil>' ? message : `${field}: ${message}`,
    );
    return invalidArgument(inContract(kind, causes.length > 0 ? causes.join('; ') : error.message));
  }
  if (error.failure === 'conflict')
    return failedPrecondition(inContract(kind, conflictMessage(error) ?? error.message));
  // The namespace does not exist yet, or the definitions are not installed.
  if (error.failure === 'notFound') return unavailable("the tenant's namespace is not ready", error);
  return error;
}
