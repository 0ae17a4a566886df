// The OpenAPI 3.1 document of the REST API, read from the descriptors and the gateway's own route table. Pure: the same
// contract always gives the same document.
import type { JsonObject } from '@bufbuild/protobuf';
import { RouteTable } from '../gateway/transcoding/routes.ts';
import type { Contract } from './contract.ts';
import { errorComponents, errorSchema } from './errors.ts';
import { gatewayPaths } from './gateway-operations.ts';
import { answerHeaders, headerParameters } from './headers.ts';
import { operationOf, pathOf } from './operations.ts';
import { Schemas } from './schemas.ts';
import { documentTags, gatewayTag, tagOf } from './tags.ts';

const introduction = `The REST API of Kellet. Every route is the JSON form of a gRPC method of the same contract, which is served
on port 9090.

- Names are as the contract has them (\`snake_case\`); fields of an answer that are unset and have no empty value are left out.
- Unknown fields and parameters are refused with \`INVALID_ARGUMENT\`. A body is at most 1 MiB, of telemetry 4 MiB.
- Lists page by \`page_size\` and \`page_token\`; the last page has an empty \`next_page_token\`.
- An update changes what its body names.
- An error has \`code\`, \`message\` and \`request_id\`. A path or a method that is no route is 404 \`route not found\`.`;

/** Makes the document. Throws when the contract says something that it cannot express. */
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
    components: {
      securitySchemes,
      parameters: headerParameters,
      headers: answerHeaders,
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
    description: 'The access token of a person, from `POST /api/v1/auth/login`; it lives 15 minutes.',
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
    description: 'The same API key in a header of its own.',
  },
  kubernetesToken: {
    type: 'http',
    scheme: 'bearer',
    bearerFormat: 'JWT',
    description:
      'A token of a Kubernetes service account for the audience `kellet` (TokenRequest), with `X-Kellet-Namespace`. The cluster says whether the account may do what the operation names, in the namespace of the tenant.',
  },
};
