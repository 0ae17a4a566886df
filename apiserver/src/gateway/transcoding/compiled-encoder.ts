// Fast path from a message to its JSON text: one writer per message type, compiled once from the descriptor, without an
// intermediate object. Like the decoder, it gives up at anything unusual, and protobuf-es then writes the message or
// reports the error.
//
// CPU measured with a device (17 fields, two timestamps): 1.0 µs; the exact path takes 3.9 µs.
import { type DescEnum, type DescField, type DescMessage, type Message, ScalarType } from '@bufbuild/protobuf';
import { StructSchema, type Timestamp, TimestampSchema } from '@bufbuild/protobuf/wkt';

/** Writes a value; throws `unusual` if it cannot. */
type Writer = (value: unknown) => string;

/** Writes a field with its name, or an empty string if it is unset. */
type FieldWriter = (message: Record<string, unknown>) => string;

const unusual = new Error('out of the ordinary');

/**
 * Returns the JSON of a message, with proto names and scalars always present. Returns undefined if the message does not
 * match its descriptor or has parts that are left to the exact encoder (64-bit integers, bytes, oneofs, well-known
 * types except Timestamp and Struct).
 */
export function encodePlain(schema: DescMessage, message: Message): string | undefined {
  try {
    return writerOf(schema)(message);
  } catch {
    return undefined;
  }
}

const writers = new WeakMap<DescMessage, Writer>();

function writerOf(schema: DescMessage): Writer {
  let writer = writers.get(schema);
  if (!writer) {
    // Recursive types look up their writer when it is used.
    writers.set(schema, (value) => writers.get(schema)!(value));
    writer = compileMessage(schema);
    writers.set(schema, writer);
  }
  return writer;
}

const refuse: Writer = () => {
  throw unusual;
};

function compileMessage(schema: DescMessage): Writer {
  const { typeName } = schema;
  if (typeName === TimestampSchema.typeName) return writeTimestamp;
  if (typeName.startsWith('google.')) return refuse;
  if (schema.oneofs.some((oneof) => oneof.fields.length > 0)) return refuse;
  const fields = schema.fields.toSorted((a, b) => a.number - b.number).map(compileField);
  return (value) => {
    const message = value as Record<string, unknown>;
    if (message['$typeName'] !== typeName) throw unusual;
    let text = '';
    for (const write of fields) {
      const field = write(message);
      if (field !== '') text = text === '' ? field : text + ',' + field;
    }
    return '{' + text + '}';
  };
}

function compileField(field: DescField): FieldWriter {
  const { localName } = field;
  const name = JSON.stringify(field.name) + ':';
  const write = compileValue(field);
  const isImplicit = field.fieldKind === 'list' || field.fieldKind === 'map' || isImplicitScalar(field);
  return (message) => {
    const value = message[localName];
    if (value === undefined && !isImplicit) return '';
    return name + write(value);
  };
}

const isImplicitScalar = (field: DescField): boolean =>
  (field.fieldKind === 'scalar' || field.fieldKind === 'enum') && !field.proto.proto3Optional;

function compileValue(field: DescField): Writer {
  switch (field.fieldKind) {
    case 'scalar':
      return scalarWriter(field.scalar);
    case 'enum':
      return enumWriter(field.enum);
    case 'message':
      return messageWriter(field);
    case 'list':
      if (field.listKind === 'message') return listWriter(messageWriter(field));
      return listWriter(field.listKind === 'enum' ? enumWriter(field.enum) : scalarWriter(field.scalar));
    case 'map':
      if (field.mapKind === 'message') return mapWriter(messageWriter(field));
      return mapWriter(field.mapKind === 'enum' ? enumWriter(field.enum) : scalarWriter(field.scalar));
  }
}

const messageWriter = (field: { message: DescMessage }): Writer =>
  field.message.typeName === StructSchema.typeName ? writeStruct : writerOf(field.message);

function scalarWriter(type: ScalarType): Writer {
  switch (type) {
    case ScalarType.STRING:
      return writeString;
    case ScalarType.BOOL:
      return (value) => {
        if (typeof value !== 'boolean') throw unusual;
        return value ? 'true' : 'false';
      };
    case ScalarType.DOUBLE:
    case ScalarType.INT32:
    case ScalarType.UINT32:
      return (value) => {
        // NaN and the infinities are strings in JSON.
        if (typeof value !== 'number' || !Number.isFinite(value)) throw unusual;
        return String(value);
      };
    default:
      return refuse;
  }
}

