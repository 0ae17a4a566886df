// Requests that take the fast path: no query, a body that compiled-decoder.ts accepts, and strings in the path.
import { create, type DescField, type Message, ScalarType } from '@bufbuild/protobuf';
import { HttpBodySchema } from '@kellet/proto/es/google/api/httpbody_pb';
import { decodePlain } from './compiled-decoder.ts';
import type { Match, Route } from './routes.ts';
import { hasUpdateMask } from './update-mask.ts';

/** The parts of an HTTP request that carry the message. */
export interface RestRequest {
  /** Raw, without the question mark. */
  readonly query: string;
  readonly body: Uint8Array;
  /** The Content-Type header, kept only by google.api.HttpBody. */
  readonly contentType: string;
}

/** Returns the message of a request, equal to that of the exact path, or undefined if only the exact path can tell. */
export function decodePlainRequest({ route, variables }: Match, { query, body }: RestRequest): Message | undefined {
  const plan = planOf(route);
  if (!plan.isPlain || query !== '' || body.length > 0 !== plan.takesBody) return undefined;
  let message: (Message & Record<string, unknown>) | undefined;
  if (route.body === '*') {
    message = decodePlain(route.method.input, body);
  } else {
    message = create(route.method.input);
    if (plan.bodyField) {
      const inner = decodePlain(plan.bodyField.message, body);
      if (!inner) return undefined;
      message[plan.bodyField.localName] = inner;
    }
  }
  if (!message) return undefined;
  for (const { localName, path } of plan.strings) {
    const value = variables.get(path);
    if (value === undefined || value.includes('\0') || !value.isWellFormed()) return undefined;
    message[localName] = value;
  }
  return message;
}

/** What decoding needs to know about a route. */
interface Plan {
  /** Whether requests of this route can take the fast path at all. */
  readonly isPlain: boolean;
  readonly takesBody: boolean;
  readonly bodyField: (DescField & { fieldKind: 'message' }) | undefined;
  /** Fields bound by path variables, if each is a string field of the request itself. */
  readonly strings: readonly { readonly localName: string; readonly path: string }[];
}

const plans = new WeakMap<Route, Plan>();

function planOf(route: Route): Plan {
  let plan = plans.get(route);
  if (!plan) plans.set(route, (plan = makePlan(route)));
  return plan;
}

function makePlan(route: Route): Plan {
  const { input } = route.method;
  const fieldNamed = (name: string | undefined) => input.fields.find((field) => field.name === name);
  const { variables } = route.template;
  const strings = variables.map(({ fieldPath }) => fieldNamed(fieldPath.length === 1 ? fieldPath[0] : undefined));
  const bodyField = route.body === '' || route.body === '*' ? undefined : fieldNamed(route.body);
  const isMasked = route.verb === 'PATCH' && hasUpdateMask(input);
  const isMessage = (field: DescField): field is DescField & { fieldKind: 'message' } =>
    field.fieldKind === 'message' && field.message.typeName !== HttpBodySchema.typeName && !field.oneof;
  return {
    isPlain:
      !isMasked &&
      (!bodyField || isMessage(bodyField)) &&
      strings.every((field) => field?.scalar === ScalarType.STRING && field.fieldKind === 'scalar' && !field.oneof),
    takesBody: route.body !== '',
    bodyField: bodyField && isMessage(bodyField) ? bodyField : undefined,
    strings: strings.map((field, index) => ({
      localName: field?.localName ?? '',
      path: variables[index]!.fieldPath.join('.'),
    })),
  };
}
