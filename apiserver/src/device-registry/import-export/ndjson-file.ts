// NDJSON: a JSON object on each line.
import { invalidArgument } from '../../platform/errors.ts';
import { addPiece } from '../../platform/pieces.ts';
import { type FileLine, maximumLineBytes, parseJson, textOf, withoutMark } from './lines.ts';

/** Yields the lines of an NDJSON file, whose objects may have these fields. Empty lines are skipped. */
export async function* readNdjson(
  bytes: AsyncIterable<Uint8Array>,
  fields: ReadonlySet<string>,
): AsyncGenerator<FileLine> {
  let line = 1;
  let held: Buffer[] = [];
  let length = 0;
  const take = (piece: Buffer): void => {
    length += piece.length;
    // The rest of a line that is too long is not kept.
    if (length > maximumLineBytes) held = [];
    else if (held.length === 0) held.push(piece);
    else addPiece(held, piece);
  };
  const finish = (): FileLine | undefined => {
    const isTooLong = length > maximumLineBytes;
    const text = Buffer.concat(held);
    held = [];
    length = 0;
    const place = { line, bytes: text.length };
    if (isTooLong) return { ...place, error: invalidArgument(`the line is longer than ${maximumLineBytes} bytes`) };
    if (text.toString('latin1').trim() === '') return undefined;
    return { ...place, values: () => valuesOf(textOf('the line', text), fields) };
  };
  for await (const piece of withoutMark(bytes)) {
    let start = 0;
    for (let end = piece.indexOf(10); end >= 0; end = piece.indexOf(10, start)) {
      take(piece.subarray(start, end));
      const result = finish();
      if (result) yield result;
      line += 1;
      start = end + 1;
    }
    take(piece.subarray(start));
  }
  const last = finish();
  if (last) yield last;
}

/** Returns the fields of a line. Throws INVALID_ARGUMENT. */
function valuesOf(text: string, fields: ReadonlySet<string>): ReadonlyMap<string, unknown> {
  const value = parseJson('the line', text);
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    throw invalidArgument('the line must be a JSON object');
  }
  const entries = Object.entries(value);
  const unknown = entries.find(([name]) => !fields.has(name));
  if (unknown) throw invalidArgument(`unknown field ${JSON.stringify(unknown[0])}`);
  return new Map(entries);
}
