// For tests: raw frames of HTTP/2, which no client library would send.

/** Returns a frame. */
export function http2Frame(type: number, flags: number, stream: number, payload: Buffer): Buffer {
  const head = Buffer.alloc(9);
  head.writeUIntBE(payload.length, 0, 3);
  head[3] = type;
  head[4] = flags;
  head.writeUInt32BE(stream, 5);
  return Buffer.concat([head, payload]);
}

/** What a client begins with: its preface, and empty settings. */
export const http2Preface = Buffer.concat([
  Buffer.from('PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n'),
  http2Frame(4, 0, 0, Buffer.alloc(0)),
]);

const literal = (text: string): Buffer => Buffer.concat([Buffer.from([text.length]), Buffer.from(text)]);

/** Returns header fields as literals of HPACK, without indexing. */
export const http2Headers = (fields: Readonly<Record<string, string>>): Buffer =>
  Buffer.concat(Object.entries(fields).flatMap(([name, value]) => [Buffer.from([0]), literal(name), literal(value)]));
