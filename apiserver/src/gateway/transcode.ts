// REST to protobuf and back: path, query and body become one object with proto names, then one message, by one decoder, so
// that every check of proto3 JSON is the same wherever a value stood.
import {
  create,
  fromJson,
  toJson,
  type DescField,
  type DescMessage,
  type DescMethod,
  type JsonObject,
  type JsonValue,
  type Message,
} from '@bufbuild/protobuf';
import { FieldMaskSchema } from '@bufbuild/protobuf/wkt';
import { HttpBodySchema } from '@kellet/proto/es/google/api/httpbody_pb';
import type { HttpBody } from '@kellet/proto/es/google/api/httpbody_pb';
import { invalidArgument } from '../platform/errors.ts';
import { encodePlain } from './compiled-encoder.ts';
import { describeFailure } from './decode-failure.ts';
import { decodePlainRequest } from './plain-request.ts';
import { addQuery, fieldFromText } from './query.ts';
import { rawBodyField, type Match, type Route } from './routes.ts';
import { checkText, parseStrictJson } from './strict-json.ts';
import { hasUpdateMask, takeMask } from './update-mask.ts';

/** The parts of an HTTP request that hold the message. */
export interface RestRequest {
  /** Raw, without the question mark. */
  readonly query: string;
  readonly body: Uint8Array;
  /** The header Content-Type; only google.api.HttpBody keeps it. */
  readonly contentType: string;
}

/** An HTTP answer: 200, unless it says otherwise. */
export interface RestResponse {
  readonly status?: number;
  readonly headers?: readonly (readonly [string, string])[];
  readonly contentType: string;
  readonly body: Uint8Array | string;
}

/** Decodes a request. Throws INVALID_ARGUMENT with a message that names the field. */
export function decodeRequest(match: Match, request: RestRequest): Message {
  return decodePlainRequest(match, request) ?? decodeExactly(match, request);
}

/** The exact way, on which the short one falls back: every rule of proto3 JSON, and every error. */
export function decodeExactly(match: Match, request: RestRequest): Message {
  const { route, variables } = match;
  const input = route.method.input;
  const boundByPath = new Set(route.template.variables.map((variable) => variable.fieldPath[0]!));
  const rawField = rawBodyField(route);

  const object = rawField ? {} : bodyObject(route, request.body);
  const mask = route.verb === 'PATCH' && hasUpdateMask(input) ? takeMask(input, object) : undefined;
  if (request.query !== '') {
    addQuery(
      input,
      request.query,
      object,
      (name) => route.body === '*' || name === route.body || boundByPath.has(name),
    );
  }
  for (const { fieldPath } of route.template.variables)
    setPath(input, object, fieldPath, variables.get(fieldPath.join('.')));

  const message = decodeJson(input, object) as Message & Record<string, unknown>;
  if (mask) {
    const paths = mask.filter((path) => !boundByPath.has(path));
    message['updateMask'] = create(FieldMaskSchema, { paths });
  }
  if (rawField) {
    message[rawField.localName] = create(HttpBodySchema, { contentType: request.contentType, data: request.body });
  }
  return message;
}

/**
 * The messages of a request whose body is streamed (google.api.HttpBody): `first` is the request as it decodes without its
 * body, every other carries the next bytes alone.
 */
export async function* bodyMessages(
  route: Route,
  first: Message,
  body: AsyncIterable<Uint8Array>,
): AsyncGenerator<Message> {
  yield first;
  const field = rawBodyField(route)!;
  for await (const data of body) {
    const message = create(route.method.input) as Message & Record<string, unknown>;
    message[field.localName] = create(HttpBodySchema, { data });
    yield message;
  }
}

/** Encodes a response: proto names, unpopulated scalars shown; google.api.HttpBody as its own bytes. */
export function encodeResponse(route: Route, message: Message): RestResponse {
  const output = route.method.output;
  if (output.typeName === HttpBodySchema.typeName) {
    const { contentType, data } = message as HttpBody;
    return { contentType: contentType || 'application/octet-stream', body: data };
  }
  if (route.responseBody === '') {
    const text = encodePlain(output, message);
    if (text !== undefined) return { contentType: 'application/json', body: text };
  }
  return { contentType: 'application/json', body: encodeExactly(route, message) };
}

/** The exact way, on which the short one (compiled-encoder.ts) falls back. */
export function encodeExactly(route: Route, message: Message): string {
  const json = toJson(route.method.output, message, { useProtoFieldName: true, alwaysEmitImplicit: true });
  const answer = route.responseBody ? ((json as JsonObject)[route.responseBody] ?? null) : json;
  return JSON.stringify(answer);
}

/**
 * Whether a route works without a body although it takes one: an action such as pause, whose every field is in the path or
 * optional. A request that has to say something must say it.
 */
export function bodyMayBeEmpty(route: Route): boolean {
  if (route.body === '') return true;
  if (route.verb !== 'POST' || route.body !== '*') return false;
  const bound = new Set(route.template.variables.map((variable) => variable.fieldPath[0]!));
  return route.method.input.fields.every((field) => bound.has(field.name) || isLeftOutEasily(field));
}

function isLeftOutEasily(field: DescField): boolean {
  if (field.fieldKind === 'list') return field.listKind === 'scalar';
  return (field.fieldKind === 'scalar' || field.fieldKind === 'enum') && field.proto.proto3Optional;
}

/** Decodes the JSON of a request. Throws INVALID_ARGUMENT in words of the API, naming the field. */
function decodeJson(schema: DescMessage, object: JsonObject): Message {
  try {
    return fromJson(schema, object);
  } catch (error) {
    throw invalidArgument(describeFailure(schema, object, (error as Error).message).slice(0, 300));
  }
}

function bodyObject(route: Route, body: Uint8Array): JsonObject {
  if (body.length === 0) {
    if (bodyMayBeEmpty(route)) return {};
    throw invalidArgument(`a JSON body is required (${describeBody(route.method, route.body)})`);
  }
  const value = parseStrictJson(body);
  if (route.body === '') {
    // Some clients send {} with every request; anything in it would be lost without a word.
    if (isObject(value) && Object.keys(value).length === 0) return {};
    throw invalidArgument('this route takes no body');
  }
  if (route.body !== '*') return { [route.body]: value };
  if (!isObject(value)) throw invalidArgument('the body must be a JSON object');
  return value;
}

function describeBody(method: DescMethod, body: string): string {
  if (body !== '*') return body;
  const names = method.input.fields.map((field) => field.name).filter((name) => name !== 'update_mask');
  return names.slice(0, 8).join(', ');
}

/** A path variable wins over whatever the body says of the same field (google/api/http.proto). */
function setPath(
  input: DescMessage,
  object: JsonObject,
  fieldPath: readonly string[],
  value: string | undefined,
): void {
  const name = fieldPath.join('.');
  if (value === undefined) throw invalidArgument(`${name} in the path is not valid percent-encoding`);
  checkText(value);
  let target = object;
  let fields = input.fields;
  for (const [index, part] of fieldPath.entries()) {
    const field = fields.find((candidate) => candidate.name === part)!;
    if (field.jsonName !== field.name) delete target[field.jsonName];
    if (index === fieldPath.length - 1) {
      target[field.name] = fieldFromText(field, name, value);
    } else if (field.fieldKind === 'message') {
      const inner = target[field.name];
      target = target[field.name] = isObject(inner) ? inner : {};
      fields = field.message.fields;
    }
  }
}

const isObject = (value: JsonValue | undefined): value is JsonObject =>
  typeof value === 'object' && value !== null && !Array.isArray(value);
