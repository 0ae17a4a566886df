// Splits a stream of bytes into JSON values, one a line, as a Kubernetes watch sends them.

const newline = 0x0a;

/** Yields each line's value as soon as the line is complete. A last line without its end is dropped: it was cut off. */
export async function* jsonLines<T>(chunks: AsyncIterable<Buffer>): AsyncGenerator<T> {
  let parts: Buffer[] = [];
  for await (const chunk of chunks) {
    let from = 0;
    for (let at = chunk.indexOf(newline); at >= 0; at = chunk.indexOf(newline, from)) {
      parts.push(chunk.subarray(from, at));
      from = at + 1;
      const line = parts.length === 1 ? parts[0]! : Buffer.concat(parts);
      parts = [];
      if (line.length > 0) yield JSON.parse(line.toString('utf8')) as T;
    }
    if (from < chunk.length) parts.push(chunk.subarray(from));
  }
}
