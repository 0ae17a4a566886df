// Converts REST to protobuf and back. Path, query and body become one object with proto names, which one decoder turns
// into a message, so that all checks of proto3 JSON apply wherever a value came from.
import {
  create,
  type DescField,
  type DescMessage,
  type DescMethod,
  fromJson,
  type JsonObject,
  type JsonValue,
  type Message,
  toJson,
} from '@bufbuild/protobuf';
import { FieldMaskSchema } from '@bufbuild/protobuf/wkt';
import { type HttpBody, HttpBodySchema } from '@kellet/proto/es/google/api/httpbody_pb';
import { AuthService } from '@kellet/proto/es/kellet/v1/auth_pb';
import { invalidArgument } from '../../platform/errors.ts';
import { encodePlain } from './compiled-encoder.ts';
import { explainFailure } from './decode-failure.ts';
import { fieldOf, showProblem } from './field-path.ts';
import { decodePlainRequest, type RestRequest } from './plain-request.ts';
import { addQuery, fieldFromText } from './query.ts';
import { type Match, type RawBody, rawBody, type Route } from './routes.ts';
import { JsonProblem, parseStrictJson, sizeProblem, textProblem } from './strict-json.ts';
import { hasUpdateMask, takeMask, takeQueryMask } from './update-mask.ts';
import { findValueProblem, mayHoldNumberText } from './value-checks.ts';

/** An HTTP response; the status defaults to 200. */
export interface RestResponse {
  readonly status?: number;
  readonly headers?: readonly (readonly [string, string])[];
  readonly contentType: string;
  readonly body: Uint8Array | string;
}

/** What a body leaves out because the connection says it: the device, and the time in milliseconds since 1970. */
export interface BodyDefaults {
  readonly deviceId: string;
  readonly now: number;
}

/**
 * Reads the body of a method faster than decodeRequest, which `decode` calls. Returns an equal message, or undefined if only
 * `decode` can tell. With `defaults` the body may leave them out, as on MQTT; `decode` must then fill them in.
 */
export type RequestReader = (body: Uint8Array, decode: () => Message, defaults?: BodyDefaults) => Message | undefined;

/**
 * Methods whose query is not written by the caller alone: providers for single sign-on add parameters of their own, which a client
 * has to ignore (RFC 6749, 4.1.2).
 */
const ignoringUnknown: ReadonlySet<DescMethod> = new Set([AuthService.method.finishSso]);

/** Readers by method. */
export type RequestReaders = ReadonlyMap<DescMethod, RequestReader>;

/** Decodes a request. Throws INVALID_ARGUMENT with a message that names the field. */
export function decodeRequest(match: Match, request: RestRequest): Message {
  const problem = rawBody(match.route) ? undefined : sizeProblem(request.body);
  if (problem !== undefined) throw invalidArgument(showProblem(match.route.method.input, [], problem));
  return decodePlainRequest(match, request) ?? decodeExactly(match, request);
}

/** The exact path, used when the fast one gives up: applies every rule of proto3 JSON and reports every error. */
export function decodeExactly(match: Match, request: RestRequest): Message {
  const { route, variables } = match;
  const input = route.method.input;
  const raw = rawBody(route);

  const object = raw ? {} : bodyObject(route, request.body);
  const isUpdate = route.verb === 'PATCH' && hasUpdateMask(input);
  const { mask: queryMask, rest: query } = isUpdate ? takeQueryMask(request.query) : { rest: request.query };
  const mask = isUpdate ? takeMask(route.method, object, queryMask) : undefined;
  if (query !== '') {
    const ignoresUnknown = ignoringUnknown.has(route.method);
    addQuery(input, query, object, { isBound: (fieldPath) => isBound(route, fieldPath), ignoresUnknown });
  }
  for (const { fieldPath } of route.template.variables) {
    setPath(input, object, fieldPath, variables.get(fieldPath.join('.')));
  }

  const message = decodeJson(route, object) as Message & Record<string, unknown>;
  const problem = findValueProblem(input, object, mayHoldNumberText(request.body));
  if (problem) throw invalidArgument(showProblem(input, problem.path, problem.reason));
  if (mask) {
    const bound = new Set(route.template.variables.map((variable) => variable.fieldPath[0]!));
    message['updateMask'] = create(FieldMaskSchema, { paths: mask.filter((path) => !bound.has(path)) });
  }
  return raw ? withBytes(raw, message, { contentType: request.contentType, data: request.body }) : message;
}

/**
 * Reports whether the path or the body binds a field, so that no query parameter may (google/api/http.proto, rules 1
 * and 2).
 */
function isBound(route: Route, fieldPath: readonly string[]): boolean {
  if (route.body === '*' || fieldPath[0] === route.body) return true;
  const name = fieldPath.join('.');
  return route.template.variables.some((variable) => variable.fieldPath.join('.') === name);
}

/** Sets raw bytes where the route expects them. */
function withBytes(raw: RawBody, message: Message, body: { contentType: string; data: Uint8Array }): Message {
  const bytes = create(HttpBodySchema, body);
  if (!raw.field) return bytes;
  return Object.assign(message, { [raw.field.localName]: bytes });
}

/**
 * Yields the messages of a request with a streamed body (google.api.HttpBody): `first` is the request decoded without
 * its body; later ones carry only the next bytes.
 */
