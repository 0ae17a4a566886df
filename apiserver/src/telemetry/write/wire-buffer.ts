// A growing buffer of PostgreSQL protocol messages: one Query and the data of its COPY statements, sent in one write.
// See https://www.postgresql.org/docs/current/protocol-message-formats.html and "Binary Format" of COPY.
import { rowBuffers } from '../points/buffer-pool.ts';
import { writeUint32, writeUuid } from '../points/point-row.ts';

const copySignature = Buffer.from('PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0', 'latin1');
const copyTrailer = Buffer.from([0xff, 0xff]);
const copyDone = Buffer.from([0x63, 0, 0, 0, 4]);

/** Writes messages one after another. Positions are bytes from the start. */
export class WireBuffer {
  private buffer: Buffer;
  private length = 0;
  private messageStart = 0;

  constructor(capacity = 256 * 1024) {
    this.buffer = rowBuffers.take(capacity);
  }

  /** Returns all messages so far. The buffer must not be written to afterwards. */
  bytes(): Buffer {
    return this.buffer.subarray(0, this.length);
  }

  /** Lets the memory be used again. What `bytes` returned must not be used any more. */
  release(): void {
    const { buffer } = this;
    this.buffer = Buffer.alloc(0);
    this.length = 0;
    rowBuffers.giveBack(buffer);
  }

  private reserve(more: number): void {
    if (this.length + more <= this.buffer.length) return;
    const smaller = this.buffer;
    this.buffer = rowBuffers.take(Math.max(smaller.length * 2, this.length + more));
    smaller.copy(this.buffer, 0, 0, this.length);
    rowBuffers.giveBack(smaller);
  }

  private append(bytes: Buffer): void {
    this.reserve(bytes.length);
    this.length += bytes.copy(this.buffer, this.length);
  }

  private beginMessage(type: number): void {
    this.reserve(5);
    this.buffer[this.length] = type;
    this.messageStart = this.length + 1;
    this.length += 5;
  }

  private endMessage(): void {
    this.buffer.writeInt32BE(this.length - this.messageStart, this.messageStart);
  }

  /** Writes a simple Query of one or more statements. */
  query(text: string): void {
    this.beginMessage(0x51);
    this.append(Buffer.from(`${text}\0`));
    this.endMessage();
  }

  /** Starts the data of the Query's next COPY … FROM STDIN (FORMAT binary); rows follow, then `endCopy`. */
  beginCopy(): void {
    this.beginMessage(0x64);
    this.append(copySignature);
  }

  endCopy(): void {
    this.append(copyTrailer);
    this.endMessage();
    this.append(copyDone);
  }

  /** Starts a row with the given number of fields; each field is written by one of the methods below. */
  row(fields: number): void {
    this.reserve(2);
    this.length = this.buffer.writeInt16BE(fields, this.length);
  }

  /** Writes a row that is encoded already and returns where it begins in `written`. */
  encodedRow(bytes: Buffer, start: number, end: number): number {
    const at = this.wholeRow(end - start);
    bytes.copy(this.buffer, at, start, end);
    return at;
  }

  /** Makes room for a row of so many bytes, which the caller writes, and returns where it begins in `written`. */
  wholeRow(bytes: number): number {
    this.reserve(bytes);
    const at = this.length;
    this.length += bytes;
    return at;
  }

  /** The bytes so far, in which fields of written rows may be replaced until the next write. */
  get written(): Buffer {
    return this.buffer;
  }

  int4(value: number): void {
    this.reserve(8);
    this.length = this.buffer.writeInt32BE(value, this.buffer.writeInt32BE(4, this.length));
  }

  int8(value: bigint): void {
    this.reserve(12);
    this.length = this.buffer.writeBigInt64BE(value, this.buffer.writeInt32BE(8, this.length));
  }

  /** Writes a uuid given as text in lower case. */
  uuid(text: string): void {
    const at = this.wholeRow(20);
    writeUint32(this.buffer, 16, at);
    writeUuid(this.buffer, text, at + 4);
  }

  /** Writes a bytea given as a string of one character per byte. */
  binary(latin1: string): void {
    this.reserve(4 + latin1.length);
    this.length = this.buffer.writeInt32BE(latin1.length, this.length);
    this.length += this.buffer.write(latin1, this.length, 'latin1');
  }

  text(text: string): void {
    this.reserve(4 + text.length * 3);
    const written = this.buffer.write(text, this.length + 4, 'utf8');
    this.buffer.writeInt32BE(written, this.length);
    this.length += 4 + written;
  }
}
