// The context of a call in one metadata entry, for a call that goes on in another process. One entry holds everything, so that
// nothing of the client's own metadata is mistaken for metadata of the hop (user-agent, te, grpc-timeout, bytes that HTTP/2
// would refuse). It is believed because the internal port lets in only who knows the secret.
import { invalidArgument } from '../platform/errors.ts';
import type { CallContext, Caller } from '../platform/rpc.ts';

/** The metadata key. */
export const callHeader = 'kellet-call-bin';

/**
 * The most bytes of a context. A connection ends with all its calls when it is sent more than 64 KiB of metadata, which is what
 * one client may send to the public port: in base64 and with gRPC's own entries this stays below.
 */
const mostBytes = 40 * 1024;

/** What travels; deadline and cancellation are gRPC's own. */
export type TravellingContext = Pick<CallContext, 'caller' | 'requestId' | 'address' | 'metadata'>;

interface Encoded {
  readonly caller: Omit<Caller, 'scopes'> & { readonly scopes: readonly string[] };
  readonly requestId: string;
  readonly address: string;
  readonly metadata: readonly (readonly [string, string])[];
}

/** The entry's bytes. Throws INVALID_ARGUMENT when the client's metadata make them too many. */
export function encodeContext({ caller, requestId, address, metadata }: TravellingContext): Buffer {
  const encoded: Encoded = {
    caller: { ...caller, scopes: [...caller.scopes] },
    requestId,
    address,
    metadata: [...metadata],
  };
  const bytes = Buffer.from(JSON.stringify(encoded));
  if (bytes.length > mostBytes) throw invalidArgument('the metadata of the call are too large');
  return bytes;
}

/** What encodeContext was given. Throws when the bytes are something else. */
export function decodeContext(bytes: Uint8Array): TravellingContext {
  const { caller, requestId, address, metadata } = JSON.parse(Buffer.from(bytes).toString()) as Encoded;
  return { caller: { ...caller, scopes: new Set(caller.scopes) }, requestId, address, metadata: new Map(metadata) };
}
