// A REST request as a call: its body, and the context for its handler.
import type { IncomingMessage, ServerResponse } from 'node:http';
import { invalidArgument, KelletError, unavailable } from '../../platform/errors.ts';
import { currentTrace } from '../../platform/observability/tracing.ts';
import { addPiece } from '../../platform/pieces.ts';
import type { CallContext, Caller } from '../../platform/rpc.ts';
import type { BodyBounds } from '../memory/body-memory.ts';
import type { Hold } from '../memory/memory-budget.ts';
import { allowAnyPieces, continueRequest } from './http-server.ts';
import { requestMetadata } from './metadata.ts';

const noBytes = new Uint8Array();

/**
 * Reads a body. Throws INVALID_ARGUMENT if it is compressed, too long or too late, and UNAVAILABLE if it is evicted
 * because memory is short and it has been arriving for longer than others.
 */
export async function readBody(request: IncomingMessage, bounds: BodyBounds): Promise<Uint8Array> {
  const { limit, budget, owner, milliseconds } = bounds;
  const tooLong = () => invalidArgument(`the body is longer than ${limit} bytes`);
  refuseCompressed(request);
  const { 'content-length': contentLength, 'transfer-encoding': transferEncoding } = request.headers;
  const expected = Number(contentLength ?? 0);
  if (expected > limit) throw tooLong();
  continueRequest(request);
  // No body (RFC 9112, 6.3).
  if (contentLength === undefined && transferEncoding === undefined) return noBytes;
  return new Promise((resolve, reject) => {
    const chunks: Buffer[] = [];
    let length = 0;
    let hold: Hold | undefined;
    let timer: NodeJS.Timeout | undefined;
    const finish = (): void => {
      hold?.release();
      clearTimeout(timer);
      request.off('data', take).off('end', end).off('error', endEarly).off('close', endEarly);
    };
    const fail = (error: KelletError): void => {
      finish();
      chunks.length = 0;
      // Read by a listener: a stream that flows without one can stop at its buffer, and the connection with it.
      request.on('data', () => undefined);
      reject(error);
    };
    const take = (chunk: Buffer): void => {
      length += chunk.length;
      if (length > limit) return fail(tooLong());
      addPiece(chunks, chunk);
      // A body in one piece, the usual case, ends right away.
      if (length === expected) return;
      hold ??= budget.hold(owner, () => fail(unavailable('too many bodies are being received: try again')));
      hold.set(length);
    };
    const end = (): void => {
      finish();
      resolve(chunks.length === 1 ? chunks[0]! : Buffer.concat(chunks));
    };
    const endEarly = (): void => fail(invalidArgument('the body is not well-formed, or ended early'));
    if (milliseconds !== undefined) {
      timer = setTimeout(() => fail(invalidArgument('the body did not arrive in time')), milliseconds);
    }
    request.on('data', take).once('end', end).once('error', endEarly).once('close', endEarly);
  });
}

/**
 * Yields the body as it arrives. Throws INVALID_ARGUMENT if it ends early, and CANCELLED if the call (`signal`) does: the rest is
 * discarded then, and its end is not that of the whole.
 */
export async function* streamBody(request: IncomingMessage, signal: AbortSignal): AsyncGenerator<Uint8Array> {
  refuseCompressed(request);
  allowAnyPieces(request);
  continueRequest(request);
  try {
    // The socket stays open, so that a handler that stops reading can still respond.
    yield* request.iterator({ destroyOnReturn: false }) as AsyncIterable<Uint8Array>;
  } catch {
    throw invalidArgument('the body ended early');
  }
  if (signal.aborted) throw new KelletError('CANCELLED', 'the call has ended before its body');
}

function refuseCompressed(request: IncomingMessage): void {
  const { 'content-encoding': encoding, 'transfer-encoding': transfer } = request.headers;
  const isPlain = (encoding ?? 'identity') === 'identity' && (transfer ?? 'chunked').toLowerCase() === 'chunked';
  if (!isPlain) throw invalidArgument('compressed bodies are not accepted');
}

/** The context of a call over REST. Expensive parts are created on demand. */
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

  /** Aborts the call: its credential was revoked, or its deadline has passed. */
  abort(): void {
    void this.signal;
    this.controller!.abort();
  }

  afterResponse(run: () => void): void {
    if (this.response.closed) run();
    else this.response.once('close', run);
  }
}
