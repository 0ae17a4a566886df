// Describes a route of the gateway as an OpenAPI operation.
import type { DescField, DescMessage, JsonObject, JsonValue } from '@bufbuild/protobuf';
import {
  Access_Caller,
  Access_CustomerAccess as CustomerAccess,
  Access_RateLimit,
} from '@kellet/proto/es/kellet/v1/options_pb';
import { stepUpMinutes } from '../auth/credentials/step-up.ts';
import { isPublic } from '../gateway/admission/authorize.ts';
import { type Route, streamsResponses } from '../gateway/transcoding/routes.ts';
import { bodyMayBeEmpty, linesOfJson } from '../gateway/transcoding/transcode.ts';
import type { Contract } from './contract.ts';
import { errorKinds, errorResponses } from './errors.ts';
import { requestExamples } from './examples.ts';
import { isRequired, shortName } from './field-facts.ts';
import {
  callHeaders,
  commonHeaders,
  kubernetesHeaders,
  limitHeaders,
  methodHeaders,
  parameterReferences,
  references,
  type ResponseHeader,
} from './headers.ts';
import { fileResponses, rawBytes, rawRequests, rawResponses } from './raw-bytes.ts';
import type { Schemas } from './schemas.ts';

const rawBody = 'google.api.HttpBody';
/** Messages with a string as JSON form, which query parameters can hold. */
const textMessages = new Set(['google.protobuf.Timestamp', 'google.protobuf.FieldMask']);

const callerNames: Partial<Record<Access_Caller, string>> = {
  [Access_Caller.PUBLIC]: 'anyone',
  [Access_Caller.USER]: 'user',
  [Access_Caller.SERVICE]: 'service',
  [Access_Caller.DEVICE]: 'device',
  [Access_Caller.PLATFORM]: 'platform administrator',
};

/** What limited users may do: as `x-kellet-customer-access`, and in words. */
const customerAccess: Partial<Record<CustomerAccess, readonly [value: string, sentence: string]>> = {
  [CustomerAccess.NONE]: ['none', 'Not for users of a customer, nor with a scope that is limited to device groups.'],
  [CustomerAccess.OWN_DEVICE]: [
    'own_device',
    "Users of a customer: for that customer's devices. Users limited to device groups: for the devices of these groups.",
  ],
  [CustomerAccess.FILTERED]: [
    'filtered',
    "Users of a customer: limited to what is that customer's. Users limited to device groups: to what is of devices of these groups.",
  ],
  [CustomerAccess.FILTERED_ENTITIES]: [
    'filtered_entities',
    "Users of a customer: limited to what is that customer's. Not for users limited to device groups.",
  ],
  [CustomerAccess.UNLIMITED]: ['unlimited', ''],
};

const aboutStepUp = `Users with a second factor must have signed in with it within the last ${stepUpMinutes} minutes (401 with \`insufficient_user_authentication\`).`;
const aboutEnrollment = 'Users who enroll their first second factor must have signed in within that time.';

const text: JsonObject = { type: 'string' };
const redirectTo = (description: string): JsonObject => ({
  description,
  headers: {
    ...references(commonHeaders),
    Location: { description: 'Where the browser goes.', schema: text },
    'Set-Cookie': { description: 'Binds the sign-in to the browser, or ends that.', schema: text },
  },
});

/** Redirects of browsers by method. */
const redirects: Record<string, JsonObject> = {
  StartSso: redirectTo('To the provider. The body is that of 200.'),
  FinishSso: redirectTo('To the redirect_uri of the sign-in, with the fields of 200 in the fragment of the URL.'),
};

/** Returns the OpenAPI path of a route. Throws for a template that OpenAPI cannot express. */
export function pathOf({ template }: Route): string {
  const parts = template.segments.map((segment, index) => {
    if (segment.kind === 'literal') return segment.text;
    const variable = template.variables.find(({ start, end }) => start === index && end === index + 1);
    if (segment.kind === 'rest' || !variable) throw new Error('OpenAPI has no path for a wildcard');
    return `{${variable.fieldPath.join('.')}}`;
  });
  return `/${parts.join('/')}${template.verb && `:${template.verb}`}`;
}

