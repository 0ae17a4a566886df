// Rejects values that the message decoder accepts but the contract forbids: inexact numbers, dates that do not exist,
// unknown enum values. Each check concerns one JSON value and one field.
import { type DescField, type DescMessage, type JsonObject, type JsonValue, ScalarType } from '@bufbuild/protobuf';
import { fieldOf, isWellKnown, type JsonPath } from './field-path.ts';

/** Free-form JSON, which may contain anything that JSON.parse returns. */
const freeTypes = new Set(['google.protobuf.Struct', 'google.protobuf.Value', 'google.protobuf.ListValue']);

const longTypes = new Set([
  ScalarType.INT64,
  ScalarType.UINT64,
  ScalarType.SINT64,
  ScalarType.FIXED64,
  ScalarType.SFIXED64,
]);

/** Returns the scalar type of a field's values, including those of wrappers. */
function scalarOf(field: DescField): ScalarType | undefined {
  if (field.scalar !== undefined) return field.scalar;
  const { message } = field;
  return message && /^google\.protobuf\.\w+Value$/.test(message.typeName) && message.fields.length === 1
    ? message.fields[0]!.scalar
    : undefined;
}

/**
 * Describes what is wrong with one value of a field (or an item of a list or map) that the decoder may accept;
 * undefined if it is valid.
 */
export function valueProblem(field: DescField, value: JsonValue): string | undefined {
  if (field.enum) {
    const isUnknown = typeof value === 'number' && field.enum.value[value] === undefined;
    return isUnknown && field.enum.typeName !== 'google.protobuf.NullValue' ? enumNames(field) : undefined;
  }
  if (field.message?.typeName === 'google.protobuf.Timestamp') {
    return typeof value === 'string' && !isRealDay(value) ? 'must be an RFC 3339 timestamp' : undefined;
  }
  const scalar = scalarOf(field);
  if (scalar === undefined || scalar === ScalarType.STRING || scalar === ScalarType.BOOL) return undefined;
  if (scalar === ScalarType.BYTES) {
    return typeof value === 'string' && /\s/.test(value) ? 'must be base64 without white space' : undefined;
  }
  if (typeof value === 'string') {
    // Number() accepts hexadecimal, octal and binary; proto3 JSON only decimal.
    return /^0[xob]/i.test(value) ? 'must be a decimal number' : undefined;
  }
  const isInexact = typeof value === 'number' && longTypes.has(scalar) && !Number.isSafeInteger(value);
  return isInexact && Number.isInteger(value) ? 'must be a string: as a JSON number it is not exact' : undefined;
}

/** Lists the names of an enum for an error. The zero value means unset and is omitted. */
export function enumNames(field: DescField): string {
  const values = field.enum!.values;
  const named = values.filter(({ number }) => number !== 0);
  return `must be one of ${(named.length > 0 ? named : values).map(({ name }) => name).join(', ')}`;
}

/** Reports whether the day of an RFC 3339 timestamp exists in its month; the decoder finds other errors. */
export function isRealDay(text: string): boolean {
  const [, year, month, day] = /^(\d{4})-(\d\d)-(\d\d)/.exec(text) ?? [];
  if (day === undefined) return true;
  const date = new Date(0);
  date.setUTCFullYear(Number(year), Number(month) - 1, Number(day));
  return date.getUTCDate() === Number(day);
}

/** Whether values of a type need checks. Telemetry needs none unless a number is given as a string. */
const careful = new WeakMap<DescMessage, boolean>();

function needsCare(schema: DescMessage, onTheWay: ReadonlySet<DescMessage> = new Set()): boolean {
  const known = careful.get(schema);
  if (known !== undefined) return known;
  if (onTheWay.has(schema)) return false;
  const inner = new Set([...onTheWay, schema]);
  const result = schema.fields.some((field) => {
    if (field.message && !isWellKnown(field.message)) return needsCare(field.message, inner);
    const scalar = scalarOf(field);
    return (
      field.enum !== undefined ||
      field.message?.typeName === 'google.protobuf.Timestamp' ||
      freeTypes.has(field.message?.typeName ?? '') ||
      scalar === ScalarType.BYTES ||
      (scalar !== undefined && longTypes.has(scalar))
    );
  });
  if (onTheWay.size === 0) careful.set(schema, result);
  return result;
}

/**
 * Returns the first invalid value in a request, and its position. `mayHoldNumberText` means that some number may be a
 * string.
 */
export function findValueProblem(
  schema: DescMessage,
  object: JsonObject,
  mayHoldNumberText: boolean,
): { path: JsonPath; reason: string } | undefined {
  return mayHoldNumberText || needsCare(schema) ? walk(schema, object, []) : undefined;
}

function walk(schema: DescMessage, object: JsonObject, path: JsonPath): { path: JsonPath; reason: string } | undefined {
  for (const [key, value] of Object.entries(object)) {
    const field = fieldOf(schema, key);
    if (!field) continue;
    const parts: [JsonPath, JsonValue][] =
      field.fieldKind === 'list' && Array.isArray(value)
        ? value.map((item, index) => [[...path, key, index], item])
        : field.fieldKind === 'map' && isObject(value)
          ? Object.entries(value).map(([name, item]) => [[...path, key, name], item])
          : [[[...path, key], value]];
    for (const [place, part] of parts) {
      const isMessage = field.message && !isWellKnown(field.message);
      const found = isMessage
        ? isObject(part)
          ? walk(field.message, part, place)
          : undefined
        : leafProblem(field, part, place);
      if (found) return found;
    }
  }
  return undefined;
}

function leafProblem(
  field: DescField,
  value: JsonValue,
  path: JsonPath,
): { path: JsonPath; reason: string } | undefined {
  if (freeTypes.has(field.message?.typeName ?? '')) {
    const place = infinitePath(value);
    return place && { path: [...path, ...place], reason: 'must be a finite number' };
  }
  const reason = valueProblem(field, value);
  return reason === undefined ? undefined : { path, reason };
}

/**
 * Returns the position of a number too large for a double in free-form JSON: JSON.parse turns it into Infinity, and
 * JSON.stringify that into null.
 */
function infinitePath(value: JsonValue): JsonPath | undefined {
  if (typeof value === 'number') return Number.isFinite(value) ? undefined : [];
  if (typeof value !== 'object' || value === null) return undefined;
  const entries: Iterable<[string | number, JsonValue]> = Array.isArray(value)
    ? value.entries()
    : Object.entries(value);
  for (const [key, item] of entries) {
    const place = infinitePath(item);
    if (place) return [key, ...place];
  }
  return undefined;
}

const isObject = (value: JsonValue): value is JsonObject =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

/**
 * Reports whether a body may contain a string that starts like a number in another base: a single search, which almost
 * never finds anything.
 */
export function mayHoldNumberText(body: Uint8Array): boolean {
  const buffer = Buffer.from(body.buffer, body.byteOffset, body.byteLength);
  for (let at = buffer.indexOf('"0'); at >= 0; at = buffer.indexOf('"0', at + 2)) {
    // x, o or b in either case.
    if ('xobXOB'.includes(String.fromCharCode(buffer[at + 2]!))) return true;
  }
  return false;
}
