// COPY of rows in PostgreSQL's text format.
import type pg from 'pg';

/** A value of a row. Bytes are written as bytea. */
export type Value = string | number | bigint | boolean | Buffer | null;

const escaped: Readonly<Record<string, string>> = { '\\': '\\\\', '\t': '\\t', '\n': '\\n', '\r': '\\r' };

function textOf(value: Value): string {
  if (value === null) return '\\N';
  if (Buffer.isBuffer(value)) return `\\\\x${value.toString('hex')}`;
  if (typeof value !== 'string') return String(value);
  return /[\\\t\n\r]/.test(value) ? value.replace(/[\\\t\n\r]/g, (character) => escaped[character]!) : value;
}

interface CopyConnection {
  query(text: string): void;
  sendCopyFromChunk(chunk: Buffer): void;
  endCopyFrom(): void;
}

/** A Submittable of pg: one COPY with its data. */
class Copy implements pg.Submittable {
  private readonly text: string;
  private readonly data: Buffer;
  private readonly settle: (error?: Error) => void;
  private failure: Error | undefined;

  constructor(text: string, data: Buffer, settle: (error?: Error) => void) {
    this.text = text;
    this.data = data;
    this.settle = settle;
  }

  submit(connection: pg.Connection): null {
    (connection as unknown as CopyConnection).query(this.text);
    return null;
  }

  handleCopyInResponse(connection: CopyConnection): void {
    connection.sendCopyFromChunk(this.data);
    connection.endCopyFrom();
  }

  handleError(error: Error): void {
    this.failure = error;
    this.settle(error);
  }

  handleReadyForQuery(): void {
    if (!this.failure) this.settle();
  }

  handleCommandComplete(): void {}
}

/** Adds rows to a table. */
export function copyRows(
  client: pg.ClientBase,
  table: string,
  columns: readonly string[],
  rows: readonly (readonly Value[])[],
): Promise<void> {
  if (rows.length === 0) return Promise.resolve();
  const data = Buffer.from(`${rows.map((row) => row.map(textOf).join('\t')).join('\n')}\n`);
  return copyData(client, `COPY ${table} (${columns.join(', ')}) FROM STDIN`, data);
}

/** Adds rows, as BinaryRows collects them, to a table that was made or truncated in the same transaction. */
export function copyBinary(
  client: pg.ClientBase,
  table: string,
  columns: readonly string[],
  rows: Buffer,
): Promise<void> {
  return copyData(client, `COPY ${table} (${columns.join(', ')}) FROM STDIN (FORMAT binary, FREEZE)`, rows);
}

function copyData(client: pg.ClientBase, text: string, data: Buffer): Promise<void> {
  return new Promise((resolve, reject) => {
    client.query(new Copy(text, data, (error) => (error ? reject(error) : resolve())));
  });
}
