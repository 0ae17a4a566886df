// What is wrong with the JSON of a request, in words of the API: which field, and what it should have been.
import { fromJson, type DescField, type DescMessage, type JsonObject, type JsonValue } from '@bufbuild/protobuf';

/**
 * Explains why `object` is no message of the schema: `points[2].timestamp: expected string, got 5`, `status: must be one of
 * online, offline`. The decoder itself names types, not fields, so the culprit is found by decoding part by part.
 * `message` is what the decoder said of the whole; it stays when every part is right by itself.
 */
export function describeFailure(schema: DescMessage, object: JsonObject, message: string): string {
  const key = Object.keys(object).find((name) => failure(schema, { [name]: object[name]! }) !== undefined);
  if (key === undefined) {
    const together = /^cannot decode field \S*?([^.\s]+) from JSON/.exec(message)?.[1];
    return together ? `${together}: ${reasonOf(message)}` : reasonOf(message);
  }
  const field = schema.fields.find(({ name, jsonName }) => name === key || jsonName === key);
  if (!field) return `unknown field ${JSON.stringify(key)}`;
  const value = object[key]!;
  const inner = culpritIn(field, key, value);
  if (!inner) return `${key}: ${leafReason(field, value, failure(schema, { [key]: value })!)}`;
  const within = describeFailure(inner.schema, inner.value, failure(inner.schema, inner.value)!);
  return within.startsWith('unknown field') ? `${inner.path}: ${within}` : `${inner.path}.${within}`;
}

/** The message within a field that is to blame, when it is an object of a type with fields of its own. */
function culpritIn(
  field: DescField,
  path: string,
  value: JsonValue,
): { path: string; schema: DescMessage; value: JsonObject } | undefined {
  const schema = field.message;
  // Well-known types have a JSON of their own.
  if (!schema || schema.typeName.startsWith('google.protobuf.')) return undefined;
  const parts: [string, JsonValue][] =
    field.fieldKind === 'list'
      ? (Array.isArray(value) ? value : []).map((item, index) => [`${path}[${index}]`, item])
      : field.fieldKind === 'map'
        ? Object.entries(isObject(value) ? value : {}).map(([name, item]) => [`${path}[${JSON.stringify(name)}]`, item])
        : [[path, value]];
  for (const [partPath, part] of parts) {
    if (isObject(part) && failure(schema, part) !== undefined) return { path: partPath, schema, value: part };
  }
  return undefined;
}

function leafReason(field: DescField, value: JsonValue, message: string): string {
  if (field.fieldKind === 'enum' && typeof value === 'string') {
    const names = field.enum.values.filter(({ number }) => number !== 0).map(({ name }) => name);
    return `must be one of ${names.join(', ')}`;
  }
  if (field.fieldKind === 'message' && /^cannot decode message/.test(message)) return 'must be an object';
  return reasonOf(message);
}

/** The part of the decoder's message that speaks of the value. */
const reasonOf = (message: string): string =>
  /^cannot decode \w+ \S+ from JSON:? ([^]*)$/.exec(message)?.[1] ?? message;

function failure(schema: DescMessage, object: JsonObject): string | undefined {
  try {
    fromJson(schema, object);
    return undefined;
  } catch (error) {
    return (error as Error).message;
  }
}

const isObject = (value: JsonValue): value is JsonObject =>
  typeof value === 'object' && value !== null && !Array.isArray(value);
