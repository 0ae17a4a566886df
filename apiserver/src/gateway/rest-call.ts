// One REST request as a call: its body, and the context its handler sees.
import type { IncomingMessage, ServerResponse } from 'node:http';
import { invalidArgument } from '../platform/errors.ts';
import type { CallContext, Caller } from '../platform/rpc.ts';
import { continueRequest } from './http-server.ts';
import { requestMetadata } from './metadata.ts';
import { currentTrace } from '../platform/tracing.ts';

const noBytes = new Uint8Array();

/** Reads a body. Throws INVALID_ARGUMENT when it is longer than `limit` bytes or compressed. */
export async function readBody(request: IncomingMessage, limit: number): Promise<Uint8Array> {
  const tooLong = () => invalidArgument(`the body is longer than ${limit} bytes`);
  refuseCompressed(request);
  const { 'content-length': contentLength, 'transfer-encoding': transferEncoding } = request.headers;
  if (Number(contentLength ?? 0) > limit) throw tooLong();
  continueRequest(request);
  // RFC 9112, 6.3: there is none.
  if (contentLength === undefined && transferEncoding === undefined) return noBytes;
  return new Promise((resolve, reject) => {
    const chunks: Uint8Array[] = [];
    let length = 0;
    request.on('data', (chunk: Uint8Array) => {
      length += chunk.length;
      if (length > limit) {
        request.removeAllListeners('data');
        request.resume();
        reject(tooLong());
      } else {
        chunks.push(chunk);
      }
    });
    request.once('end', () => {
      request.off('error', endEarly).off('close', endEarly);
      resolve(chunks.length === 1 ? chunks[0]! : Buffer.concat(chunks));
    });
    const endEarly = (): void => reject(invalidArgument('the body is not well-formed, or ended early'));
    request.once('error', endEarly);
    request.once('close', endEarly);
  });
}

/** The body as it arrives, for a handler that takes it piece by piece. Throws INVALID_ARGUMENT when it ends early. */
export async function* streamBody(request: IncomingMessage): AsyncGenerator<Uint8Array> {
  refuseCompressed(request);
  continueRequest(request);
  try {
    // A handler that does not want the rest must still be able to answer: the socket stays.
    yield* request.iterator({ destroyOnReturn: false }) as AsyncIterable<Uint8Array>;
  } catch {
    throw invalidArgument('the body ended early');
  }
}

function refuseCompressed(request: IncomingMessage): void {
  const { 'content-encoding': encoding, 'transfer-encoding': transfer } = request.headers;
  const isPlain = (encoding ?? 'identity') === 'identity' && (transfer ?? 'chunked').toLowerCase() === 'chunked';
  if (!isPlain) throw invalidArgument('compressed bodies are not accepted');
}

/** The context of a call over REST. Costly parts are made when a handler asks for them. */
export class RestContext implements CallContext {
  readonly caller: Caller;
  readonly tenantId: string;
  readonly requestId: string;
  readonly address: string;
  readonly responseMetadata: Map<string, string>;
  readonly deadline: number | undefined;
  private readonly request: IncomingMessage;
  private readonly response: ServerResponse;
  private controller: AbortController | undefined;
  private readonly trace = currentTrace();
  private lazyMetadata: ReadonlyMap<string, string> | undefined;

  constructor(
    request: IncomingMessage,
    response: ServerResponse,
    options: Pick<CallContext, 'caller' | 'requestId' | 'address' | 'responseMetadata' | 'deadline'>,
  ) {
    this.request = request;
    this.response = response;
    this.caller = options.caller;
    this.tenantId = options.caller.tenantId;
    this.requestId = options.requestId;
    this.address = options.address;
    this.responseMetadata = options.responseMetadata;
    this.deadline = options.deadline;
  }

  get metadata(): ReadonlyMap<string, string> {
    return (this.lazyMetadata ??= requestMetadata(
      Object.entries(this.request.headers).map(([name, value]) => [
        name,
        Array.isArray(value) ? value.join(', ') : (value ?? ''),
      ]),
      this.trace,
    ));
  }

  get signal(): AbortSignal {
    if (!this.controller) {
      const controller = new AbortController();
      this.controller = controller;
      if (this.response.destroyed) controller.abort();
      else this.response.once('close', () => this.response.writableFinished || controller.abort());
    }
    return this.controller.signal;
  }

  /** Ends the call from outside: its credential is void, or its deadline has passed. */
  abort(): void {
    void this.signal;
    this.controller!.abort();
  }

  afterResponse(run: () => void): void {
    if (this.response.closed) run();
    else this.response.once('close', run);
  }
}
