// Errors of a call between processes: a service's error arrives as it was thrown, and the failure of the hop itself becomes one
// that shows nothing of addresses and connections.
import { Metadata, status, type ServiceError, type StatusObject } from '@grpc/grpc-js';
import { codeNames, codes, KelletError, toKelletError, unavailable } from '../platform/errors.ts';

/** Trailer by which the caller knows that the service itself has spoken, and not the transport. */
const errorTrailer = 'kellet-error-bin';

/** An error of a handler as the status of the internal call. */
export function toInternalStatus(thrown: unknown): StatusObject & { readonly error: KelletError } {
  const error = toKelletError(thrown);
  const metadata = new Metadata();
  metadata.set(errorTrailer, Buffer.from(JSON.stringify({ retryAfterSeconds: error.retryAfterSeconds })));
  return { code: codes[error.code].grpc, details: error.message, metadata, error };
}

/** What the caller of a remote handler gets to see; `target` is the service's name in the message. */
export function fromInternalStatus(failure: ServiceError, target: string): KelletError {
  const code = codeNames.get(failure.code);
  const trailer = failure.metadata?.get(errorTrailer)[0];
  if (trailer !== undefined && code !== undefined) {
    const { retryAfterSeconds } = JSON.parse(trailer.toString()) as { retryAfterSeconds?: number };
    return new KelletError(code, failure.details, { retryAfterSeconds, cause: failure });
  }
  switch (failure.code) {
    case status.CANCELLED:
      return new KelletError('CANCELLED', 'the call was cancelled', { cause: failure });
    case status.DEADLINE_EXCEEDED:
      return new KelletError('DEADLINE_EXCEEDED', 'the deadline has passed', { cause: failure });
    // A connection that breaks is INTERNAL or UNAVAILABLE, as the moment has it; a process that does not know the method, or
    // another secret, is not the one that was meant.
    case status.UNAVAILABLE:
    case status.INTERNAL:
    case status.UNIMPLEMENTED:
    case status.UNAUTHENTICATED:
      return unavailable(`${target} is not available`, failure);
    default:
      return toKelletError(failure);
  }
}
