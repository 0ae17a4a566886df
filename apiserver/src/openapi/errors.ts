// The error body and the answers that carry it, from the catalogue of errors.
import type { DescMethod, JsonObject } from '@bufbuild/protobuf';
import { codes, type ErrorCode } from '../platform/errors.ts';
import { everyAnswer, limitHeaders, references, type AnswerHeader } from './headers.ts';

/** One documented answer that is no success. */
interface ErrorAnswer {
  readonly name: string;
  readonly status: number;
  readonly description: string;
  /** The example's code and message. */
  readonly example: readonly [ErrorCode | 429, string];
  readonly headers?: readonly AnswerHeader[];
  /** Comes before the call is counted, or of what is never counted: no headers of the rate limit. */
  readonly isUncounted?: boolean;
}

const answers = {
  badRequest: {
    name: 'BadRequest',
    status: 400,
    description: 'The request is malformed or invalid, or the state or the policy of the tenant does not allow it.',
    example: ['INVALID_ARGUMENT', 'unknown field "colour"'],
  },
  unauthenticated: {
    name: 'Unauthenticated',
    status: 401,
    description:
      'The credential is missing, expired or void. An expired access token is refreshed at /api/v1/auth/refresh.',
    example: ['UNAUTHENTICATED', 'a valid credential is required'],
    headers: ['WWW-Authenticate'],
    isUncounted: true,
  },
  permissionDenied: {
    name: 'PermissionDenied',
    status: 403,
    description: 'The credential may not do this: its kind, role, scope, device or address does not allow it.',
    example: ['PERMISSION_DENIED', 'the scope devices:write is required'],
  },
  notFound: {
    name: 'NotFound',
    status: 404,
    description: 'No such resource in the tenant, also when the request only refers to it, or no such route.',
    example: ['NOT_FOUND', 'device not found'],
  },
  conflict: {
    name: 'Conflict',
    status: 409,
    description: 'A resource of this name or key exists already, or others change it at the same time.',
    example: ['ALREADY_EXISTS', 'a profile named "weather-station" already exists'],
  },
  tooManyRequests: {
    name: 'TooManyRequests',
    status: 429,
    description: "The tenant's requests of this minute are used up (the code is then the number 429), or a quota is.",
    example: [429, 'rate limit exceeded'],
    headers: ['Retry-After'],
  },
  throttled: {
    name: 'Throttled',
    status: 429,
    description: 'Too many requests of this address, account or device.',
    example: [429, 'rate limit exceeded'],
    headers: ['Retry-After'],
    isUncounted: true,
  },
  internal: {
    name: 'Internal',
    status: 500,
    description: 'A defect of the server; the log has it under the request id.',
    example: ['INTERNAL', 'internal error'],
  },
  unimplemented: {
    name: 'Unimplemented',
    status: 501,
    description: 'This installation does not serve the method.',
    example: ['UNIMPLEMENTED', 'this method is not implemented'],
  },
  unavailable: {
    name: 'Unavailable',
    status: 503,
    description: 'Something that the call needs is away; the same request may succeed later.',
    example: ['UNAVAILABLE', 'the database does not answer'],
    headers: ['Retry-After'],
  },
  deadlineExceeded: {
    name: 'DeadlineExceeded',
    status: 504,
    description: 'The call did not end within its deadline.',
    example: ['DEADLINE_EXCEEDED', 'the call did not end in time'],
  },
} as const satisfies Record<string, ErrorAnswer>;

/** A kind of answer that is no success. */
export type ErrorKind = keyof typeof answers;

/** References for the `responses` of an operation, by status. */
export function errorResponses(kinds: Iterable<ErrorKind>): JsonObject {
  const chosen = [...new Set(kinds)].map((kind) => answers[kind]).sort((a, b) => a.status - b.status);
  return Object.fromEntries(
    chosen.map(({ status, name }) => [String(status), { $ref: `#/components/responses/${name}` }]),
  );
}

/** `components.responses`. */
export function errorComponents(): JsonObject {
  return Object.fromEntries(
    Object.values<ErrorAnswer>(answers).map(({ name, description, example, headers = [], isUncounted = false }) => [
      name,
      {
        description,
        headers: references([...everyAnswer, ...headers, ...(isUncounted ? [] : limitHeaders)]),
        content: {
          'application/json': {
            schema: { $ref: '#/components/schemas/Error' },
            example: { code: example[0], message: example[1], request_id: '0199f3c2-7f1e-7c2a-9c55-0c9d8e1f2a3b' },
          },
        },
      },
    ]),
  );
}

/** The schema of every error body; the description holds the table of codes. */
export function errorSchema(): JsonObject {
  const rows = Object.entries(codes).map(([code, { http }]) => `| \`${code}\` | ${http} |`);
  return {
    type: 'object',
    description: ['Every answer that is no success.', '', '| code | HTTP |', '|---|---|', ...rows].join('\n'),
    properties: {
      code: {
        description: 'A gRPC status name; the number 429 when the rate limit rejects.',
        oneOf: [
          { type: 'string', enum: Object.keys(codes) },
          { type: 'integer', enum: [429] },
        ],
      },
      message: { type: 'string', description: 'For people; it names the field at fault.' },
      request_id: { type: 'string', description: 'Also in the header X-Request-Id and in the log.' },
    },
    required: ['code', 'message', 'request_id'],
  };
}

/** Public methods that check a secret in the body. */
const signIns = new Set(['Login', 'Refresh', 'VerifyMfa', 'BeginWebauthnLogin', 'FinishWebauthnLogin', 'FinishSso']);

/** What a method may answer besides success; `isPublic` and `isCounted` are read from its access option. */
export function errorKinds(method: DescMethod, verb: string, isPublic: boolean, isCounted: boolean): ErrorKind[] {
  const kinds: ErrorKind[] = ['badRequest', 'internal', 'unimplemented', 'unavailable', 'deadlineExceeded'];
  kinds.push(isCounted ? 'tooManyRequests' : 'throttled');
  if (!isPublic || signIns.has(method.name)) kinds.push('unauthenticated');
  if (!isPublic || method.name === 'ClaimDevice') kinds.push('permissionDenied');
  // A sign-in has one answer for every cause.
  if (!signIns.has(method.name) && method.input.fields.some(({ name }) => namesResource(name))) kinds.push('notFound');
  if (verb !== 'GET') kinds.push('conflict');
  return kinds;
}

/** `device_id`, `group_ids`, `provider`, `data_hash_hex`: a name that may lead nowhere. */
const namesResource = (field: string): boolean =>
  /(_ids?|^provider|^data_hash_hex)$/.test(field) && field !== 'hardware_id';
