// The context of a call as a single metadata entry, for calls handled by another process. A single entry keeps the
// client's metadata apart from that of the hop (user-agent, te, grpc-timeout, bytes that HTTP/2 would reject). It is
// trusted because the internal port requires the shared secret.
import { invalidArgument } from '../platform/errors.ts';
import type { CallContext, Caller } from '../platform/rpc.ts';

/** The metadata key. */
export const callHeader = 'kellet-call-bin';

/**
 * Maximum bytes of a context. A peer that receives more than 64 KiB of metadata closes the connection with all its
 * calls, and clients may send as much to the public port: encoded in base64 with gRPC's own entries, this stays below.
 */
const maxBytes = 40 * 1024;

/** The parts that are sent; gRPC itself carries deadline and cancellation. */
export type TravellingContext = Pick<CallContext, 'caller' | 'requestId' | 'address' | 'metadata'>;

interface Encoded {
  readonly caller: Omit<Caller, 'scopes'> & { readonly scopes: readonly string[] };
  readonly requestId: string;
  readonly address: string;
  readonly metadata: readonly (readonly [string, string])[];
}

/** Encodes a context. Throws INVALID_ARGUMENT if the client's metadata make it too large. */
export function encodeContext({ caller, requestId, address, metadata }: TravellingContext): Buffer {
  const encoded: Encoded = {
    caller: { ...caller, scopes: [...caller.scopes] },
    requestId,
    address,
    metadata: [...metadata],
  };
  const bytes = Buffer.from(JSON.stringify(encoded));
  if (bytes.length > maxBytes) throw invalidArgument('the metadata of the call are too large');
  return bytes;
}

/** Decodes the result of encodeContext. Throws if the bytes are something else. */
export function decodeContext(bytes: Uint8Array): TravellingContext {
  const { caller, requestId, address, metadata } = JSON.parse(Buffer.from(bytes).toString()) as Encoded;
  return { caller: { ...caller, scopes: new Set(caller.scopes) }, requestId, address, metadata: new Map(metadata) };
}
