// The routes of the gateway itself, which are no methods of the contract: health, the callback, this document.
import type { JsonObject } from '@bufbuild/protobuf';
import { errorResponses } from './errors.ts';
import { references } from './raw-bytes.ts';

const json = (description: string, schema: JsonObject): JsonObject => ({
  description,
  headers: references(['X-Request-Id']),
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
        summary: 'Liveness',
        description: 'Always 200 while the process is alive.',
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
        summary: 'Readiness',
        description: 'Whether everything that serving a request needs is there.',
        parameters: [
          {
            name: 'exclude',
            in: 'query',
            description: 'Dependencies that do not matter to the asker, separated by commas.',
            schema: { type: 'string' },
            example: 'nats',
          },
        ],
        responses: { '200': json('Ready.', readiness), '503': json('Not ready.', readiness) },
        security: [{}],
      },
    },
    '/api/v1/callbacks/arc': {
      post: {
        operationId: 'ReceiveCallback',
        tags: [tag],
        summary: "Callback of the chain's transaction processor",
        description: 'Judged by the signature of its raw body, then stored and published.',
        parameters: [
          {
            name: 'X-ARC-Signature',
            in: 'header',
            description: '`sha256=` and the HMAC-SHA256 of the body in hex.',
            schema: { type: 'string' },
          },
        ],
        requestBody: {
          required: true,
          content: { 'application/json': { schema: { type: ['object', 'array'] } } },
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
        summary: 'This document',
        description: 'Callers: anyone with a credential.',
        parameters: [{ name: 'If-None-Match', in: 'header', schema: { type: 'string' } }],
        responses: {
          '200': {
            description: 'The document.',
            headers: references([
              'X-Request-Id',
              'ETag',
              'X-RateLimit-Limit',
              'X-RateLimit-Remaining',
              'X-RateLimit-Reset',
            ]),
            content: { 'application/json': { schema: { type: 'object' } } },
          },
          '304': { description: 'The document has the entity tag that the request names.' },
          ...errorResponses(['unauthenticated', 'permissionDenied', 'tooManyRequests', 'internal', 'unavailable']),
        },
      },
    },
  };
}