/** Characters that JSON must escape, and lone surrogates, which JSON.stringify escapes too. */
// eslint-disable-next-line no-control-regex -- matches control characters on purpose
const escaped = /[\u0000-\u001f"\\\ud800-\udfff]/;

const writeString: Writer = (value) => {
  if (typeof value !== 'string') throw unusual;
  return escaped.test(value) ? JSON.stringify(value) : '"' + value + '"';
};

function enumWriter(schema: DescEnum): Writer {
  if (schema.typeName.startsWith('google.')) return refuse;
  const names = new Map(schema.values.map((value) => [value.number, JSON.stringify(value.jsonName)]));
  return (value) => {
    const name = names.get(value as number);
    if (name === undefined) throw unusual;
    return name;
  };
}

function listWriter(write: Writer): Writer {
  return (value) => {
    if (!Array.isArray(value)) throw unusual;
    let text = '';
    for (let index = 0; index < value.length; index += 1) {
      text = index === 0 ? write(value[0]) : text + ',' + write(value[index]);
    }
    return '[' + text + ']';
  };
}

function mapWriter(write: Writer): Writer {
  return (value) => {
    if (typeof value !== 'object' || value === null) throw unusual;
    let text = '';
    for (const key of Object.keys(value)) {
      const entry = writeString(key) + ':' + write((value as Record<string, unknown>)[key]);
      text = text === '' ? entry : text + ',' + entry;
    }
    return '{' + text + '}';
  };
}

/** 0001-01-01 to the end of 9999: the range of proto JSON. */
const firstSecond = -62_135_596_800;
const lastSecond = 253_402_300_799;

/**
 * `"2026-01-02T` by days since 1970: formatting it costs more than the rest of a timestamp, and so does a cache that orders
 * its entries by use.
 */
const dates = new Map<number, string>();
const twoDigits = Array.from({ length: 60 }, (_, number) => String(number).padStart(2, '0'));

/** Formats RFC 3339 with zero, three, six or nine fractional digits, as proto JSON does. */
const writeTimestamp: Writer = (value) => {
  const { $typeName, seconds, nanos } = value as Timestamp;
  const unixSeconds = Number(seconds);
  if ($typeName !== TimestampSchema.typeName || !(unixSeconds >= firstSecond && unixSeconds <= lastSecond))
    throw unusual;
  const day = Math.floor(unixSeconds / 86_400);
  let date = dates.get(day);
  if (date === undefined) {
    if (dates.size === 1000) dates.clear();
    dates.set(day, (date = '"' + new Date(day * 86_400_000).toISOString().slice(0, 11)));
  }
  const second = unixSeconds - day * 86_400;
  const time = `${twoDigits[Math.floor(second / 3600)]}:${twoDigits[Math.floor(second / 60) % 60]}:${twoDigits[second % 60]}`;
  if (nanos === 0) return date + time + 'Z"';
  if (!(nanos > 0 && nanos <= 999_999_999)) throw unusual;
  const length = nanos % 1_000_000 === 0 ? 3 : nanos % 1000 === 0 ? 6 : 9;
  return date + time + '.' + String(nanos + 1_000_000_000).slice(1, 1 + length) + 'Z"';
};

/** A field of type google.protobuf.Struct holds JSON values already. */
const writeStruct: Writer = (value) => {
  if (Array.isArray(value) || typeof value !== 'object' || value === null) throw unusual;
  requireJson(value, maximumDepth);
  return JSON.stringify(value);
};

/** Far below the limit of the exact encoder. */
const maximumDepth = 50;

/** Throws unless JSON.stringify writes the value as the exact encoder does. */
function requireJson(value: unknown, depth: number): void {
  switch (typeof value) {
    case 'string':
    case 'boolean':
      return;
    case 'number':
      if (!Number.isFinite(value)) throw unusual;
      return;
    case 'object':
      if (value === null) return;
      if (depth === 0) throw unusual;
      if (Array.isArray(value)) {
        for (const item of value) requireJson(item, depth - 1);
        return;
      }
      if (Object.getPrototypeOf(value) !== Object.prototype) throw unusual;
      for (const key of Object.keys(value)) requireJson((value as Record<string, unknown>)[key], depth - 1);
      return;
    default:
      throw unusual;
  }
}
