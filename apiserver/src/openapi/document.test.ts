import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { fromJson, getOption, hasOption, type JsonObject } from '@bufbuild/protobuf';
import { access } from '@kellet/proto/es/kellet/v1/options_pb';
import { Validator } from '@seriousme/openapi-schema-validator';
import { expect } from 'chai';
import { preflightHeaders } from '../gateway/http/cors.ts';
import { publicServices } from '../gateway/services.ts';
import { RouteTable } from '../gateway/transcoding/routes.ts';
import { readContract } from './contract.ts';
import { openapiDocument } from './document.ts';
import { requestExamples } from './examples.ts';
import { namedFields, shortName } from './field-facts.ts';
import { pathOf, summaryOf } from './operations.ts';

interface Operation {
  operationId: string;
  'x-kellet-status': 'available' | 'planned';
  tags: string[];
  description: string;
  parameters?: {
    name: string;
    in: string;
    required?: boolean;
    schema: JsonObject;
    description?: string;
    $ref?: string;
  }[];
  requestBody?: { required: boolean; content: Record<string, { schema?: { $ref: string }; example?: unknown }> };
  responses: Record<string, { $ref?: string; headers?: JsonObject; content?: Record<string, { schema?: JsonObject }> }>;
  security?: Record<string, string[]>[];
}

interface Document {
  tags: { name: string }[];
  paths: Record<string, Record<string, Operation>>;
  components: {
    parameters: Record<string, JsonObject>;
    headers: Record<string, JsonObject>;
    schemas: Record<
      string,
      { properties: Record<string, JsonObject>; required?: string[]; enum?: string[]; description?: string }
    >;
  };
}

const contract = readContract(readFileSync(fileURLToPath(import.meta.resolve('@kellet/proto/descriptors.binpb'))));
const raw = openapiDocument(contract, '1.2.3');
const document = raw as unknown as Document;
const operations = new Map(
  Object.values(document.paths).flatMap((item) => Object.values(item).map((one) => [one.operationId, one] as const)),
);
const operation = (id: string): Operation => operations.get(id)!;
const schema = (name: string) => document.components.schemas[name]!;

/** The gateway's own routes, which are not methods of the contract. */
const ownRoutes = ['GET /healthz', 'GET /readyz', 'POST /api/v1/callbacks/arc', 'GET /api/v1/openapi.json'];

