// Rows in PostgreSQL's binary COPY format, written one field after another into one buffer.

/** Signature, flags and the length of an extension, which is absent. */
const header = Buffer.from('5047434f50590aff0d0a000000000000000000', 'hex');
/** Ends the rows. */
const trailer = Buffer.from([0xff, 0xff]);
/** Maximum bytes of a row. */
const mostRowBytes = 64 * 1024;
/** Between 1970 and 2000, where PostgreSQL's timestamps begin. */
const epochSeconds = 946_684_800;
const twoTo32 = 4_294_967_296;

const hexDigits = Buffer.from('0123456789abcdef', 'latin1');

/** A field of text that is the same in many rows: its length and its bytes. */
export function textField(text: string): Buffer {
  const bytes = Buffer.from(text, 'utf8');
  const field = Buffer.alloc(4 + bytes.length);
  field.writeInt32BE(bytes.length, 0);
  bytes.copy(field, 4);
  return field;
}

/** A field of a uuid that is the same in many rows. */
export function uuidField(id: string): Buffer {
  return Buffer.from(`00000010${id.replaceAll('-', '')}`, 'hex');
}

/** Collects rows for one COPY. Each row begins with `row` and has as many fields as it said. */
export class BinaryRows {
  private readonly capacity: number;
  private buffer: Buffer;
  private at = header.length;

  /** `capacity` is the number of bytes after which the rows should be taken. */
  constructor(capacity: number) {
    this.capacity = capacity;
    this.buffer = this.emptyBuffer();
  }

  get isEmpty(): boolean {
    return this.at === header.length;
  }

  /** In bytes. */
  get size(): number {
    return this.at;
  }

  get isFull(): boolean {
    return this.at >= this.capacity;
  }

  /** Begins a row. Rows have at most 64 KiB. */
  row(fields: number): void {
    if (this.buffer.length - this.at < mostRowBytes) {
      const larger = Buffer.allocUnsafe(this.buffer.length * 2);
      this.buffer.copy(larger, 0, 0, this.at);
      this.buffer = larger;
    }
    this.buffer[this.at] = 0;
    this.buffer[this.at + 1] = fields;
    this.at += 2;
  }

  null(): void {
    this.uint32(0xffff_ffff);
  }

  /** Adds fields that were written before, with their lengths. */
  field(bytes: Buffer): void {
    this.at += bytes.copy(this.buffer, this.at);
  }

  /** Adds a field of ASCII text. */
  ascii(text: string): void {
    this.uint32(text.length);
    this.at += this.buffer.write(text, this.at, 'latin1');
  }

  /** Adds a field of the bytes from `start` to `end`: bytea, uuid, ASCII text or a number in network order. */
  bytes(source: Buffer, start = 0, end: number = source.length): void {
    this.uint32(end - start);
    this.at += source.copy(this.buffer, this.at, start, end);
  }

  /** Adds a field of text: the hex digits of the bytes from `end` back to `start`, as transaction ids are displayed. */
  reversedHex(source: Buffer, start: number, end: number): void {
    this.uint32((end - start) * 2);
    const { buffer } = this;
    let { at } = this;
    for (let index = end - 1; index >= start; index -= 1) {
      const byte = source[index]!;
      buffer[at] = hexDigits[byte >> 4]!;
      buffer[at + 1] = hexDigits[byte & 15]!;
      at += 2;
    }
    this.at = at;
  }

  boolean(value: boolean): void {
    this.uint32(1);
    this.buffer[this.at] = value ? 1 : 0;
    this.at += 1;
  }

  /** Adds a field of type int2 from an integer from 0 to 2^15 - 1. */
  int2(value: number): void {
    this.uint32(2);
    this.buffer[this.at] = value >>> 8;
    this.buffer[this.at + 1] = value;
    this.at += 2;
  }

  int4(value: number): void {
    this.uint32(4);
    this.uint32(value);
  }

  /** Adds a field of type int8 from an integer from 0 to 2^53 - 1. */
  int8(value: number): void {
    this.uint32(8);
    this.uint32(Math.floor(value / twoTo32));
    this.uint32(value % twoTo32);
  }

  /** Adds a field of type int8: seconds since 1970, in nanoseconds. */
  nanoseconds(seconds: number): void {
    this.uint32(8);
    // 10^9 is 2^9 times 1953125, so both parts are exact.
    const most = seconds * 1_953_125;
    const high = Math.floor(most / 8_388_608);
    this.uint32(high);
    this.uint32((most - high * 8_388_608) * 512);
  }

  /** Adds a field of type timestamptz from seconds since 1970. */
  timestamp(seconds: number): void {
    this.int8((seconds - epochSeconds) * 1_000_000);
  }

  /** Returns the rows as data of a COPY and begins anew. */
  take(): Buffer {
    trailer.copy(this.buffer, this.at);
    const data = this.buffer.subarray(0, this.at + trailer.length);
    this.buffer = this.emptyBuffer();
    this.at = header.length;
    return data;
  }

  private emptyBuffer(): Buffer {
    const buffer = Buffer.allocUnsafe(this.capacity + mostRowBytes);
    header.copy(buffer);
    return buffer;
  }

  private uint32(value: number): void {
    const { buffer, at } = this;
    buffer[at] = value >>> 24;
    buffer[at + 1] = value >>> 16;
    buffer[at + 2] = value >>> 8;
    buffer[at + 3] = value;
    this.at = at + 4;
  }
}
