// A request as a fuzzer holds it: taken apart, so that each part can be changed, and as the bytes that go over the wire.

/** One HTTP/1.1 request. */
export interface FuzzRequest {
  method: string;
  /** Raw segments, already percent-encoded. */
  segments: string[];
  /** Raw pairs, already percent-encoded. */
  query: string[];
  headers: [string, string][];
  /** JSON that is still a value; `body` wins. */
  json?: unknown;
  /** Bytes as they are. */
  body?: Buffer;
  /** Which credential it carries, for the report. */
  caller: string;
  /** Comes back in the answer's X-Request-Id, which tells answers apart on a connection. */
  id: string;
}

export const targetOf = ({ segments, query }: FuzzRequest): string =>
  `/${segments.join('/')}${query.length > 0 ? `?${query.join('&')}` : ''}`;

/** The request's bytes. A body is announced by its length, unless a header does so already. */
export function bytesOf(request: FuzzRequest): Buffer {
  const body = request.body ?? (request.json === undefined ? undefined : Buffer.from(JSON.stringify(request.json)));
  const headers: [string, string][] = [['host', 'fuzz.test'], ['x-request-id', request.id], ...request.headers];
  if (body && !headers.some(([name]) => name === 'content-length' || name === 'transfer-encoding')) {
    headers.push(['content-length', String(body.length)]);
  }
  const lines = headers.map(([name, value]) => `${name}: ${value}`);
  const head = Buffer.from(
    `${request.method} ${targetOf(request)} HTTP/1.1\r\n${lines.join('\r\n')}\r\n\r\n`,
    'latin1',
  );
  return body ? Buffer.concat([head, body]) : head;
}

/** One line for a report. */
export function describeRequest(request: FuzzRequest): string {
  const body = request.body?.toString('latin1') ?? (request.json === undefined ? '' : JSON.stringify(request.json));
  const headers = request.headers
    .filter(([name]) => name !== 'authorization' && name !== 'x-api-key')
    .map(([name, value]) => `${name}: ${value.slice(0, 60)}`);
  return `${request.method} ${targetOf(request).slice(0, 300)} as ${request.caller} [${headers.join('; ')}] ${JSON.stringify(body.slice(0, 300))}`;
}
