// The error schema and the error responses, derived from the catalogue of errors.
import type { DescMessage, DescMethod, JsonObject } from '@bufbuild/protobuf';
import { codes, type ErrorCode } from '../platform/errors.ts';
import { commonHeaders, limitHeaders, references, type ResponseHeader } from './headers.ts';

/** A documented error response. */
interface ErrorKindResponse {
  readonly name: string;
  readonly status: number;
  readonly description: string;
  /** Code and message of the example. */
  readonly example: readonly [ErrorCode | 429, string];
  readonly headers?: readonly ResponseHeader[];
  /**
   * Whether the response occurs before the call is counted, or for calls that are never counted, and so has no rate
   * limit headers.
   */
  readonly isUncounted?: boolean;
}

const responsesByKind = {
  badRequest: {
    name: 'BadRequest',
    status: 400,
    description: 'The request is malformed or invalid, or the state or a policy of the tenant forbids it.',
    example: ['INVALID_ARGUMENT', 'unknown field "colour"'],
  },
  unauthenticated: {
    name: 'Unauthenticated',
    status: 401,
    description:
      'The credential is missing, expired or revoked. Refresh an expired access token at /api/v1/auth/refresh.',
    example: ['UNAUTHENTICATED', 'a valid credential is required'],
    headers: ['WWW-Authenticate'],
    isUncounted: true,
  },
  permissionDenied: {
    name: 'PermissionDenied',
    status: 403,
    description: 'The credential does not permit the call: its kind, role, scope, device or address is not allowed.',
    example: ['PERMISSION_DENIED', 'the scope devices:write is required'],
  },
  notFound: {
    name: 'NotFound',
    status: 404,
    description: 'The resource, one that the request refers to, or the route does not exist.',
    example: ['NOT_FOUND', 'device not found'],
  },
  conflict: {
    name: 'Conflict',
    status: 409,
    description: 'A resource with this name or key already exists, or was modified concurrently.',
    example: ['ALREADY_EXISTS', 'a profile named "weather-station" already exists'],
  },
  tooManyRequests: {
    name: 'TooManyRequests',
    status: 429,
    description: "The tenant's requests for this minute are used up (`code` is then the number 429), or a quota is.",
    example: [429, 'rate limit exceeded'],
    headers: ['Retry-After'],
  },
  throttled: {
    name: 'Throttled',
    status: 429,
    description: 'Too many requests from this address, account or device.',
    example: [429, 'rate limit exceeded'],
    headers: ['Retry-After'],
    isUncounted: true,
  },
  internal: {
    name: 'Internal',
    status: 500,
    description: 'An internal error, logged under the request id.',
    example: ['INTERNAL', 'internal error'],
  },
  unimplemented: {
    name: 'Unimplemented',
    status: 501,
    description: 'This installation does not implement the method.',
    example: ['UNIMPLEMENTED', 'this method is not implemented'],
  },
  unavailable: {
    name: 'Unavailable',
    status: 503,
    description: 'A dependency is unavailable; the same request may succeed later.',
    example: ['UNAVAILABLE', 'the database is unavailable'],
    headers: ['Retry-After'],
  },
  deadlineExceeded: {
    name: 'DeadlineExceeded',
    status: 504,
    description: 'The call did not finish within its deadline.',
    example: ['DEADLINE_EXCEEDED', 'the deadline has passed'],
  },
} as const satisfies Record<string, ErrorKindResponse>;

/** Kind of error response. */
export type ErrorKind = keyof typeof responsesByKind;

/** Returns the `responses` of an operation as references, by status. */
export function errorResponses(kinds: Iterable<ErrorKind>): JsonObject {
  const chosen = [...new Set(kinds)].map((kind) => responsesByKind[kind]).sort((a, b) => a.status - b.status);
  return Object.fromEntries(
    chosen.map(({ status, name }) => [String(status), { $ref: `#/components/responses/${name}` }]),
  );
}

/** Returns `components.responses`. */
export function errorComponents(): JsonObject {
  return Object.fromEntries(
    Object.values<ErrorKindResponse>(responsesByKind).map(
      ({ name, description, example, headers = [], isUncounted = false }) => [
        name,
        {
          description,
          headers: references([...commonHeaders, ...headers, ...(isUncounted ? [] : limitHeaders)]),
          content: {
            'application/json': {
              schema: { $ref: '#/components/schemas/Error' },
              example: { code: example[0], message: example[1], request_id: '0199f3c2-7f1e-7c2a-9c55-0c9d8e1f2a3b' },
            },
          },
        },
      ],
    ),
  );
}

/** Returns the schema of error bodies, whose description includes the table of codes. */
export function errorSchema(): JsonObject {
  const rows = Object.entries(codes).map(([code, { http }]) => `| \`${code}\` | ${http} |`);
  return {
    type: 'object',
    description: ['Body of every error response.', '', '| code | HTTP |', '|---|---|', ...rows].join('\n'),
    properties: {
      code: {
        description: 'gRPC status name, or the number 429 when the rate limit is exceeded.',
        oneOf: [
          { type: 'string', enum: Object.keys(codes) },
          { type: 'integer', enum: [429] },
        ],
      },
      message: { type: 'string', description: 'Human-readable description that names the invalid field.' },
      request_id: { type: 'string', description: 'Request id, also in the X-Request-Id header and in the log.' },
    },
    required: ['code', 'message', 'request_id'],
  };
}

/** Public methods that verify a secret in the body. */
const signIns = new Set(['Login', 'Refresh', 'VerifyMfa', 'BeginWebauthnLogin', 'FinishWebauthnLogin', 'FinishSso']);

/** Returns the errors a method may return. `isPublic` and `isCounted` come from its access option. */
export function errorKinds(method: DescMethod, verb: string, isPublic: boolean, isCounted: boolean): ErrorKind[] {
  const kinds: ErrorKind[] = ['badRequest', 'internal', 'unimplemented', 'unavailable', 'deadlineExceeded'];
  kinds.push(isCounted ? 'tooManyRequests' : 'throttled');
  if (!isPublic || signIns.has(method.name)) kinds.push('unauthenticated');
  if (!isPublic || method.name === 'ClaimDevice') kinds.push('permissionDenied');
  // Sign-ins return the same error for every cause.
  const isLookup = verb.toLowerCase() === 'delete' || refersTo(method.input);
  if (!signIns.has(method.name) && isLookup) kinds.push('notFound');
  if (verb !== 'GET') kinds.push('conflict');
  return kinds;
}

/**
 * Reports whether a request refers to a resource that may not exist, itself or in a message that it contains. An entry of a list
 * that refers to none is reported in the response, not as an error of the call.
 */
const refersTo = ({ fields }: DescMessage): boolean =>
  fields.some(
    (field) =>
      namesResource(field.name) ||
      (field.fieldKind === 'message' && field.message.fields.some(({ name }) => namesResource(name))),
  );

/**
 * Reports whether a field names a resource that may not exist: `device_id`, `group_ids`, `provider`, `data_hash_hex`.
 */
const namesResource = (field: string): boolean =>
  /(_ids?|^provider|^data_hash_hex)$/.test(field) && field !== 'hardware_id';
