// Operations of the gateway itself, which are not methods of the contract: health, callbacks, this document.
import type { JsonObject } from '@bufbuild/protobuf';
import { errorResponses } from './errors.ts';
import {
  commonHeaders,
  kubernetesHeaders,
  limitHeaders,
  parameterReferences,
  references,
  requestHeaders,
} from './headers.ts';

const json = (description: string, schema: JsonObject): JsonObject => ({
  description,
  headers: references(commonHeaders),
  content: { 'application/json': { schema } },
});

const readiness: JsonObject = {
  type: 'object',
  description: 'By dependency: `healthy`, or `unhealthy: <reason>`.',
  additionalProperties: { type: 'string', pattern: '^(healthy$|unhealthy: )' },
};

/** Returns `paths` for the gateway's own routes. */
export function gatewayPaths(tag: string): JsonObject {
  return {
    '/healthz': {
      get: {
        operationId: 'GetHealth',
        tags: [tag],
        summary: 'Get liveness',
        description: 'Returns 200 while the process is alive.',
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
        description: 'Whether all dependencies needed to serve requests are available.',
        parameters: [
          {
            name: 'exclude',
            in: 'query',
            description: 'Comma-separated dependencies to ignore.',
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
        summary: "Receive a callback from the chain's transaction processor",
        description: 'Verified by the signature of the raw body, then stored and published.',
        parameters: [
          {
            name: 'X-ARC-Signature',
            in: 'header',
            description: '`sha256=` followed by the HMAC-SHA256 of the body in hex.',
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
          '200': json('Accepted.', { type: 'object' }),
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
            headers: references([...commonHeaders, 'ETag', ...limitHeaders]),
            content: { 'application/json': { schema: { type: 'object' } } },
          },
          '304': {
            description: 'The document matches the entity tag in `If-None-Match`.',
            headers: references([...commonHeaders, 'ETag', ...limitHeaders]),
          },
          ...errorResponses(['unauthenticated', 'permissionDenied', 'tooManyRequests', 'internal', 'unavailable']),
        },
      },
    },
  };
}
