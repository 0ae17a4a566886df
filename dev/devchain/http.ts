// HTTP server helpers: reading bodies up to a limit, sending JSON, and matching routes.
import type { IncomingMessage, ServerResponse } from 'node:http';

/** A response: JSON, or bytes with a content type. */
export interface HttpResponse {
  readonly status: number;
  /** Sent as JSON unless it is bytes. */
  readonly body: unknown;
  readonly headers?: Readonly<Record<string, string>>;
}

/** A request with its complete body. */
export interface HttpRequest {
  readonly method: string;
  readonly path: string;
  readonly query: URLSearchParams;
  /** Header by lower-case name. */
  readonly header: (name: string) => string | undefined;
  readonly body: Uint8Array;
  /** Aborted when the client disconnects. */
  readonly signal: AbortSignal;
}

/** Larger than the largest transaction of the policy in hex in JSON. */
const MAXIMUM_BODY_BYTES = 32 * 1024 * 1024;

/** Returns the body of a request, or undefined if it exceeds the limit. */
export async function readBody(request: IncomingMessage): Promise<Uint8Array | undefined> {
  const chunks: Buffer[] = [];
  let length = 0;
  for await (const chunk of request as AsyncIterable<Buffer>) {
    length += chunk.length;
    if (length > MAXIMUM_BODY_BYTES) return undefined;
    chunks.push(chunk);
  }
  return Buffer.concat(chunks);
}

/** Sends a complete response. */
export function send(response: ServerResponse, { status, body, headers = {} }: HttpResponse): void {
  const isBytes = body instanceof Uint8Array;
  const content = isBytes ? body : Buffer.from(JSON.stringify(body));
  const type = isBytes ? 'application/octet-stream' : 'application/json';
  response.writeHead(status, { 'content-type': type, 'content-length': content.length, ...headers });
  response.end(content);
}

/** Parses a JSON body, or returns what is wrong with it. An empty body is `{}`. */
export function parseJson(body: Uint8Array): { value: unknown } | { error: string } {
  if (body.length === 0) return { value: {} };
  try {
    return { value: JSON.parse(Buffer.from(body).toString('utf8')) as unknown };
  } catch {
    return { error: 'the body is not JSON' };
  }
}
