// Splits a stream of bytes into JSON values, one a line, as a Kubernetes watch sends them.

const newline = 0x0a;
/** Many times the size of the largest object that etcd holds. */
const longestLine = 32 << 20;

/**
 * Yields each line's value as soon as the line is complete. A last line without its end is dropped: it was cut off. Throws
 * SyntaxError for a line that is no JSON, and Error for one that does not end within 32 MiB.
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
    if (held > longestLine) throw new Error(`a line of more than ${longestLine} bytes`);
  }
}
