// A request in parts that can be mutated, and its serialisation.

/** One HTTP/1.1 request. */
export interface FuzzRequest {
  method: string;
  /** Raw segments, already percent-encoded. */
  segments: string[];
  /** Raw pairs, already percent-encoded. */
  query: string[];
  headers: [string, string][];
  /** JSON value of the body; `body` takes precedence. */
  json?: unknown;
  /** Bytes as they are. */
  body?: Buffer;
  /** Name of the credential, for the report. */
  caller: string;
  /** Returned in X-Request-Id, to match responses with requests. */
  id: string;
}

export const targetOf = ({ segments, query }: FuzzRequest): string =>
  `/${segments.join('/')}${query.length > 0 ? `?${query.join('&')}` : ''}`;

/** Serialises the request. Adds a content-length unless a header defines the framing. */
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
