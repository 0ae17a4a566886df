// Explains why the JSON of a request is invalid: which field, and what was expected.
import {
  type DescField,
  type DescMessage,
  fromJson,
  type JsonObject,
  type JsonValue,
  type Registry,
} from '@bufbuild/protobuf';
import { fieldOf, isWellKnown, type JsonPath } from './field-path.ts';
import { enumNames } from './value-checks.ts';

/** Expected JSON of well-known types for which the decoder's own message is unclear. */
const forms: Readonly<Record<string, string>> = {
  Timestamp: 'must be an RFC 3339 timestamp',
  Duration: 'must be a number of seconds such as "1.5s"',
  FieldMask: 'must be a string of comma-separated field names in lowerCamelCase',
  Struct: 'must be an object',
  ListValue: 'must be an array',
  Empty: 'must be an empty object',
};

/**
 * Explains why `object` is not a valid message of the schema, for example `points[2].timestamp: expected string, got
 * 5`. The decoder names types, not fields, so the culprit is found by decoding part by part. `message` is the decoder's
 * error for the whole object; it is kept if every part is valid on its own (two members of a oneof).
 */
export function explainFailure(
  schema: DescMessage,
  object: JsonObject,
  message: string,
  registry: Registry,
): { path: JsonPath; reason: string } {
  const fails = (part: JsonObject, of = schema): string | undefined => {
    try {
      fromJson(of, part, { registry });
      return undefined;
    } catch (error) {
      return (error as Error).message;
    }
  };
  const key = Object.keys(object).find((name) => fails(only(name, object[name]!)) !== undefined);
  if (key === undefined) {
    const [, oneof, first, second] = /(\w+) from JSON: oneof set multiple times by (\S+) and (\S+)/.exec(message) ?? [];
    if (oneof !== undefined) return { path: [first!], reason: `must not be given together with ${second!}` };
    const field = /^cannot decode field \S*?([^.\s]+) from JSON/.exec(message)?.[1];
    return { path: field === undefined ? [] : [field], reason: reasonOf(message) };
  }
  const field = fieldOf(schema, key);
  if (!field) return { path: [], reason: `unknown field ${JSON.stringify(key)}` };
  const value = object[key]!;
  const part = failingPart(field, value, (some) => fails(only(key, some)));
  if (part) {
    const { path, item, said } = part;
    const inner = field.message && !isWellKnown(field.message) ? field.message : undefined;
    const saidWithin = inner && isObject(item) ? fails(item, inner) : undefined;
    if (inner && saidWithin !== undefined) {
      const within = explainFailure(inner, item as JsonObject, saidWithin, registry);
      return { path: [key, ...path, ...within.path], reason: within.reason };
    }
    return { path: [key, ...path], reason: leafReason(field, item, said) };
  }
  return { path: [key], reason: leafReason(field, value, fails(only(key, value))!) };
}

/**
 * Returns the first item of a list or map that cannot be decoded, or the value itself if that is at fault; undefined if
 * every item is valid on its own. Uses bisection, so that a long list costs no more than decoding it twice.
 */
function failingPart(
  field: DescField,
  value: JsonValue,
  fails: (some: JsonValue) => string | undefined,
): { path: JsonPath; item: JsonValue; said: string } | undefined {
  const [items, together] = partsOf(field, value);
  let first = 0;
  let end = items.length;
  if (end === 0) return undefined;
  while (end - first > 1) {
    const middle = (first + end) >> 1;
    if (fails(together(items.slice(first, middle))) === undefined) first = middle;
    else end = middle;
  }
  const found = items[first]!;
  const said = fails(together([found]));
  return said === undefined ? undefined : { ...found, said };
}

interface Part {
  readonly path: JsonPath;
  readonly item: JsonValue;
}

/**
 * Returns the items of a list or map, or the value itself, and a function that builds a field value from some of them.
 */
function partsOf(field: DescField, value: JsonValue): [Part[], (some: readonly Part[]) => JsonValue] {
  if (field.fieldKind === 'list') {
    const items = Array.isArray(value) ? value.map((item, index) => ({ path: [index], item })) : [];
    return [items, (some) => some.map(({ item }) => item)];
  }
  if (field.fieldKind === 'map') {
    const items = isObject(value) ? Object.entries(value).map(([name, item]) => ({ path: [name], item })) : [];
    return [items, (some) => Object.fromEntries(some.map(({ path, item }) => [path[0], item])) as JsonObject];
  }
  return [[{ path: [], item: value }], () => value];
}

function leafReason(field: DescField, value: JsonValue, message: string): string {
  if (field.fieldKind === 'list' && !Array.isArray(value) && / expected Array/.test(message)) return 'must be an array';
  if (field.fieldKind === 'map' && / expected object/i.test(message)) return 'must be an object';
  if (/ must not be null$/.test(message)) return 'must not be null';
  if (field.enum) return enumNames(field);
  const { message: schema } = field;
  if (schema && isWellKnown(schema)) {
    const form = forms[schema.typeName.slice('google.protobuf.'.length)];
    if (form !== undefined) return form;
  } else if (schema && !isObject(value)) {
    return 'must be an object';
  }
  return reasonOf(message);
}

/** Returns the part of the decoder's message that describes the value. */
const reasonOf = (message: string): string =>
  /^cannot decode \w+ \S+ from JSON:? (?:map entry ".*?": |list item #\d+: )?([^]*)$/.exec(message)?.[1] ?? message;

/** Returns an object with one key, which may be any text: `__proto__` is an ordinary key. */
const only = (key: string, value: JsonValue): JsonObject => Object.fromEntries([[key, value]]);

const isObject = (value: JsonValue): value is JsonObject =>
  typeof value === 'object' && value !== null && !Array.isArray(value);
