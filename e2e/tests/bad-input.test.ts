// Input validation: invalid requests get the documented status and body with the name of the field, and create nothing.
import { expect } from 'chai';
import { admin, anonymous, makeDevice, unique } from '../testing/fixtures.ts';

interface ErrorBody {
  code: string;
  message: string;
}

describe('bad input', () => {
  const name = unique('bad');
  const valid = { name, type: 'thermometer' };

  for (const [method, path] of [
    ['GET', '/api/v1/nothing'],
    ['GET', '/'],
    ['GET', '/api/v2/profiles'],
    ['PUT', '/api/v1/profiles'],
    ['POST', '/api/v1/profiles/'],
  ] as const) {
    it(`returns "route not found" for ${method} ${path} before authentication`, async () => {
      const { status, body } = await anonymous().send(method, path, method === 'GET' ? {} : { body: {} });
      expect(status).to.equal(404);
      expect(body).to.include({ code: 'NOT_FOUND', message: 'route not found' });
    });
  }

  const refused: [what: string, method: string, path: string, body: unknown, message: RegExp][] = [
    ['truncated JSON', 'POST', '/api/v1/profiles', '{"name":', /JSON/],
    ['a body that is not JSON', 'POST', '/api/v1/profiles', 'name=x', /JSON/],
    ['an array instead of an object', 'POST', '/api/v1/profiles', '[]', /./],
    ['null', 'POST', '/api/v1/profiles', 'null', /./],
    ['an unknown field', 'POST', '/api/v1/profiles', { ...valid, colour: 'red' }, /colour/],
    ['an unknown nested field', 'POST', '/api/v1/profiles', { ...valid, ota_policy: { colour: 1 } }, /colour/],
    ['a number instead of a string', 'POST', '/api/v1/profiles', { ...valid, name: 5 }, /name/],
    ['a string instead of an object', 'POST', '/api/v1/profiles', { ...valid, default_tags: 'x' }, /default_tags/],
    [
      'a number instead of a tag value',
      'POST',
      '/api/v1/profiles',
      { ...valid, default_tags: { a: 1 } },
      /default_tags/,
    ],
    [
      'an unknown enum value',
      'POST',
      '/api/v1/profiles',
      { ...valid, anchoring_policy: { mode: 'never' } },
      /anchoring_policy/,
    ],
    ['a duplicate key', 'POST', '/api/v1/profiles', `{"name":"${name}","name":"${name}","type":"x"}`, /name/],
    ['a NUL in a string', 'POST', '/api/v1/profiles', { ...valid, type: 'a\u0000b' }, /NUL/],
    ['a missing name', 'POST', '/api/v1/profiles', { type: 'x' }, /name/],
    ['a negative page size', 'GET', '/api/v1/profiles?page_size=-1', undefined, /page_size/],
    ['a page size that is not a number', 'GET', '/api/v1/profiles?page_size=many', undefined, /page_size/],
    ['a page token that was not issued', 'GET', '/api/v1/profiles?page_token=bm9ib2R5', undefined, /page_token/],
    ['an unknown parameter', 'GET', '/api/v1/profiles?colour=red', undefined, /colour/],
    ['text that is not a hash', 'GET', '/api/v1/verify/hash/abc', undefined, /data_hash/],
    ['points that are not a list', 'POST', '/api/v1/telemetry', { points: 'x' }, /points/],
    [
      'a string instead of a numeric value',
      'POST',
      '/api/v1/telemetry',
      { points: [{ numeric_values: { t: 'x' } }] },
      /numeric_values/,
    ],
    [
      'a number that does not fit in a double',
      'POST',
      '/api/v1/devices/x/rpc',
      '{"method":"m","params":{"a":1e999}}',
      /params\["a"\]/,
    ],
    [
      'an idempotency key that is too long',
      'POST',
      '/api/v1/devices/x/rpc',
      { method: 'm', idempotency_key: 'x'.repeat(256) },
      /idempotency_key/,
    ],
    ['too many points', 'POST', '/api/v1/telemetry', { points: Array.from({ length: 5001 }, () => ({})) }, /5,?000/],
  ];
  for (const [what, method, path, body, message] of refused) {
    it(`rejects ${what}`, async () => {
      const request = body === undefined ? {} : { body };
      const response = await (await admin()).send<ErrorBody>(method, path, request);
      expect({ status: response.status, code: response.body.code }).to.deep.equal({
        status: 400,
        code: 'INVALID_ARGUMENT',
      });
      expect(response.body.message).to.match(message);
      expect(Object.keys(response.body).sort()).to.deep.equal(['code', 'message', 'request_id']);
    });
  }

  it('creates nothing', async () => {
    const profiles = await (await admin()).list<{ name: string }>('/api/v1/profiles', 'profiles', { page_size: 500 });
    expect(profiles.map((profile) => profile.name)).not.to.include(name);
  });

  it('returns NOT_FOUND for a malformed id', async () => {
    for (const id of ['x', '%00', '00000000-0000-0000-0000-000000000000', "'; DROP TABLE profiles; --"]) {
      const { status, body } = await (
        await admin()
      ).send<ErrorBody>('GET', `/api/v1/profiles/${encodeURIComponent(id)}`);
      expect({ id, status, code: body.code }).to.deep.equal({ id, status: 404, code: 'NOT_FOUND' });
    }
  });

  it('leaks no internals', async () => {
    const device = await makeDevice(await admin());
    const responses = [
      await device.rest.send<ErrorBody>('POST', '/api/v1/telemetry', { body: '\u0000' }),
      await device.rest.send<ErrorBody>('GET', '/api/v1/devices/%F0%28%8C%28/ota'),
      await (await admin()).send<ErrorBody>('POST', '/api/v1/ota/rollouts', { body: { package_id: '\u0000' } }),
    ];
    for (const { status, body } of responses) {
      expect(status).to.be.within(400, 499);
      expect(JSON.stringify(body)).not.to.match(/node_modules|\.ts|SELECT|postgres|at \//i);
    }
  });
});
