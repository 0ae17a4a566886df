// Converts query parameters to the JSON of a request: nested by dots, repeated for lists, each a scalar as text.
import { type DescField, type DescMessage, type JsonObject, type JsonValue, ScalarType } from '@bufbuild/protobuf';
import { invalidArgument } from '../../platform/errors.ts';
import { fieldOf, isWellKnown } from './field-path.ts';
import { textProblem } from './strict-json.ts';
import { valueProblem } from './value-checks.ts';

/** Messages with a string as JSON form, which query parameters can hold. */
const textMessages = new Set(['google.protobuf.Timestamp', 'google.protobuf.Duration', 'google.protobuf.FieldMask']);
const wrapper = /^google\.protobuf\.(Bool|String|Bytes|Double|Float|U?Int(32|64))Value$/;

/** How the parameters of a route are taken. */
export interface QueryRules {
  /** Reports whether the path or the body binds a field path, so that parameters may not name it. */
  readonly isBound: (fieldPath: readonly string[]) => boolean;
  /** Whether unknown parameters are ignored instead of refused. */
  readonly ignoresUnknown: boolean;
}

/**
 * Adds the parameters of a raw query string to `target`, the request as proto JSON. Throws INVALID_ARGUMENT, naming the
 * parameter.
 */
export function addQuery(message: DescMessage, query: string, target: JsonObject, rules: QueryRules): void {
  for (const pair of query.split('&')) {
    if (pair === '') continue;
    const equals = pair.indexOf('=');
    const name = decode(equals < 0 ? pair : pair.slice(0, equals));
    const value = decode(equals < 0 ? '' : pair.slice(equals + 1));
    addParameter(message, name, value, target, rules);
  }
}

/** Decodes percent-encoding as in HTML forms: a plus is a space. */
function decode(text: string): string {
  try {
    return decodeURIComponent(text.replaceAll('+', ' '));
  } catch {
    throw invalidArgument('the query is not valid percent-encoding');
  }
}

function addParameter(
  message: DescMessage,
  name: string,
  value: string,
  target: JsonObject,
  { isBound, ignoresUnknown }: QueryRules,
): void {
  const unknown = (): void => {
    if (!ignoresUnknown) throw invalidArgument(`unknown query parameter ${JSON.stringify(name)}`);
  };
  const parts = name.split('.');
  const fieldPath: string[] = [];
  let object = target;
  let schema = message;
  for (const [index, part] of parts.entries()) {
    const field = fieldOf(schema, part);
    if (!field) return unknown();
    fieldPath.push(field.name);
    if (index === parts.length - 1) {
      if (isBound(fieldPath)) return unknown();
      return setLeaf(field, name, value, object);
    }
    if (field.fieldKind !== 'message' || isWellKnown(field.message)) return unknown();
    schema = field.message;
    object = (object[field.name] ??= {}) as JsonObject;
  }
}

function setLeaf(field: DescField, name: string, value: string, object: JsonObject): void {
  if (field.fieldKind === 'list') {
    ((object[field.name] ??= []) as JsonValue[]).push(fieldFromText(field, name, value));
    return;
  }
  if (Object.hasOwn(object, field.name))
    throw invalidArgument(`query parameter ${JSON.stringify(name)} is given twice`);
  object[field.name] = fieldFromText(field, name, value);
}

/**
 * Converts text from the query or path to the JSON value that the decoder expects for the field or an item of it:
 * numbers and bytes may be text, booleans may not. Throws INVALID_ARGUMENT, naming `name`.
 */
export function fieldFromText(field: DescField, name: string, text: string): JsonValue {
  const value = jsonOf(field, name, text);
  const problem = textProblem(text) ?? valueProblem(field, value);
  if (problem !== undefined) throw invalidArgument(`${name}: ${problem}`);
  return value;
}

function jsonOf(field: DescField, name: string, text: string): JsonValue {
  const isBoolean = field.scalar === ScalarType.BOOL || field.message?.typeName === 'google.protobuf.BoolValue';
  if (isBoolean && field.fieldKind !== 'map') {
    if (text !== 'true' && text !== 'false') throw invalidArgument(`${name}: must be true or false`);
    return text === 'true';
  }
  const isText = !field.message || textMessages.has(field.message.typeName) || wrapper.test(field.message.typeName);
  if (field.fieldKind === 'map' || !isText) throw invalidArgument(`${name} cannot be given as a query parameter`);
  return field.enum && /^-?\d{1,10}$/.test(text) ? Number(text) : text;
}
