// CSV as in RFC 4180, read and written. A text that a spreadsheet would take for a formula is written with a leading
// apostrophe, which is removed when it is read.
import { Readable } from 'node:stream';
import { type CsvError, type InfoRecord, parse } from 'csv-parse';
import { invalidArgument, KelletError } from '../../platform/errors.ts';
import { type FileLine, maximumLineBytes, textOf, withoutMark } from './lines.ts';

/** A text that looks like a formula, or like one that was made harmless. */
const formula = /^'*[=+\-@\t\r]/;

/** Returns a line of CSV. */
export const csvLine = (cells: readonly string[]): string => `${cells.map(cellOf).join(',')}\r\n`;

function cellOf(text: string): string {
  const harmless = formula.test(text) ? `'${text}` : text;
  return /[",\r\n]|^\s|\s$/.test(harmless) ? `"${harmless.replaceAll('"', '""')}"` : harmless;
}

const plainText = (text: string): string => (text.startsWith("'") && formula.test(text) ? text.slice(1) : text);

interface Parsed {
  readonly info: InfoRecord;
  readonly record: readonly Buffer[];
}

/**
 * Yields the lines of a CSV file whose first line names its columns, all of which must be among `columns`. Empty lines
 * are skipped. A line with a broken quote is the last, because records after it cannot be separated. Throws
 * INVALID_ARGUMENT if the first line is unusable.
 */
export async function* readCsv(
  bytes: AsyncIterable<Uint8Array>,
  columns: ReadonlySet<string>,
): AsyncGenerator<FileLine> {
  let broken: CsvError | undefined;
  const parser = parse({
    encoding: null,
    info: true,
    // A file may mix line endings, for example if it was put together from others.
    record_delimiter: ['\r\n', '\n', '\r'],
    relax_column_count: true,
    max_record_size: maximumLineBytes,
    // Does not end the parser, which would discard the records before.
    skip_records_with_error: true,
  }).on('skip', (error: CsvError) => {
    broken ??= error;
  });
  const source = Readable.from(withoutMark(bytes), { objectMode: false, highWaterMark: 64 * 1024 });
  source.once('error', (error) => parser.destroy(error));
  let header: string[] | undefined;
  let line = 0;
  try {
    for await (const { info, record } of source.pipe(parser) as AsyncIterable<Parsed>) {
      if (broken && info.lines >= Number(broken['lines'])) break;
      const first = line + 1;
      line = info.lines;
      if (record.length === 1 && record[0]!.length === 0) continue;
      if (header) yield lineOf(first, header, record);
      else header = headerOf(record, columns);
    }
  } finally {
    source.destroy();
    parser.destroy();
  }
  if (broken) {
    const error = invalidArgument(`${problems[broken.code] ?? 'the line is not CSV'}; nothing after it was read`);
    if (!header) throw error;
    yield { line: line + 1, error };
  } else if (!header) throw invalidArgument('the file is empty: its first line must name the columns');
}

const problems: Readonly<Record<string, string>> = {
  CSV_MAX_RECORD_SIZE: `the line is longer than ${maximumLineBytes} bytes, or its quote is not closed`,
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

function lineOf(line: number, header: readonly string[], record: readonly Buffer[]): FileLine {
  try {
    if (record.length !== header.length) {
      throw invalidArgument(`the line has ${record.length} cells, the first line has ${header.length}`);
    }
    return { line, values: new Map(header.map((name, index) => [name, plainText(textOf(name, record[index]!))])) };
  } catch (error) {
    if (error instanceof KelletError) return { line, error };
    throw error;
  }
}
