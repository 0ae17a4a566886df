// Validates binary messages: malformed bytes, and values that protobuf accepts but the contract forbids. Walks the
// bytes before decoding, because only they give the position of what cannot be decoded.
import { isUtf8 } from 'node:buffer';
import { type DescField, type DescMessage, ScalarType } from '@bufbuild/protobuf';
import { BinaryReader, WireType } from '@bufbuild/protobuf/wire';
import { isWellKnown, showPath } from './field-path.ts';
import { maximumItems, maximumKeys, maximumNodes } from './strict-json.ts';
import { enumNames } from './value-checks.ts';

/** Maximum nesting of messages, as in the decoder. */
const maximumDepth = 100;

/**
 * Maximum number of fields, unknown ones and those of nested messages included. A field of two bytes costs as much as one of a
 * hundred; of the largest reasonable request, each value of a point has four.
 */
const maximumFields = 500_000;

/** Ranges of google.protobuf.Timestamp (years 1 to 9999) and Duration (10,000 years), in seconds. */
const firstSecond = -62_135_596_800n;
const lastSecond = 253_402_300_799n;
const maxDuration = 315_576_000_000n;
const lastNano = 999_999_999;

const valueType = 'google.protobuf.Value';

const wireTypes: ReadonlyMap<ScalarType, WireType> = new Map([
  [ScalarType.STRING, WireType.LengthDelimited],
  [ScalarType.BYTES, WireType.LengthDelimited],
  [ScalarType.DOUBLE, WireType.Bit64],
  [ScalarType.FIXED64, WireType.Bit64],
  [ScalarType.SFIXED64, WireType.Bit64],
  [ScalarType.FLOAT, WireType.Bit32],
  [ScalarType.FIXED32, WireType.Bit32],
  [ScalarType.SFIXED32, WireType.Bit32],
]);

/** Returns the wire type of one value of a field (an item of a list, the value of a map entry). */
function wireTypeOf(field: DescField): WireType {
  if (field.message) return WireType.LengthDelimited;
  return (field.scalar !== undefined && wireTypes.get(field.scalar)) || WireType.Varint;
}

interface Known {
  readonly field: DescField;
  readonly wireType: WireType;
}

const known = new WeakMap<DescMessage, ReadonlyMap<number, Known>>();

/** Returns the fields of a message by number. */
function fieldsOf(schema: DescMessage): ReadonlyMap<number, Known> {
  let fields = known.get(schema);
  if (!fields) {
    fields = new Map(schema.fields.map((field) => [field.number, { field, wireType: wireTypeOf(field) }]));
    known.set(schema, fields);
  }
  return fields;
}

interface Span {
  readonly start: number;
  readonly end: number;
}

/** An error at the current position of the walk. */
class Problem extends Error {}

/** A message that has too many of something, wherever that is. */
class Excess extends Problem {}

/** A reader that counts the fields, those of unknown groups included. */
class FieldReader extends BinaryReader {
  private fields = 0;

  override tag(): [number, WireType] {
    this.fields += 1;
    if (this.fields > maximumFields) throw new Excess(`must not hold more than ${maximumFields} fields`);
    return super.tag();
  }
}

const cutOff = (): Problem => new Problem('is truncated');
const ofAnotherType = (): Problem => new Problem('has the wrong wire type');

/** Returns `<field>: <reason>` for the first error in a message, or undefined. */
export function wireProblem(schema: DescMessage, bytes: Uint8Array): string | undefined {
  const walk = new Walk(bytes);
  try {
    walk.message(schema, bytes.length, 1);
    return undefined;
  } catch (error) {
    const place = error instanceof Excess ? '' : showPath(schema, walk.place());
    const reason = reasonOf(error);
    return `${place === '' ? 'the message' : place}: ${reason}`;
  }
}

/** Errors of the reader itself mean bytes that no protobuf writer produces. */
function reasonOf(error: unknown): string {
  if (error instanceof Problem) return error.message;
  return error instanceof RangeError ? cutOff().message : 'cannot be decoded';
}

