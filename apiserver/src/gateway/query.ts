// Query parameters into the JSON of a request: nested by dots, repeated for lists, each a scalar in text.
import { ScalarType, type DescField, type DescMessage, type JsonObject, type JsonValue } from '@bufbuild/protobuf';
import { invalidArgument } from '../platform/errors.ts';
import { checkText } from './strict-json.ts';

/** Messages whose JSON is one string, which a query parameter can hold. */
const textMessages = new Set(['google.protobuf.Timestamp', 'google.protobuf.Duration', 'google.protobuf.FieldMask']);
const wrapper = /^google\.protobuf\.(Bool|String|Bytes|Double|Float|U?Int(32|64))Value$/;

/**
 * Adds the parameters of a raw query string to `target`, the request in proto JSON. `isBound` names the fields that the path
 * or the body fills, which a parameter may not name. Throws INVALID_ARGUMENT naming the parameter.
 */
export function addQuery(
  message: DescMessage,
  query: string,
  target: JsonObject,
  isBound: (fieldName: string) => boolean,
): void {
  for (const pair of query.split('&')) {
    if (pair === '') continue;
    const equals = pair.indexOf('=');
    const name = decode(equals < 0 ? pair : pair.slice(0, equals));
    const value = decode(equals < 0 ? '' : pair.slice(equals + 1));
    addParameter(message, name, value, target, isBound);
  }
}

function decode(text: string): string {
  let decoded: string;
  try {
    decoded = decodeURIComponent(text.replaceAll('+', ' '));
  } catch {
    throw invalidArgument('the query is not valid percent-encoding');
  }
  checkText(decoded);
  return decoded;
}

function addParameter(
  message: DescMessage,
  name: string,
  value: string,
  target: JsonObject,
  isBound: (fieldName: string) => boolean,
): void {
  const unknown = () => invalidArgument(`unknown query parameter ${JSON.stringify(name)}`);
  const path = name.split('.');
  let object = target;
  let fields = message.fields;
  for (const [index, part] of path.entries()) {
    const field = fields.find((candidate) => candidate.name === part || candidate.jsonName === part);
    if (!field || (index === 0 && isBound(field.name))) throw unknown();
    if (index === path.length - 1) return setLeaf(field, name, value, object);
    if (field.fieldKind !== 'message' || textMessages.has(field.message.typeName)) throw unknown();
    fields = field.message.fields;
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
 * Text of the query or the path as the JSON value that the decoder takes for the field, or for an item of it: numbers and
 * bytes are legal as text, booleans are not. Throws INVALID_ARGUMENT naming `name`.
 */
export function fieldFromText(field: DescField, name: string, value: string): JsonValue {
  const isBoolean = field.scalar === ScalarType.BOOL || field.message?.typeName === 'google.protobuf.BoolValue';
  if (isBoolean) {
    if (value !== 'true' && value !== 'false') throw invalidArgument(`${name} must be true or false`);
    return value === 'true';
  }
  if (field.fieldKind === 'map') throw invalidArgument(`${name} cannot be given as a query parameter`);
  if (field.enum) return /^-?\d{1,10}$/.test(value) ? Number(value) : value;
  if (!field.message || textMessages.has(field.message.typeName) || wrapper.test(field.message.typeName)) return value;
  throw invalidArgument(`${name} cannot be given as a query parameter`);
}
