// Lines of a file that is read as it arrives, in constant memory.
import { isUtf8 } from 'node:buffer';
import type { JsonValue } from '@bufbuild/protobuf';
import { invalidArgument, type KelletError } from '../../platform/errors.ts';

/** Maximum bytes of a line, or of a CSV record that spans several. */
export const maximumLineBytes = 256 * 1024;

/** A line whose values by column are read when they are needed, or why it cannot be read. Values of CSV are texts. */
export type FileLine = { readonly line: number; readonly bytes: number } & (
  | {
      /** Throws INVALID_ARGUMENT. The values can take twenty times the memory of their text, so few lines have any. */
      readonly values: () => ReadonlyMap<string, unknown>;
    }
  | { readonly error: KelletError }
);

const utf16 = [Buffer.from([0xff, 0xfe]), Buffer.from([0xfe, 0xff])];

/** Yields the bytes without a byte-order mark. Throws INVALID_ARGUMENT if the mark is that of UTF-16. */
export async function* withoutMark(bytes: AsyncIterable<Uint8Array>): AsyncGenerator<Buffer> {
  let held: Buffer | undefined = Buffer.alloc(0);
  for await (const given of bytes) {
    const piece = Buffer.from(given.buffer, given.byteOffset, given.byteLength);
    if (held === undefined) {
      yield piece;
      continue;
    }
    held = Buffer.concat([held, piece]);
    if (held.length < 3) continue;
    yield unmarked(held);
    held = undefined;
  }
  if (held?.length) yield unmarked(held);
}

function unmarked(first: Buffer): Buffer {
  if (utf16.some((mark) => first.subarray(0, 2).equals(mark)))
    throw invalidArgument('the file must be UTF-8, not UTF-16');
  return first[0] === 0xef && first[1] === 0xbb && first[2] === 0xbf ? first.subarray(3) : first;
}

/** Decodes UTF-8. Throws INVALID_ARGUMENT naming what it is. */
export function textOf(what: string, bytes: Buffer): string {
  if (!isUtf8(bytes)) throw invalidArgument(`${what} is not UTF-8`);
  return bytes.toString('utf8');
}

/** Maximum depth of nested values. */
const maximumDepth = 64;

/** Parses JSON. Throws INVALID_ARGUMENT naming what it is. */
export function parseJson(what: string, text: string): JsonValue {
  let value: JsonValue;
  try {
    value = JSON.parse(text) as JsonValue;
  } catch {
    throw invalidArgument(`${what} is not valid JSON`);
  }
  for (let level: JsonValue[] = [value], depth = 0; level.length > 0; depth += 1) {
    if (depth > maximumDepth) throw invalidArgument(`${what} is nested more than ${maximumDepth} levels deep`);
    level = level.flatMap((item) => (typeof item === 'object' && item !== null ? Object.values(item) : []));
  }
  return value;
}