class Walk {
  private readonly bytes: Uint8Array;
  private readonly reader: FieldReader;
  /** Current position; a map key is represented by the location of its text. Left in place when a problem is thrown. */
  private readonly path: (string | number | Span)[] = [];
  private messages = 0;
  private listed = 0;

  constructor(bytes: Uint8Array) {
    this.bytes = bytes;
    this.reader = new FieldReader(bytes);
  }

  place(): (string | number)[] {
    return this.path.map((part) => (typeof part === 'object' ? this.textOf(part) : part));
  }

  /** Walks the fields of a message up to `end`. */
  message(schema: DescMessage, end: number, depth: number): void {
    if (depth > maximumDepth) {
      this.path.length = 1;
      throw new Problem(`must not be nested deeper than ${maximumDepth}`);
    }
    this.messages += 1;
    if (this.messages > maximumNodes) throw new Excess(`must not hold more than ${maximumNodes} messages`);
    const { typeName } = schema;
    if (typeName === 'google.protobuf.Timestamp') return this.timestamp(end);
    if (typeName === 'google.protobuf.Duration') return this.duration(end);
    const { reader, path } = this;
    const fields = fieldsOf(schema);
    // These have no named fields in JSON.
    const hasNames = !isWellKnown(schema);
    let lengths: Map<DescField, number> | undefined;
    let isEmpty = true;
    while (reader.pos < end) {
      const [number, wireType] = reader.tag();
      const entry = fields.get(number);
      if (!entry) {
        this.skip(wireType, number, end);
        continue;
      }
      isEmpty = false;
      const { field } = entry;
      if (hasNames) path.push(field.name);
      if (field.fieldKind === 'list') {
        const items = (lengths ??= new Map<DescField, number>());
        items.set(field, this.items(entry, items.get(field) ?? 0, wireType, end, depth));
      } else if (field.fieldKind === 'map') {
        const entries = ((lengths ??= new Map<DescField, number>()).get(field) ?? 0) + 1;
        if (entries > maximumKeys) throw new Problem(`must not have more than ${maximumKeys} entries`);
        lengths.set(field, entries);
        this.entry(entry, this.end(wireType, end), depth);
      } else {
        this.value(entry, wireType, end, depth);
      }
      if (hasNames) path.pop();
    }
    if (isEmpty && typeName === valueType) throw new Problem('must have a value');
  }

  /** Walks one item of a list, or several packed ones. `index` is that of the first item; returns the next one. */
  private items(entry: Known, index: number, wireType: WireType, end: number, depth: number): number {
    const isPacked = wireType === WireType.LengthDelimited && entry.wireType !== wireType;
    const last = isPacked ? this.end(wireType, end) : this.reader.pos + 1;
    while (this.reader.pos < last) {
      this.listed += 1;
      if (this.listed > maximumItems) throw new Excess(`must not hold more than ${maximumItems} items in its lists`);
      this.path.push(index);
      this.value(entry, isPacked ? entry.wireType : wireType, isPacked ? last : end, depth);
      this.path.pop();
      index += 1;
    }
    return index;
  }

  /** Walks one map entry up to `end`. */
  private entry(entry: Known, end: number, depth: number): void {
    const { reader, path } = this;
    const field = entry.field as DescField & { fieldKind: 'map' };
    const isNamed = field.mapKey === ScalarType.STRING;
    if (isNamed) path.push('');
    let hasValue = false;
    while (reader.pos < end) {
      const [number, wireType] = reader.tag();
      if (number === 1 && isNamed) {
        const keyEnd = this.end(wireType, end);
        path[path.length - 1] = { start: reader.pos, end: keyEnd };
        this.text(keyEnd);
      } else if (number === 2) {
        hasValue = true;
        this.value(entry, wireType, end, depth);
      } else {
        this.skip(wireType, number, end);
      }
    }
    if (!hasValue && field.message?.typeName === valueType) throw new Problem('must have a value');
    if (isNamed) path.pop();
  }

