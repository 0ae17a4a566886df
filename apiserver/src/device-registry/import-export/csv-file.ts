// CSV as in RFC 4180, read and written. What a spreadsheet would take for a formula is written with an apostrophe before it, which is
// removed when it is read.
import { Readable } from 'node:stream';
import { setImmediate } from 'node:timers/promises';
import { type CsvError, type InfoRecord, type Options, parse } from 'csv-parse';
import { invalidArgument } from '../../platform/errors.ts';
import { type FileLine, maximumLineBytes, textOf, withoutMark } from './lines.ts';

/**
 * The apostrophes, usually none, before what looks like a formula: at the beginning of a text, and where a spreadsheet begins another
 * cell that separates them by semicolons, as those of many languages do, and takes quotes within a line as they are.
 */
const beforeFormulas = /(?<=^|[;\r\n])'*(?=[=+\-@\t\r＝＋－＠])/g;

/** Returns a line of CSV. */
export const csvLine = (cells: readonly string[]): string => `${cells.map(cellOf).join(',')}\r\n`;

function cellOf(text: string): string {
  const harmless = text.replace(beforeFormulas, "'$&");
  return /[",\r\n]|^\s|\s$/.test(harmless) ? `"${harmless.replaceAll('"', '""')}"` : harmless;
}

const plainText = (text: string): string => text.replace(beforeFormulas, (apostrophes) => apostrophes.slice(1));

/** Cells of a line, and those that are kept: more than there are columns. */
const maximumCells = 1000;
const keptCells = 64;
/** Parsed at once: 16,384 empty texts take some 40 ms. */
const pieceBytes = 16 * 1024;
const noBytes = Buffer.alloc(0);

interface Parsed {
  readonly info: InfoRecord;
  readonly record: readonly Buffer[];
  /** Set for a line that is too long, of which the end may be missing, and for all after it. */
  readonly isTooLong?: boolean;
}

/**
 * Yields the lines of a CSV file whose first line names its columns, all of which must be among `columns`. Empty lines
 * are skipped. A line with a broken quote is the last, because records after it cannot be separated, and so is one that is
 * too long. Throws INVALID_ARGUMENT if the first line is unusable.
 */
export async function* readCsv(
  bytes: AsyncIterable<Uint8Array>,
  columns: ReadonlySet<string>,
): AsyncGenerator<FileLine> {
  let broken: (Pick<CsvError, 'code'> & { readonly lines?: unknown }) | undefined;
  // The parser limits the texts of a line, but not their number. `begin` is where the line begins that it reads.
  let begin = 0;
  let isTooLong = false;
  const parser = parse({
    encoding: null,
    info: true,
    // A file may mix line endings, for example if it was put together from others.
    record_delimiter: ['\r\n', '\n', '\r'],
    relax_column_count: true,
    max_record_size: maximumLineBytes,
    cast: (cell: unknown, { bytes, index }) => {
      isTooLong ||= bytes - begin > maximumLineBytes || index > maximumCells;
      return index < keptCells ? cell : noBytes;
    },
    on_record: (parsed: unknown, { bytes }) => {
      begin = bytes;
      return isTooLong ? { ...(parsed as Parsed), isTooLong } : parsed;
    },
    // Does not end the parser, which would discard the records before.
    skip_records_with_error: true,
    // Of the stream: the lines that wait.
    readableHighWaterMark: 4,
  } as Options).on('skip', (error: CsvError) => {
    broken ??= { code: error.code, lines: error['lines'] };
  });
  const whileShort = async function* (): AsyncGenerator<Buffer> {
    for await (const piece of withoutMark(bytes)) {
      for (let start = 0; start < piece.length && !isTooLong; start += pieceBytes) {
        yield piece.subarray(start, start + pieceBytes);
        await setImmediate();
      }
      if (isTooLong) return;
    }
  };
  const source = Readable.from(whileShort(), { objectMode: false, highWaterMark: pieceBytes });
  source.once('error', (error) => parser.destroy(error));
  let header: string[] | undefined;
  let line = 0;
  let place = 0;
  try {
    for await (const { info, record, ...rest } of source.pipe(parser) as AsyncIterable<Parsed>) {
      if (broken && info.lines >= Number(broken.lines)) break;
      if (rest.isTooLong) {
        broken = { code: 'CSV_MAX_RECORD_SIZE' };
        break;
      }
      const first = line + 1;
      const size = info.bytes - place;
      [line, place] = [info.lines, info.bytes];
      if (record.length === 1 && record[0]!.length === 0) continue;
      if (header) yield lineOf({ line: first, bytes: size }, header, record);
      else header = headerOf(record, columns);
    }
  } finally {
    source.destroy();
    parser.destroy();
  }
  if (broken) {
    const error = invalidArgument(`${problems[broken.code] ?? 'the line is not CSV'}; nothing after it was read`);
    if (!header) throw error;
    yield { line: line + 1, bytes: 0, error };
  } else if (!header) throw invalidArgument('the file is empty: its first line must name the columns');
}

const problems: Readonly<Record<string, string>> = {
  CSV_MAX_RECORD_SIZE: `the line is longer than ${maximumLineBytes} bytes, has more than ${maximumCells} cells, or its quote is not closed`,
  CSV_QUOTE_NOT_CLOSED: 'a quote is not closed',
  CSV_INVALID_CLOSING_QUOTE: 'a quote within a quoted text must be doubled',
  INVALID_OPENING_QUOTE: 'a text that contains a quote must be quoted',
};

function headerOf(record: readonly Buffer[], columns: ReadonlySet<string>): string[] {
  const names = record.map((cell) => textOf('the first line', cell).trim());
  for (const [index, name] of names.entries()) {
    if (!columns.has(name)) throw invalidArgument(`unknown column ${JSON.stringify(name)} in the first line`);
    if (names.indexOf(name) !== index) throw invalidArgument(`the first line names ${name} twice`);
  }
  return names;
}

function lineOf(
  place: { readonly line: number; readonly bytes: number },
  header: readonly string[],
  record: readonly Buffer[],
): FileLine {
  if (record.length !== header.length) {
    const error = invalidArgument(`the line has ${record.length} cells, the first line has ${header.length}`);
    return { ...place, error };
  }
  return {
    ...place,
    values: () => new Map(header.map((name, index) => [name, plainText(textOf(name, record[index]!))])),
  };
}