/** Returns the operation of a route, with the method's name as `operationId` and `tag` as its group. */
export function operationOf(contract: Contract, schemas: Schemas, route: Route, tag: string): JsonObject {
  const { method, access, verb } = route;
  const isOpen = isPublic(access);
  const isCounted = access.rateLimit === Access_RateLimit.UNSPECIFIED && !isOpen;
  const comment = contract.comment(method);
  const permission = access.kubernetesPermission;
  const callers = [
    ...access.callers.map((caller) => callerNames[caller] ?? String(caller)),
    ...(permission ? ['Kubernetes identity'] : []),
  ];
  const who = [
    `Callers: ${callers.join(', ')}.`,
    ...(access.scope ? [`Scope: \`${access.scope}\`.`] : []),
    ...(permission ? [`Kubernetes permission: \`${permission}\`.`] : []),
  ].join(' ');
  const [customers, aboutCustomers] = customerAccess[access.customerAccess] ?? [];
  const body = requestBodyOf(schemas, route);
  const parameters = [
    ...pathParameters(schemas, route),
    ...queryParameters(schemas, route),
    ...parameterReferences([
      ...(methodHeaders[method.name] ?? []),
      ...(permission ? kubernetesHeaders : []),
      ...callHeaders,
    ]),
  ];
  return {
    operationId: method.name,
    tags: [tag],
    summary: summaryOf(method.name),
    description: [
      comment.replace(`${method.name} `, (name) => `\`${name.trim()}\` `),
      access.planned ? 'Planned: not implemented yet, returns 501.' : '',
      [
        who,
        aboutCustomers,
        access.stepUp ? aboutStepUp : '',
        access.stepUp && access.beforeEnrollment ? aboutEnrollment : '',
      ]
        .filter(Boolean)
        .join(' '),
    ]
      .filter(Boolean)
      .join('\n\n'),
    parameters,
    ...(body ? { requestBody: body } : {}),
    responses: {
      '200': successOf(schemas, route, isCounted),
      ...(rawResponses[method.name]?.statuses ?? {}),
      ...(redirects[method.name] ? { '302': redirects[method.name]! } : {}),
      ...errorResponses(errorKinds(method, verb, isOpen, isCounted)),
    },
    security: [...securityOf(access.callers, access.scope), ...(permission ? [{ kubernetesToken: [permission] }] : [])],
    'x-kellet-callers': callers,
    'x-kellet-status': access.planned ? 'planned' : 'available',
    ...(access.scope ? { 'x-kellet-scope': access.scope } : {}),
    ...(customers ? { 'x-kellet-customer-access': customers } : {}),
    ...(permission ? { 'x-kellet-kubernetes-permission': permission } : {}),
    ...(access.stepUp ? { 'x-kellet-step-up': true } : {}),
  };
}

/** Returns the security requirements of an operation. The role name in a requirement is the required scope. */
function securityOf(callers: readonly Access_Caller[], scope: string): JsonValue[] {
  if (callers.includes(Access_Caller.PUBLIC)) return [{}];
  const roles = scope ? [scope] : [];
  const users = callers.includes(Access_Caller.USER) || callers.includes(Access_Caller.PLATFORM);
  const keys = callers.includes(Access_Caller.SERVICE) || callers.includes(Access_Caller.DEVICE);
  const devices = callers.includes(Access_Caller.DEVICE);
  return [
    ...(users ? [{ accessToken: roles }] : []),
    ...(keys ? [{ apiKey: roles }, { apiKeyHeader: roles }] : []),
    ...(devices ? [{ clientCertificate: [] }] : []),
  ];
}

const boundByPath = (route: Route): ReadonlySet<string> =>
  new Set(route.template.variables.map(({ fieldPath }) => fieldPath[0]!));

