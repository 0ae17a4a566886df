import { create, type Message, toJson } from '@bufbuild/protobuf';
import { HttpBodySchema } from '@kellet/proto/es/google/api/httpbody_pb';
import { DeviceSchema } from '@kellet/proto/es/kellet/v1/device_registry_pb';
import { expect } from 'chai';
import { KelletError } from '../../platform/errors.ts';
import { publicServices } from '../services.ts';
import { RouteTable } from './routes.ts';
import { bodyMayBeEmpty, decodeRequest, encodeResponse } from './transcode.ts';

const table = new RouteTable(publicServices);

function decode(verb: string, url: string, body: string | Uint8Array = '', contentType = 'application/json'): Message {
  const [path = '', query = ''] = url.split('?');
  const match = table.match(verb, `/api/v1/${path}`);
  if (!match) throw new Error('no such route');
  return decodeRequest(match, { query, body: Buffer.from(body), contentType });
}

/** A decoded request as minimal proto JSON. */
function decoded(verb: string, url: string, body?: string): unknown {
  const match = table.match(verb, `/api/v1/${url.split('?')[0]}`)!;
  return toJson(match.route.method.input, decode(verb, url, body), { useProtoFieldName: true });
}

describe('transcoding of requests', () => {
  for (const [what, verb, url, body, want] of [
    ['a body', 'POST', 'auth/login', '{"email":"a@b","password":"x"}', { email: 'a@b', password: 'x' }],
    ['a path variable', 'GET', 'devices/d%2F1', '', { device_id: 'd/1' }],
    [
      'a path variable over the body',
      'PATCH',
      'devices/d1',
      '{"device_id":"d2"}',
      { device_id: 'd1', update_mask: '' },
    ],
    ['the same by its JSON name', 'PATCH', 'devices/d1', '{"deviceId":"d2"}', { device_id: 'd1', update_mask: '' }],
    ['query parameters', 'GET', 'devices?page_size=7&q=a+b%26', '', { page_size: 7, q: 'a b&' }],
    ['JSON names in the query', 'GET', 'devices?pageSize=7', '', { page_size: 7 }],
    ['repeated parameters', 'GET', 'devices?tag=a%3D1&tag=b=2', '', { tag: ['a=1', 'b=2'] }],
    ['an enum by name', 'GET', 'devices?status=online', '', { status: 'online' }],
    ['an enum by number', 'GET', 'devices?status=2', '', { status: 'offline' }],
    ['a boolean', 'GET', 'verify/hash/00?include_bundle=true', '', { data_hash_hex: '00', include_bundle: true }],
    ['a parameter without a value', 'GET', 'devices?q', '', {}],
    ['empty parameters', 'GET', 'devices?&&q=x&', '', { q: 'x' }],
    [
      'a timestamp parameter',
      'GET',
      'telemetry/d1?start=2026-01-02T03:04:05.5%2B01:00&keys=a&keys=b',
      '',
      { device_id: 'd1', start: '2026-01-02T02:04:05.500Z', keys: ['a', 'b'] },
    ],
    [
      'a body field and a path',
      'POST',
      'devices/d1/ota/report',
      '{"device_id":"d2","status":"success"}',
      {
        device_id: 'd1',
        report: { device_id: 'd2', status: 'success' },
      },
    ],
    ['an action without a body', 'POST', 'ota/rollouts/r1/pause', '', { rollout_id: 'r1' }],
    ['an action with an empty object', 'POST', 'ota/rollouts/r1/pause', '{}', { rollout_id: 'r1' }],
    ['a body on a route without one, empty', 'DELETE', 'devices/d1', '{}', { device_id: 'd1' }],
    [
      'numbers as strings',
      'POST',
      'ota/rollouts/r1/resume',
      '{"canary_percent":"50"}',
      { rollout_id: 'r1', canary_percent: 50 },
    ],
    [
      'a whole number with an exponent',
      'POST',
      'ota/rollouts/r1/resume',
      '{"canary_percent":5e1}',
      { rollout_id: 'r1', canary_percent: 50 },
    ],
    ['null as unset', 'POST', 'ota/rollouts/r1/resume', '{"canary_percent":null}', { rollout_id: 'r1' }],
    [
      'nested messages, maps and free-form JSON',
      'POST',
      'profiles',
      '{"name":"p","default_tags":{"__proto__":"x"},"telemetry_schema":{"keys":{"t":{"type":"number","min":0}}}}',
      {
        name: 'p',
        default_tags: JSON.parse('{"__proto__":"x"}') as object,
        telemetry_schema: { keys: { t: { type: 'number', min: 0 } } },
      },
    ],
    [
      'a struct',
      'POST',
      'devices/d1/rpc',
      '{"method":"m","params":{"a":[1,null,{"b":"c"}]}}',
      {
        device_id: 'd1',
        method: 'm',
        params: { a: [1, null, { b: 'c' }] },
      },
    ],
  ] as const) {
    it(what, () => expect(decoded(verb, url, body)).to.deep.equal(want));
  }

  it('keeps the map key __proto__ as data', () => {
    const request = decode('POST', 'telemetry', '{"points":[{"numeric_values":{"__proto__":1,"a":2}}]}');
    const [point] = (request as unknown as { points: { numericValues: object }[] }).points;
    expect(Object.entries(point!.numericValues)).to.deep.equal([
      ['__proto__', 1],
      ['a', 2],
    ]);
  });

  for (const [what, verb, url, body, why] of [
    ['an unknown body field', 'POST', 'auth/login', '{"email":"a","pasword":"x"}', 'unknown field "pasword"'],
    [
      'an unknown nested field',
      'POST',
      'profiles',
      '{"anchoring_policy":{"modus":"merkle"}}',
      'anchoring_policy: unknown field "modus"',
    ],
    [
      'an unknown field in a list',
      'POST',
      'telemetry',
      '{"points":[{"device":"x"}]}',
      'points[0]: unknown field "device"',
    ],
    ['a tenant in the body', 'POST', 'provision', '{"tenant_id":"acme"}', 'unknown field "tenant_id"'],
    ['an unknown parameter', 'GET', 'devices?pagesize=7', '', 'unknown query parameter "pagesize"'],
    ['a parameter beside a body', 'POST', 'auth/login?email=a', '{"password":"x"}', 'unknown query parameter "email"'],
    ['a parameter bound by the path', 'GET', 'devices/d1?device_id=d2', '', 'unknown query parameter "device_id"'],
    ['a parameter given twice', 'GET', 'devices?q=a&q=b', '', 'query parameter "q" is given twice'],
    ['a parameter that is not a number', 'GET', 'devices?page_size=many', '', 'page_size: '],
    ['a parameter with a fraction', 'GET', 'devices?page_size=1.5', '', 'page_size: '],
    ['a parameter out of range', 'GET', 'devices?page_size=2147483648', '', 'page_size: '],
    [
      'a parameter that is not a boolean',
      'GET',
      'verify/hash/00?include_bundle=1',
      '',
      'include_bundle: must be true or false',
    ],
    ['an unknown enum value in a parameter', 'GET', 'devices?status=Online', '', 'status: '],
    ['an invalid time in a parameter', 'GET', 'telemetry/d1?start=yesterday', '', 'start: '],
    ['a nested parameter of a scalar', 'GET', 'devices?q.x=1', '', 'unknown query parameter "q.x"'],
    ['bad percent-encoding in the query', 'GET', 'devices?q=%zz', '', 'percent-encoding'],
    ['bad percent-encoding in the path', 'GET', 'devices/%zz', '', 'device_id in the path'],
    ['NUL in the path', 'GET', 'devices/%00', '', 'device_id: must not contain NUL'],
    ['NUL in the query', 'GET', 'devices?q=%00', '', 'q: must not contain NUL'],
    ['no body', 'POST', 'auth/login', '', 'a JSON body is required (email, password'],
    ['no body for points', 'POST', 'telemetry', '', 'a JSON body is required (points)'],
    ['no body for an update', 'PATCH', 'devices/d1', '', 'a JSON body is required'],
    ['an array as a body', 'POST', 'auth/login', '[]', 'the body must be a JSON object'],
    ['null as a body', 'POST', 'auth/login', 'null', 'the body must be a JSON object'],
    ['a body on a route without one', 'DELETE', 'devices/d1', '{"a":1}', 'this route takes no body'],
    ['a wrong type', 'POST', 'auth/login', '{"email":5}', 'email: '],
    [
      'a number as a string in a double',
      'POST',
      'telemetry',
      '{"points":[{"numeric_values":{"t":"hot"}}]}',
      'points[0].numeric_values["t"]: expected number (float64), got "hot"',
    ],
    ['an object for a list', 'POST', 'telemetry', '{"points":{}}', 'points: '],
    ['a negative count', 'POST', 'ota/rollouts', '{"canary_percent":-1}', 'canary_percent: '],
    ['an unknown enum value', 'POST', 'ota/packages', '{"type":"firmware"}', 'type: must be one of fw, sw'],
    [
      'an unknown nested enum value',
      'POST',
      'profiles',
      '{"telemetry_schema":{"keys":{"t":{"type":"blob"}}}}',
      'telemetry_schema.keys["t"].type: must be one of number, string',
    ],
    [
      'a wrong type in the second item of a list',
      'POST',
      'telemetry',
      '{"points":[{},{"timestamp":5}]}',
      'points[1].timestamp: expected string, got 5',
    ],
    [
      'an array for free-form JSON',
      'POST',
      'devices/d1/rpc',
      '{"method":"x","params":[]}',
      'params: must be an object',
    ],
    ['an array for a message', 'POST', 'profiles', '{"anchoring_policy":[]}', 'anchoring_policy: must be an object'],
    ['a bad timestamp', 'POST', 'entity-views', '{"start_time":"noon"}', 'start_time: '],
    [
      'both members of a oneof',
      'POST',
      'entity-views',
      '{"device_id":"d","asset_id":"a"}',
      'device_id: must not be given together with asset_id',
    ],
    [
      'a field by both names',
      'POST',
      'provision',
      '{"device_name":"a","deviceName":"b"}',
      'device_name: set multiple times',
    ],
    ['a duplicate key', 'POST', 'auth/login', '{"email":"a","email":"b"}', 'email: must not be given twice'],
  ] as const) {
    it(`rejects ${what}`, () => {
      expect(() => decode(verb, url, body))
        .to.throw(KelletError)
        .that.satisfies((error: KelletError) => {
          expect(error.code).to.equal('INVALID_ARGUMENT');
          expect(error.message).to.contain(why);
          return true;
        });
    });
  }

  it('accepts raw bytes where the contract has an HttpBody', () => {
    const bytes = Buffer.from([0, 255, 1]);
    const request = decode('PUT', 'ota/packages/p1/artifact?offset=65536', bytes, 'application/octet-stream');
    expect(request).to.deep.include({ packageId: 'p1', offset: 65536 });
    const { content } = request as unknown as { content: { contentType: string; data: Uint8Array } };
    expect(content.contentType).to.equal('application/octet-stream');
    expect(Buffer.from(content.data).equals(bytes)).to.equal(true);
  });
});

