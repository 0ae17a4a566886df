// The OpenAPI 3.1 document of the REST API, read from the descriptors and the gateway's own route table. Pure: the same
// contract always gives the same document.
import type { JsonObject } from '@bufbuild/protobuf';
import { RouteTable } from '../gateway/routes.ts';
import type { Contract } from './contract.ts';
import { errorComponents, errorSchema } from './errors.ts';
import { gatewayPaths } from './gateway-operations.ts';
import { answerHeaders, headerParameters } from './headers.ts';
import { operationOf, pathOf } from './operations.ts';
import { Schemas } from './schemas.ts';

/** Tags in the order in which a newcomer reads them: the service's name in the contract, and what it is about. */
const tags: Record<string, { readonly name: string; readonly description: string }> = {
  AuthService: { name: 'auth', description: 'Sign-in, tokens, API keys, users and groups, tenants.' },
  ProfileService: { name: 'profiles', description: 'The defaults that devices inherit.' },
  ProvisioningService: { name: 'provisioning', description: 'Templates, their keys, and the claim of a device.' },
  DeviceRegistryService: { name: 'devices', description: 'Devices, their groups, and what is attached to them.' },
  TelemetryService: { name: 'telemetry', description: 'Points in; latest values and history out.' },
  DeviceLinkService: { name: 'device link', description: 'Commands, attributes and gateways.' },
  OtaService: { name: 'ota', description: 'Packages, rollouts, and what a device downloads and reports.' },
  RulesService: { name: 'rules', description: 'Rules over points, in CEL.' },
  AnchorService: { name: 'anchors', description: 'Batches of points on the chain.' },
  VerifierService: { name: 'verify', description: 'Proofs that anyone can check.' },
};

const gatewayTag = { name: 'gateway', description: 'Health, this document, and the callback of the chain.' };

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
    const tag = tags[route.method.parent.name];
    if (!tag) throw new Error(`${route.method.parent.name} has no tag`);
    (paths[pathOf(route)] ??= {})[route.verb.toLowerCase()] = operationOf(contract, schemas, route, tag.name);
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
    tags: [...Object.values(tags), gatewayTag],
    security: [{ accessToken: [] }, { apiKey: [] }, { apiKeyHeader: [] }],
    paths: { ...paths, ...gatewayPaths(gatewayTag.name) },
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