export async function* bodyMessages(
  route: Route,
  first: Message,
  body: AsyncIterable<Uint8Array>,
): AsyncGenerator<Message> {
  yield first;
  const raw = rawBody(route)!;
  for await (const data of body) yield withBytes(raw, create(route.method.input), { contentType: '', data });
}

/** Encodes a response: proto names, scalars always present; google.api.HttpBody as its raw bytes. */
export function encodeResponse(route: Route, message: Message): RestResponse {
  const { output } = route.method;
  if (output.typeName === HttpBodySchema.typeName) return bytesOf(message as HttpBody);
  const field = route.responseBody ? fieldOf(output, route.responseBody) : undefined;
  if (field?.fieldKind === 'message' && field.message.typeName === HttpBodySchema.typeName) {
    return bytesOf((message as Message & Record<string, unknown>)[field.localName] as HttpBody | undefined);
  }
  if (!field) {
    const text = encodePlain(output, message);
    if (text !== undefined) return { contentType: 'application/json', body: text };
  }
  return { contentType: 'application/json', body: encodeExactly(route, message) };
}

/** Part of a streamed response. */
export interface ResponsePart {
  readonly contentType: string;
  readonly body: Uint8Array | string;
}

/** The content type of a stream of messages: a line of JSON for each. */
export const linesOfJson = 'application/x-ndjson';

/** Encodes the messages of a streamed response: google.api.HttpBody as its raw bytes, others as a line of JSON each. */
export async function* encodeResponses(route: Route, messages: AsyncIterable<Message>): AsyncGenerator<ResponsePart> {
  const isRaw = route.method.output.typeName === HttpBodySchema.typeName;
  for await (const message of messages) {
    if (isRaw) yield bytesOf(message as HttpBody);
    else yield { contentType: linesOfJson, body: `${encodeResponse(route, message).body as string}\n` };
  }
}

/** The exact path, used when the fast one (compiled-encoder.ts) gives up. */
export function encodeExactly({ method, responseBody, types }: Route, message: Message): string {
  const json = toJson(method.output, message, { useProtoFieldName: true, alwaysEmitImplicit: true, registry: types });
  return JSON.stringify(responseBody ? ((json as JsonObject)[responseBody] ?? null) : json);
}

const bytesOf = (body: HttpBody | undefined): RestResponse => ({
  contentType: body?.contentType || 'application/octet-stream',
  body: body?.data ?? new Uint8Array(),
});

/**
 * Reports whether a route accepts an empty body: actions such as pause, where every field is in the path or optional.
 * Requests with required content need a body.
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

/** Decodes the JSON of a request. Throws INVALID_ARGUMENT, naming the field. */
function decodeJson(route: Route, object: JsonObject): Message {
  const { method, types: registry } = route;
  try {
    return fromJson(method.input, object, { registry });
  } catch (error) {
    const { path, reason } = explainFailure(method.input, object, (error as Error).message, registry);
    throw invalidArgument(path.length === 0 ? reason : showProblem(method.input, path, reason));
  }
}

function bodyObject(route: Route, body: Uint8Array): JsonObject {
  if (body.length === 0) {
    if (bodyMayBeEmpty(route)) return {};
    throw invalidArgument(`a JSON body is required (${describeBody(route.method, route.body)})`);
  }
  const value = parseBody(route, body);
  if (route.body === '') {
    // Some clients send {} with every request; any other content would be lost silently.
    if (isObject(value) && Object.keys(value).length === 0) return {};
    throw invalidArgument('this route takes no body');
  }
  if (route.body !== '*') return { [route.body]: value };
  if (!isObject(value)) throw invalidArgument('the body must be a JSON object');
  return value;
}

function parseBody(route: Route, body: Uint8Array): JsonValue {
  try {
    return parseStrictJson(body);
  } catch (error) {
    if (!(error instanceof JsonProblem)) throw error;
    const path = error.path.length === 0 || route.body === '*' ? error.path : [route.body, ...error.path];
    throw invalidArgument(showProblem(route.method.input, path, error.message));
  }
}

function describeBody(method: DescMethod, body: string): string {
  if (body !== '*') return body;
  const names = method.input.fields.map((field) => field.name).filter((name) => name !== 'update_mask');
  return names.slice(0, 8).join(', ');
}

/** A path variable takes precedence over the body (google/api/http.proto). */
function setPath(
  input: DescMessage,
  object: JsonObject,
  fieldPath: readonly string[],
  value: string | undefined,
): void {
  const name = fieldPath.join('.');
  if (value === undefined) throw invalidArgument(`${name} in the path is not valid percent-encoding`);
  const problem = textProblem(value);
  if (problem !== undefined) throw invalidArgument(`${name}: ${problem}`);
  let target = object;
  let schema = input;
  for (const [index, part] of fieldPath.entries()) {
    const field = fieldOf(schema, part)!;
    const given = Object.hasOwn(target, field.name) ? target[field.name] : target[field.jsonName];
    if (field.jsonName !== field.name) delete target[field.jsonName];
    if (index === fieldPath.length - 1) {
      target[field.name] = fieldFromText(field, name, value);
    } else if (field.fieldKind === 'message') {
      const inner = given ?? {};
      target[field.name] = inner;
      // Anything but an object is rejected by the decoder.
      if (!isObject(inner)) return;
      target = inner;
      schema = field.message;
    }
  }
}

const isObject = (value: JsonValue | undefined): value is JsonObject =>
  typeof value === 'object' && value !== null && !Array.isArray(value);