describe('the fields that an update over REST changes', () => {
  const paths = (body: string) =>
    (decode('PATCH', 'profiles/p1', body) as unknown as { updateMask: { paths: string[] } }).updateMask.paths;

  for (const [what, body, want] of [
    ['the keys of the body', '{"name":"n","default_tags":{}}', ['name', 'default_tags']],
    ['the keys by their JSON names', '{"defaultTags":{}}', ['default_tags']],
    ['a key with null', '{"type":null}', ['type']],
    ['nothing', '{}', []],
    ['not the path variable', '{"profile_id":"p2","name":"n"}', ['name']],
    [
      'the keys of a nested message, not the message',
      '{"ota_policy":{"maxAttempts":3,"window":{"days":[]}}}',
      ['ota_policy.max_attempts', 'ota_policy.window.days'],
    ],
    ['a nested message that is null', '{"ota_policy":{"window":null}}', ['ota_policy.window']],
    [
      'empty messages, to clear them',
      '{"ota_policy":{"window":{}},"telemetry_schema":{}}',
      ['ota_policy.window', 'telemetry_schema'],
    ],
    ['a map as a whole', '{"telemetry_schema":{"keys":{"t":{"type":"number"}}}}', ['telemetry_schema.keys']],
    ['the paths of the mask, if there is one', '{"name":"n","type":"t","update_mask":"name"}', ['name']],
    [
      'the paths of a mask of several',
      '{"update_mask":"default_tags,ota_policy.window"}',
      ['default_tags', 'ota_policy.window'],
    ],
    ['the paths of a mask in JSON names', '{"updateMask":"defaultTags"}', ['default_tags']],
    ['nested paths in JSON names', '{"updateMask":"otaPolicy.maxAttempts"}', ['ota_policy.max_attempts']],
  ] as const) {
    it(what, () => expect(paths(body)).to.deep.equal(want));
  }

  it('the paths of a mask in the query', () => {
    const pathsOf = (query: string, body = '{"name":"n","type":"t"}') =>
      (decode('PATCH', `profiles/p1?${query}`, body) as unknown as { updateMask: { paths: string[] } }).updateMask
        .paths;
    expect(pathsOf('update_mask=name')).to.deep.equal(['name']);
    expect(pathsOf('updateMask=name%2CdefaultTags')).to.deep.equal(['name', 'default_tags']);
    expect(pathsOf('update_mask=', '{"name":"n"}')).to.deep.equal([]);
    expect(() => pathsOf('update_mask=nome')).to.throw('unknown field "nome"');
    expect(() => pathsOf('update_masks=name')).to.throw('update_masks');
    expect(() => pathsOf('update_mask=name', '{"update_mask":"name"}')).to.throw('not in both');
    expect(() => pathsOf('update_mask=name&updateMask=type')).to.throw('twice');
  });

  it('rejects a mask that names an unknown field', () => {
    expect(() => paths('{"update_mask":"nome"}')).to.throw('unknown field "nome"');
    expect(() => paths('{"update_mask":"ota_policy.nome"}')).to.throw('unknown field "ota_policy.nome"');
    expect(() => paths('{"update_mask":"default_tags.site"}')).to.throw(
      'update_mask: default_tags can only be changed as a whole',
    );
    expect(() => paths('{"ota_policy":{"nome":1}}')).to.throw('unknown field "nome"');
    expect(() => paths('{"ota_policy":[]}')).to.throw('ota_policy');
    expect(() => paths('{"update_mask":["name"]}')).to.throw('update_mask must be a string');
    expect(() => paths('{"nome":"x"}')).to.throw('unknown field "nome"');
  });

  for (const [what, path, body, want] of [
    ['an immutable field', 'ota/packages/p1', '{"version":"2.0.0"}', 'version cannot be changed'],
    ['an output field', 'devices/d1', '{"firmware_version":"2.0.0"}', 'firmware_version cannot be changed'],
    ['one by its JSON name', 'ota/packages/p1', '{"signatureVerified":true}', 'signature_verified cannot be changed'],
    ['one in a mask', 'ota/packages/p1', '{"update_mask":"sha256"}', 'sha256 cannot be changed'],
    ['an unknown field', 'ota/packages/p1', '{"verzion":"2.0.0"}', 'unknown field "verzion"'],
  ] as const) {
    it(`rejects ${what} of the resource, saying why`, () => {
      expect(() => decode('PATCH', path, body))
        .to.throw(KelletError, want)
        .with.property('code', 'INVALID_ARGUMENT');
    });
  }
});

