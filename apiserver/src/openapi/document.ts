// The OpenAPI 3.1 document of the REST API, derived from the descriptors and the gateway's route table. Pure: the same
// contract always yields the same document.
import type { JsonObject } from '@bufbuild/protobuf';
import { accessTokenSeconds } from '../auth/access-tokens/access-tokens.ts';
import { RouteTable } from '../gateway/transcoding/routes.ts';
import type { Contract } from './contract.ts';
import { errorComponents, errorSchema } from './errors.ts';
import { webhookEvents } from './events.ts';
import { gatewayPaths } from './gateway-operations.ts';
import { headerParameters, responseHeaders } from './headers.ts';
import { operationOf, pathOf } from './operations.ts';
import { Schemas } from './schemas.ts';
import { documentTags, gatewayTag, tagOf } from './tags.ts';

const introduction = `The REST API of Kellet. Every route is the JSON form of a gRPC method of the same contract, which is served
on port 9090.

- Field names are those of the contract (\`snake_case\`). Responses omit unset fields that have no zero value.
- Unknown fields and parameters are rejected with \`INVALID_ARGUMENT\`. A body may be at most 1 MiB, or 4 MiB for telemetry.
- Lists are paged with \`page_size\` and \`page_token\`. The last page has an empty \`next_page_token\`; any other may have fewer items than asked for, if they are large.
- An update changes only the fields present in its body.
- An error has \`code\`, \`message\` and \`request_id\`. An unknown path or method returns 404 \`route not found\`.`;

/** Builds the document. Throws if the contract contains something OpenAPI cannot express. */
export function openapiDocument(contract: Contract, version: string): JsonObject {
  const { routes } = new RouteTable(contract.services);
  const schemas = new Schemas(
    contract,
    routes.flatMap(({ method }) => [
      { message: method.input, side: 'request' as const },
      { message: method.output, side: 'response' as const },
    ]),
  );
  const paths: Record<string, JsonObject> = {};
  for (const route of routes) {
    const path = pathOf(route);
    const tag = tagOf(route.method.parent.name, path);
    (paths[path] ??= {})[route.verb.toLowerCase()] = operationOf(contract, schemas, route, tag);
  }
  return {
    openapi: '3.1.0',
    info: {
      title: 'Kellet',
      version,
      description: introduction,
      license: { name: 'Apache-2.0', identifier: 'Apache-2.0' },
    },
    servers: [{ url: '/' }],
    tags: documentTags,
    security: [{ accessToken: [] }, { apiKey: [] }, { apiKeyHeader: [] }],
    paths: { ...paths, ...gatewayPaths(gatewayTag) },
    webhooks: webhookEvents(),
    components: {
      securitySchemes,
      parameters: headerParameters,
      headers: responseHeaders,
      responses: errorComponents(),
      schemas: { Error: errorSchema(), ...schemas.all },
    },
  };
}

const securitySchemes: JsonObject = {
  accessToken: {
    type: 'http',
    scheme: 'bearer',
    bearerFormat: 'JWT',
    description: `A user's access token, from \`POST /api/v1/auth/login\`; valid for ${accessTokenSeconds / 60} minutes.`,
  },
  apiKey: {
    type: 'http',
    scheme: 'bearer',
    bearerFormat: 'sk_live_…',
    description: 'The API key of a device (from its claim) or of a service account.',
  },
  apiKeyHeader: {
    type: 'apiKey',
    in: 'header',
    name: 'X-API-Key',
    description: 'The same API key in a separate header.',
  },
  clientCertificate: {
    type: 'mutualTLS',
    description: 'The certificate of a device, where TLS ends at Kellet or at a trusted proxy (docs/credentials.md).',
  },
  kubernetesToken: {
    type: 'http',
    scheme: 'bearer',
    bearerFormat: 'JWT',
    description:
      "A token of a Kubernetes service account for the audience `kellet` (TokenRequest), with `X-Kellet-Namespace`. The cluster decides whether the account has the permission that the operation names, in the tenant's namespace.",
  },
};
