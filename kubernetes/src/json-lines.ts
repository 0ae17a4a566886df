// Parses newline-delimited JSON, as sent by a Kubernetes watch.

const newline = 0x0a;
/** Many times the maximum size of an object in etcd. */
const maxLine = 32 << 20;

/**
 * Yields the value of each line as soon as the line is complete. An incomplete last line is dropped. Throws SyntaxError
 * if a line is not JSON, and Error if it is longer than 32 MiB.
 */
export async function* jsonLines<T>(chunks: AsyncIterable<Buffer>): AsyncGenerator<T> {
  let parts: Buffer[] = [];
  let held = 0;
  for await (const chunk of chunks) {
    let from = 0;
    for (let at = chunk.indexOf(newline); at >= 0; at = chunk.indexOf(newline, from)) {
      parts.push(chunk.subarray(from, at));
      from = at + 1;
      const line = parts.length === 1 ? parts[0]! : Buffer.concat(parts);
      parts = [];
      held = 0;
      if (line.length > 0) yield JSON.parse(line.toString('utf8')) as T;
    }
    if (from === chunk.length) continue;
    parts.push(chunk.subarray(from));
    held += chunk.length - from;
    if (held > maxLine) throw new Error(`line longer than ${maxLine} bytes`);
  }
}