describe('transcoding of responses', () => {
  const route = (verb: string, path: string) => table.match(verb, `/api/v1/${path}`)!.route;

  it('uses proto names, includes unpopulated scalars, omits unset optional fields', () => {
    const { body, contentType } = encodeResponse(
      route('GET', 'devices/d1'),
      create(DeviceSchema, { deviceId: 'd1', createdAt: { seconds: 1_767_323_045n } }),
    );
    expect(contentType).to.equal('application/json');
    expect(JSON.parse(body as string)).to.deep.equal({
      device_id: 'd1',
      name: '',
      hardware_id: '',
      profile_id: '',
      tags: {},
      effective_tags: {},
      group_ids: [],
      firmware_version: '',
      software_version: '',
      gateway_device_id: '',
      customer_id: '',
      created_at: '2026-01-02T03:04:05Z',
    });
  });

  it('returns {} for a delete', () => {
    const deletion = route('DELETE', 'devices/d1');
    expect(encodeResponse(deletion, create(deletion.method.output)).body).to.equal('{}');
  });

  it('returns an HttpBody as its bytes', () => {
    const output = { ...route('GET', 'devices/d1') };
    const method = { ...output.method, output: HttpBodySchema };
    const data = Buffer.from('raw');
    expect(
      encodeResponse({ ...output, method }, create(HttpBodySchema, { contentType: 'text/plain', data })),
    ).to.deep.equal({ contentType: 'text/plain', body: data });
  });
});

describe('routes that work without a body', () => {
  for (const [verb, path, want] of [
    ['POST', 'auth/logout', true],
    ['POST', 'auth/mfa/totp', true],
    ['POST', 'ota/rollouts/r1/resume', true],
    ['POST', 'ota/rollouts/r1/retry', true],
    ['POST', 'devices/d1/credentials/rotate', true],
    ['POST', 'provisioning/templates/t1/rotate-key', true],
    ['GET', 'devices', true],
    ['POST', 'devices', false],
    ['POST', 'telemetry', false],
    ['POST', 'auth/validate', false],
    ['PATCH', 'tenant', false],
    ['PUT', 'devices/d1/ota/assignment', false],
  ] as const) {
    it(`${verb} ${path}: ${want}`, () => {
      expect(bodyMayBeEmpty(table.match(verb, `/api/v1/${path}`)!.route)).to.equal(want);
    });
  }
});
