// Errors of calls between processes: an error of the service arrives as it was thrown; a failure of the connection
// becomes an error without addresses and other details.
import { Metadata, type ServiceError, status, type StatusObject } from '@grpc/grpc-js';
import { codeNames, codes, KelletError, toKelletError, unavailable } from '../platform/errors.ts';

/** Trailer that marks errors of the service itself, as opposed to the transport. */
const errorTrailer = 'kellet-error-bin';

/** What the status of a call cannot say about its error. */
interface ErrorFacts {
  readonly retryAfterSeconds?: number;
  /** Whether the call has changed something before it failed. */
  readonly hasChanged: boolean;
}

/** Converts an error of a handler to the status of the internal call. `hasChanged` tells whether it has changed something before. */
export function toInternalStatus(thrown: unknown, hasChanged: boolean): StatusObject & { readonly error: KelletError } {
  const error = toKelletError(thrown);
  const metadata = new Metadata();
  const facts: ErrorFacts = { retryAfterSeconds: error.retryAfterSeconds, hasChanged };
  metadata.set(errorTrailer, Buffer.from(JSON.stringify(facts)));
  return { code: codes[error.code].grpc, details: error.message, metadata, error };
}

/** Reports whether a call failed because its connection did, rather than by a decision of the other side. */
export const isLostConnection = (failure: ServiceError): boolean =>
  factsOf(failure) === undefined && (failure.code === status.UNAVAILABLE || failure.code === status.INTERNAL);

/** Reports whether the other side says that the call has changed something before it failed. */
export const saysChanged = (failure: ServiceError): boolean => factsOf(failure)?.hasChanged ?? false;

/** Converts a failure to the error for the caller of a remote handler. `target` names the service in the message. */
export function fromInternalStatus(failure: ServiceError, target: string): KelletError {
  const code = codeNames.get(failure.code);
  const facts = factsOf(failure);
  if (facts && code !== undefined) {
    return new KelletError(code, failure.details, { retryAfterSeconds: facts.retryAfterSeconds, cause: failure });
  }
  switch (failure.code) {
    case status.CANCELLED:
      return new KelletError('CANCELLED', 'the call was cancelled', { cause: failure });
    case status.DEADLINE_EXCEEDED:
      return new KelletError('DEADLINE_EXCEEDED', 'the deadline has passed', { cause: failure });
    // A broken connection is reported as INTERNAL or UNAVAILABLE depending on timing. A process that does not know the
    // method or has a different secret is not the intended one.
    case status.UNAVAILABLE:
    case status.INTERNAL:
    case status.UNIMPLEMENTED:
    case status.UNAUTHENTICATED:
      return unavailable(`${target} is not available`, failure);
    default:
      return toKelletError(failure);
  }
}

/** Returns what the other side says about its error; undefined for a failure of the transport. */
function factsOf(failure: ServiceError): ErrorFacts | undefined {
  const trailer = failure.metadata?.get(errorTrailer)[0];
  return trailer === undefined ? undefined : (JSON.parse(trailer.toString()) as ErrorFacts);
}