  /** Walks one value of a field. */
  private value({ field, wireType: expected }: Known, wireType: WireType, end: number, depth: number): void {
    const { reader } = this;
    if (wireType !== expected) throw ofAnotherType();
    if (field.message) {
      this.message(field.message, this.end(wireType, end), depth + 1);
    } else if (field.scalar === ScalarType.STRING) {
      this.text(this.end(wireType, end));
    } else if (field.enum) {
      const isUnknown = field.enum.value[reader.int32()] === undefined;
      if (isUnknown && field.enum.typeName !== 'google.protobuf.NullValue') throw new Problem(enumNames(field));
    } else {
      const at = reader.pos;
      this.skip(wireType, field.number, end);
      // JSON has no NaN or infinities, so free-form JSON may not contain them.
      const isFinite = field.parent.typeName !== valueType || wireType !== WireType.Bit64 || this.isFiniteAt(at);
      if (!isFinite) throw new Problem('must be a finite number');
    }
    if (reader.pos > end) throw cutOff();
  }

  private textOf({ start, end }: Span): string {
    return Buffer.from(this.bytes.subarray(start, end)).toString();
  }

  private isFiniteAt(at: number): boolean {
    const { buffer, byteOffset } = this.bytes;
    return Number.isFinite(new DataView(buffer, byteOffset + at, 8).getFloat64(0, true));
  }

  /** Returns the end of a length-delimited value. */
  private end(wireType: WireType, outer: number): number {
    if (wireType !== WireType.LengthDelimited) throw ofAnotherType();
    const length = this.reader.uint32();
    const end = this.reader.pos + length;
    if (end > outer) throw cutOff();
    return end;
  }

  private skip(wireType: WireType, number: number, end: number): void {
    const { reader } = this;
    if (wireType === WireType.LengthDelimited) reader.pos = this.end(wireType, end);
    else if (wireType === WireType.Bit64) reader.pos += 8;
    else if (wireType === WireType.Bit32) reader.pos += 4;
    else reader.skip(wireType, number, maximumDepth);
    if (reader.pos > end) throw cutOff();
  }

  /** Checks a string up to `end`: UTF-8 without NUL, which PostgreSQL cannot store. */
  private text(end: number): void {
    const { bytes, reader } = this;
    let all = 0;
    for (let at = reader.pos; at < end; at += 1) {
      const byte = bytes[at]!;
      if (byte === 0) throw new Problem('must not contain NUL');
      all |= byte;
    }
    if (all >= 0x80 && !isUtf8(bytes.subarray(reader.pos, end))) throw new Problem('must be valid UTF-8');
    reader.pos = end;
  }

  private timestamp(end: number): void {
    const { seconds, nanos } = this.secondsAndNanos(end);
    if (seconds < firstSecond || seconds > lastSecond || nanos < 0 || nanos > lastNano) {
      throw new Problem('must be an RFC 3339 timestamp: of the years 1 to 9999, with nanos from 0 to 999999999');
    }
  }

  private duration(end: number): void {
    const { seconds, nanos } = this.secondsAndNanos(end);
    const isLong = seconds < -maxDuration || seconds > maxDuration;
    const hasTwoSigns = (seconds < 0n && nanos > 0) || (seconds > 0n && nanos < 0);
    if (isLong || hasTwoSigns || nanos < -lastNano || nanos > lastNano) {
      throw new Problem(
        'must be at most 315576000000 seconds, either way, with nanos below a second and of the same sign',
      );
    }
  }

  private secondsAndNanos(end: number): { seconds: bigint; nanos: number } {
    const { reader } = this;
    let seconds = 0n;
    let nanos = 0;
    while (reader.pos < end) {
      const [number, wireType] = reader.tag();
      const isKnown = number === 1 || number === 2;
      if (isKnown && wireType !== WireType.Varint) throw ofAnotherType();
      if (number === 1) seconds = BigInt(reader.int64());
      else if (number === 2) nanos = reader.int32();
      else this.skip(wireType, number, end);
    }
    if (reader.pos > end) throw cutOff();
    return { seconds, nanos };
  }
}