describe('the OpenAPI document', () => {
  it('marks operations without a handler as planned, and no others', () => {
    const planned = publicServices
      .flatMap((service) => service.methods)
      .filter((method) => hasOption(method, access) && getOption(method, access).planned)
      .map((method) => method.name);
    const marked = [...operations.values()].filter((one) => one['x-kellet-status'] === 'planned');
    const routed = planned.filter((name) => operations.has(name));
    expect(marked.map((one) => one.operationId)).to.have.members(routed);
    for (const one of marked) expect(one.description).to.include('Planned: not implemented yet');
  });

  it('is valid OpenAPI 3.1 to an independent validator', async () => {
    const result = await new Validator().validate(structuredClone(raw));
    expect(result.errors ?? []).to.deep.equal([]);
    expect(result.valid).to.equal(true);
  });

  it('has every route of the gateway and no other', () => {
    const documented = Object.entries(document.paths).flatMap(([path, item]) =>
      Object.keys(item).map((verb) => `${verb.toUpperCase()} ${path}`),
    );
    const served = new RouteTable(publicServices).routes.map((route) => `${route.verb} ${pathOf(route)}`);
    expect(documented.sort()).to.deep.equal([...served, ...ownRoutes].sort());
  });

  it('names each operation after its method', () => {
    const methods = new RouteTable(publicServices).routes.map(({ method }) => method.name);
    expect([...operations.keys()].sort()).to.deep.equal(
      [...methods, 'GetHealth', 'GetReadiness', 'ReceiveCallback', 'GetOpenapiDocument'].sort(),
    );
  });

  it('has facts only for fields that exist', () => {
    const fields = new Set<string>();
    const visit = (message: (typeof publicServices)[0]['methods'][0]['input']): void => {
      if (message.typeName.startsWith('google.') || fields.has(`${shortName(message.typeName)}.`)) return;
      fields.add(`${shortName(message.typeName)}.`);
      for (const field of message.fields) {
        fields.add(`${shortName(message.typeName)}.${field.name}`);
        if (field.message) visit(field.message);
      }
    };
    for (const { input, output } of publicServices.flatMap(({ methods }) => methods)) [input, output].forEach(visit);
    expect(namedFields.filter((name) => !fields.has(name))).to.deep.equal([]);
  });

  describe('examples', () => {
    const routes = new Map(new RouteTable(publicServices).routes.map((route) => [route.method.name, route]));
    for (const [name, example] of Object.entries(requestExamples)) {
      it(`has a valid example for ${name}`, () => {
        const route = routes.get(name)!;
        const field = route.method.input.fields.find((candidate) => candidate.name === route.body);
        expect(() => fromJson(field?.message ?? route.method.input, example)).not.to.throw();
      });
    }
  });

  it('has an example for every JSON body', () => {
    const bare = [...operations.values()].filter(({ requestBody }) => {
      const json = requestBody?.content['application/json'];
      return json && json.example === undefined;
    });
    expect(bare.map(({ operationId }) => operationId)).to.deep.equal([]);
  });

  it('requires list fields and scalars in responses, and leaves messages and optional fields optional', () => {
    expect(schema('Profile').required).to.include.members(['profile_id', 'default_tags', 'offline_after_seconds']);
    expect(schema('Profile').required).not.to.include.members(['telemetry_schema']);
    expect(schema('Device').required).not.to.include('status');
  });

  it('has separate schemas for requests and responses', () => {
    expect(schema('OtaPolicyInput').required).to.equal(undefined);
    expect(schema('OtaPolicyInput')).to.include({ additionalProperties: false });
    expect(schema('OtaPolicy').required).to.include('max_attempts');
  });

  it('omits the unset value from enums', () => {
    expect(schema('RolloutStatus').enum).to.deep.equal(['active', 'paused', 'rolling_back', 'completed']);
  });

  it('omits path fields from the body', () => {
    expect(Object.keys(schema('UpdateProfileRequest').properties)).not.to.include('profile_id');
  });

  const bodies: [id: string, body: 'none' | 'optional' | 'required'][] = [
    ['PauseRollout', 'none'],
    ['ResumeRollout', 'optional'],
    ['CreateProfile', 'required'],
    ['UpdateProfile', 'required'],
    ['ReportOta', 'required'],
    ['AddDevicesToGroup', 'required'],
    ['RotateDeviceCredentials', 'optional'],
    ['GetDevice', 'none'],
    ['Logout', 'none'],
    ['RevokeAllSessions', 'optional'],
    ['LogoutSso', 'optional'],
  ];
  for (const [id, body] of bodies) {
    it(`${id} has ${body} body`, () => {
      const { requestBody } = operation(id);
      expect(requestBody === undefined ? 'none' : requestBody.required ? 'required' : 'optional').to.equal(body);
    });
  }

  const responses: [id: string, statuses: string][] = [
    ['Login', '200 400 401 409 429 500 501 503 504'],
    ['ClaimDevice', '200 400 403 409 429 500 501 503 504'],
    ['ListProfiles', '200 400 401 403 429 500 501 503 504'],
    ['GetProfile', '200 400 401 403 404 429 500 501 503 504'],
    ['CreateProfile', '200 400 401 403 409 429 500 501 503 504'],
    ['CreateRollout', '200 400 401 403 404 409 429 500 501 503 504'],
    ['GetChunk', '200 206 400 401 403 404 416 429 500 501 503 504'],
    ['TestRule', '200 400 401 403 404 409 429 500 501 503 504'],
    ['Ingest', '200 400 401 403 409 429 500 501 503 504'],
    ['GetReadiness', '200 503'],
    ['ReceiveCallback', '200 400 401 500 503'],
  ];
  for (const [id, statuses] of responses) {
    it(`lists the statuses ${statuses} for ${id}`, () => {
      expect(Object.keys(operation(id).responses).sort().join(' ')).to.equal(statuses);
    });
  }

  const credentials: [id: string, security: Record<string, string[]>[]][] = [
    ['Login', [{}]],
    ['CreateTenant', [{ accessToken: [] }]],
    [
      'CreateDevice',
      [{ accessToken: ['devices:write'] }, { apiKey: ['devices:write'] }, { apiKeyHeader: ['devices:write'] }],
    ],
    ['GetChunk', [{ apiKey: [] }, { apiKeyHeader: [] }, { clientCertificate: [] }]],
    [
      'PauseRollout',
      [
        { accessToken: ['ota:write'] },
        { apiKey: ['ota:write'] },
        { apiKeyHeader: ['ota:write'] },
        { kubernetesToken: ['create otarollouts/pause'] },
      ],
    ],
  ];
  for (const [id, security] of credentials) {
    it(`requires ${JSON.stringify(security)} for ${id}`, () => {
      expect(operation(id).security).to.deep.equal(security);
    });
  }

  it('shows rate limit headers only where the tenant is counted', () => {
    const counted = (id: string) => Object.keys(operation(id).responses['200']!.headers ?? {});
    expect(counted('GetDevice')).to.include('X-RateLimit-Remaining');
    expect(counted('Login')).not.to.include('X-RateLimit-Remaining');
    expect(counted('GetHealth')).not.to.include('X-RateLimit-Remaining');
    expect(operation('GetDevice').responses['429']!.$ref).to.match(/TooManyRequests$/);
    expect(operation('GetChunk').responses['429']!.$ref).to.match(/Throttled$/);
  });

  const headersOf = (id: string): string[] =>
    operation(id)
      .parameters!.flatMap(({ $ref }) => ($ref ? [$ref.split('/').at(-1)!] : []))
      .sort();
  const everyCall = ['X-Request-Id', 'grpc-timeout', 'traceparent', 'tracestate'];
  const requestHeaders: [id: string, beside: string[]][] = [
    ['CreateDevice', []],
    ['GetDevice', ['X-Kellet-Namespace']],
    ['Ingest', ['Idempotency-Key']],
    ['GetChunk', ['If-Range', 'Range']],
    ['UploadArtifact', ['Content-Range', 'X-Kellet-Namespace']],
  ];
  for (const [id, beside] of requestHeaders) {
    it(`declares ${['the headers of every call', ...beside].join(', ')} for ${id}`, () => {
      expect(headersOf(id)).to.deep.equal([...everyCall, ...beside].sort());
    });
  }

  it('declares the namespace header wherever a Kubernetes token is accepted', () => {
    const open = [...operations.values()].filter(({ security }) => security?.some((one) => 'kubernetesToken' in one));
    expect(open.length).to.be.greaterThan(10);
    const named = [...operations.keys()].filter((id) => headersOf(id).includes('X-Kellet-Namespace'));
    expect(named.sort()).to.deep.equal([...open.map(({ operationId }) => operationId), 'GetOpenapiDocument'].sort());
  });

  it('has no header that the dashboard may not send or read in a browser', () => {
    const granted = new Map(preflightHeaders('https://d.test', 'https://d.test'));
    const list = (name: string) => granted.get(name)!.split(', ');
    const names = (of: object) => Object.keys(of).map((name) => name.toLowerCase());
    expect(list('access-control-allow-headers')).to.include.members(names(document.components.parameters));
    const always = ['cache-control'];
    expect([...list('access-control-expose-headers'), ...always]).to.include.members(
      names(document.components.headers),
    );
  });

  it('has query parameters with their types, limits and descriptions', () => {
    const parameters = operation('GetHistory').parameters!;
    expect(parameters.map(({ name, in: where }) => `${where} ${name}`)).to.include.members([
      'path device_id',
      'query start',
      'query keys',
      'query order',
      'query page_size',
    ]);
    const named = (name: string) => parameters.find((parameter) => parameter.name === name)!;
    expect(named('start').schema).to.include({ type: 'string', format: 'date-time' });
    expect(named('keys').schema).to.include({ type: 'array' });
    expect(named('page_size').schema).to.include({ minimum: 0, maximum: 10_000 });
    expect(named('end')).to.include({ description: 'Exclusive.' });
  });

  it('uses the comments of the contract', () => {
    expect(operation('CreateRollout').description).to.match(
      /^`CreateRollout` creates a rollout and schedules only the canary share/,
    );
    expect(operation('CreateRollout').description).to.match(/Scope: `ota:write`/);
  });

  it('gives each operation one tag, and has no unused tag', () => {
    const used = [...operations.values()].map(({ tags }) => tags);
    expect(used.every(({ length }) => length === 1)).to.equal(true);
    expect([...new Set(used.flat())].sort()).to.deep.equal(document.tags.map(({ name }) => name).sort());
    for (const [id, tag] of [
      ['CreateUser', 'users'],
      ['GetOwnTenant', 'tenants'],
      ['DeleteSession', 'sign-in'],
      ['UpdateDevice', 'devices'],
      ['CreateAsset', 'entities'],
      ['ClearAlarm', 'alarms'],
      ['SendRpc', 'device link'],
      ['GetChunk', 'ota'],
    ] as const) {
      expect(operation(id).tags, id).to.deep.equal([tag]);
    }
  });

  describe('describes', () => {
    const all = [...operations.values()];

    it('each operation with its own sentence', () => {
      const silent = all.filter(({ description }) => /^Callers: /.test(description) || description.length < 15);
      expect(silent.map(({ operationId }) => operationId)).to.deep.equal([]);
    });

    it('each parameter', () => {
      const silent = all.flatMap(({ operationId, parameters = [] }) =>
        parameters
          .filter(({ $ref, description }) => !$ref && !description)
          .map(({ name }) => `${operationId}: ${name}`),
      );
      expect(silent).to.deep.equal([]);
      expect(Object.values(document.components.parameters).every(({ description }) => description)).to.equal(true);
    });

    it('each field whose type has no description', () => {
      const isOwnType = (field: JsonObject): boolean =>
        '$ref' in field || '$ref' in ((field['items'] ?? field['additionalProperties'] ?? {}) as JsonObject);
      const silent = Object.entries(document.components.schemas).flatMap(([name, { properties = {} }]) =>
        Object.entries(properties)
          .filter(([, field]) => !field['description'] && !isOwnType(field))
          .map(([field]) => `${name}.${field}`),
      );
      expect(silent).to.deep.equal([]);
    });

    it('each enum value', () => {
      const silent = Object.entries(document.components.schemas).flatMap(([name, one]) =>
        (one.enum ?? [])
          .filter((value) => !one.description?.includes(`- \`${value}\`: `))
          .map((value) => `${name}: ${value}`),
      );
      expect(silent).to.deep.equal([]);
    });
  });

  it('returns raw bytes where the API offers them', () => {
    expect(Object.keys(operation('GetChunk').responses['200']!.content!)).to.deep.equal([
      'application/json',
      'application/octet-stream',
    ]);
    expect(Object.keys(operation('UploadArtifact').requestBody!.content)).to.deep.equal(['application/octet-stream']);
  });

  for (const [name, summary] of [
    ['CreateApiKey', 'Create API key'],
    ['ListPendingRpcs', 'List pending RPCs'],
    ['EnrollTotp', 'Enroll TOTP'],
  ] as const) {
    it(`summarises ${name} as ${summary}`, () => expect(summaryOf(name)).to.equal(summary));
  }
});