function pathParameters(schemas: Schemas, route: Route): JsonValue[] {
  return route.template.variables.map(({ fieldPath }) => {
    const field = fieldAt(route.method.input, fieldPath);
    const { description, ...schema } = schemas.field(field, 'request');
    return {
      name: fieldPath.join('.'),
      in: 'path',
      required: true,
      ...(description ? { description } : {}),
      schema: schema['type'] === 'string' ? { minLength: 1, ...schema } : schema,
    };
  });
}

function queryParameters(schemas: Schemas, route: Route): JsonValue[] {
  if (route.body === '*') return [];
  const bound = boundByPath(route);
  const fields = route.method.input.fields.filter(({ name }) => !bound.has(name) && name !== route.body);
  return fields.flatMap((field) => queryOf(schemas, field, []));
}

function queryOf(schemas: Schemas, field: DescField, path: readonly string[]): JsonValue[] {
  const names = [...path, field.name];
  if (field.fieldKind === 'map' || (field.fieldKind === 'list' && field.message)) return [];
  if (field.fieldKind === 'message' && !textMessages.has(field.message.typeName)) {
    return field.message.fields.flatMap((inner) => queryOf(schemas, inner, names));
  }
  const { description, ...schema } = schemas.field(field, 'request');
  return [
    {
      name: names.join('.'),
      in: 'query',
      ...(isRequired(field) ? { required: true } : {}),
      ...(description ? { description } : {}),
      schema,
    },
  ];
}

function requestBodyOf(schemas: Schemas, route: Route): JsonObject | undefined {
  const { method, body } = route;
  if (body === '') return undefined;
  if (body !== '*') {
    const field = fieldAt(method.input, [body]);
    if (field.message?.typeName === rawBody) return { required: true, content: rawRequests[method.name] ?? rawBytes };
    return { required: true, content: jsonContent(schemas.field(field, 'request'), requestExamples[method.name]) };
  }
  const bound = boundByPath(route);
  if (method.input.fields.every(({ name }) => bound.has(name))) return undefined;
  const schema = schemas.message(method.input, 'request', bound);
  const isNeeded = method.input.fields.some((field) => !bound.has(field.name) && isRequired(field));
  return { required: isNeeded || !bodyMayBeEmpty(route), content: jsonContent(schema, requestExamples[method.name]) };
}

const jsonContent = (schema: JsonObject, example?: JsonValue): JsonObject => ({
  'application/json': { schema, ...(example === undefined ? {} : { example }) },
});

function successOf(schemas: Schemas, route: Route, isCounted: boolean): JsonObject {
  const { method, responseBody } = route;
  const headers: readonly ResponseHeader[] = [...commonHeaders, ...(isCounted ? limitHeaders : [])];
  const schema = responseBody
    ? schemas.field(fieldAt(method.output, [responseBody]), 'response')
    : schemas.message(method.output, 'response');
  const isRaw = method.output.typeName === rawBody;
  const lines = { [linesOfJson]: { schema } };
  const raw = isRaw ? (fileResponses[method.name] ?? rawBytes) : streamsResponses(method) ? lines : jsonContent(schema);
  return {
    description: 'Success.',
    headers: references([...headers, ...(rawResponses[method.name]?.headers ?? [])]),
    content: { ...raw, ...(rawResponses[method.name]?.content ?? {}) },
  };
}

function fieldAt(message: DescMessage, path: readonly string[]): DescField {
  let fields = message.fields;
  let found: DescField | undefined;
  for (const name of path) {
    found = fields.find((field) => field.name === name);
    fields = found?.message?.fields ?? [];
  }
  if (!found) throw new Error(`${shortName(message.typeName)} has no field ${path.join('.')}`);
  return found;
}

const acronyms: Record<string, string> = {
  Api: 'API',
  Mfa: 'MFA',
  Ota: 'OTA',
  Rpc: 'RPC',
  Rpcs: 'RPCs',
  Sso: 'SSO',
  Totp: 'TOTP',
  Webauthn: 'WebAuthn',
};

/** Returns a summary from a method name: `CreateApiKey` → `Create API key`. */
export const summaryOf = (name: string): string =>
  name
    .split(/(?=[A-Z])/)
    .map((word, index) => acronyms[word] ?? (index === 0 ? word : word.toLowerCase()))
    .join(' ');
