// The routes of the gateway itself, which are no methods of the contract: health, the callback, this document.
import type { JsonObject } from '@bufbuild/protobuf';
import { errorResponses } from './errors.ts';
import {
  everyAnswer,
  kubernetesHeaders,
  limitHeaders,
  parameterReferences,
  references,
  requestHeaders,
} from './headers.ts';

const json = (description: string, schema: JsonObject): JsonObject => ({
  description,
  headers: references(everyAnswer),
  content: { 'application/json': { schema } },
});

const readiness: JsonObject = {
  type: 'object',
  description: 'By dependency: `healthy`, or `unhealthy: <reason>`.',
  additionalProperties: { type: 'string', pattern: '^(healthy$|unhealthy: )' },
};

/** `paths` of the gateway's own routes. */
export function gatewayPaths(tag: string): JsonObject {
  return {
    '/healthz': {
      get: {
        operationId: 'GetHealth',
        tags: [tag],
        summary: 'Get liveness',
        description: 'Always 200 while the process is alive.',
        parameters: parameterReferences(requestHeaders),
        responses: {
          '200': json('Alive.', {
            type: 'object',
            properties: { status: { type: 'string', const: 'ok' } },
            required: ['status'],
          }),
        },
        security: [{}],
      },
    },
    '/readyz': {
      get: {
        operationId: 'GetReadiness',
        tags: [tag],
        summary: 'Get readiness',
        description: 'Whether everything that serving a request needs is there.',
        parameters: [
          {
            name: 'exclude',
            in: 'query',
            description: 'Dependencies that do not matter to the asker, separated by commas.',
            schema: { type: 'string' },
            example: 'nats',
          },
          ...parameterReferences(requestHeaders),
        ],
        responses: { '200': json('Ready.', readiness), '503': json('Not ready.', readiness) },
        security: [{}],
      },
    },
    '/api/v1/callbacks/arc': {
      post: {
        operationId: 'ReceiveCallback',
        tags: [tag],
        summary: "Take a callback of the chain's transaction processor",
        description: 'Judged by the signature of its raw body, then stored and published.',
        parameters: [
          {
            name: 'X-ARC-Signature',
            in: 'header',
            description: '`sha256=` and the HMAC-SHA256 of the body in hex.',
            schema: { type: 'string' },
          },
          ...parameterReferences(requestHeaders),
        ],
        requestBody: {
          required: true,
          content: {
            'application/json': {
              schema: {
                oneOf: [
                  { type: 'object', additionalProperties: true },
                  { type: 'array', items: { type: 'object', additionalProperties: true } },
                ],
              },
              example: { txid: '0'.repeat(64), txStatus: 'MINED', blockHeight: 870_000 },
            },
          },
        },
        responses: {
          '200': json('Taken.', { type: 'object' }),
          ...errorResponses(['badRequest', 'unauthenticated', 'internal', 'unavailable']),
        },
        security: [{}],
      },
    },
    '/api/v1/openapi.json': {
      get: {
        operationId: 'GetOpenapiDocument',
        tags: [tag],
        summary: 'Get this document',
        description:
          'The OpenAPI document of this API, as this process serves it.\n\nCallers: anyone with a credential.',
        parameters: parameterReferences(['If-None-Match', ...kubernetesHeaders, ...requestHeaders]),
        responses: {
          '200': {
            description: 'The document.',
            headers: references([...everyAnswer, 'ETag', ...limitHeaders]),
            content: { 'application/json': { schema: { type: 'object' } } },
          },
          '304': {
            description: 'The document has the entity tag that the request names.',
            headers: references([...everyAnswer, 'ETag', ...limitHeaders]),
          },
          ...errorResponses(['unauthenticated', 'permissionDenied', 'tooManyRequests', 'internal', 'unavailable']),
        },
      },
    },
  };
}
