import { once } from 'node:events';
import { createServer, type IncomingMessage, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { expect } from 'chai';
import { KelletClient } from './client.ts';
import { ApiError } from './errors.ts';

interface Seen {
  method: string;
  url: string;
  authorization: string | undefined;
  body: string;
}
type Reply = [status: number, body: unknown, headers?: Record<string, string>];

async function bodyOf(request: IncomingMessage): Promise<string> {
  const chunks: Buffer[] = [];
  for await (const chunk of request) chunks.push(chunk as Buffer);
  return Buffer.concat(chunks).toString();
}

describe('KelletClient', () => {
  let server: Server;
  let baseUrl = '';
  let seen: Seen[] = [];
  let waits: number[] = [];
  let replies: ((request: Seen) => Reply)[] = [];

  before(async () => {
    server = createServer((request, response) => {
      void bodyOf(request).then((body) => {
        const { method = '', url = '', headers } = request;
        const one = { method, url, authorization: headers.authorization, body };
        seen.push(one);
        const [status, reply, extra] = replies.shift()!(one);
        response.writeHead(status, { 'content-type': 'application/json', ...extra }).end(JSON.stringify(reply));
      });
    });
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    baseUrl = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  });
  after(() => server.close());
  beforeEach(() => {
    seen = [];
    waits = [];
    replies = [];
  });

  const options = () => ({ baseUrl, sleep: async (seconds: number) => void waits.push(seconds) });
  const reply = (...given: Reply[]) => (replies = given.map((one) => () => one));
  const refused = (status: number, code: string | number): Reply => [status, { code, message: 'no', request_id: 'r1' }];

  it('sends path, query, body and credential, and returns the body', async () => {
    reply([200, { device_id: 'd/1' }], [200, { devices: [], next_page_token: '' }]);
    const client = new KelletClient({ ...options(), credential: 'sk_live_x' });
    const device = await client.patch('/api/v1/devices/{device_id}', {
      params: { path: { device_id: 'd/1' } },
      body: { name: 'new' },
    });
    expect(device.device_id).to.equal('d/1');
    await client.get('/api/v1/devices', { params: { query: { tag: ['a=1', 'b=2'], page_size: 10 } } });
    expect(seen).to.deep.equal([
      { method: 'PATCH', url: '/api/v1/devices/d%2F1', authorization: 'Bearer sk_live_x', body: '{"name":"new"}' },
      {
        method: 'GET',
        url: '/api/v1/devices?tag=a%3D1&tag=b%3D2&page_size=10',
        authorization: 'Bearer sk_live_x',
        body: '',
      },
    ]);
  });

  it('throws the error of the API', async () => {
    reply([409, { code: 'ALREADY_EXISTS', message: 'it exists', request_id: 'r7' }]);
    const error = await new KelletClient(options())
      .post('/api/v1/profiles', { body: { name: 'x' } })
      .catch((e: unknown) => e);
    expect(error).to.be.instanceOf(ApiError);
    expect(error).to.include({ status: 409, code: 'ALREADY_EXISTS', requestId: 'r7' });
    expect((error as Error).message).to.equal('POST /api/v1/profiles: 409 it exists');
  });

  it('throws for a response that is not from the API', async () => {
    replies = [() => [502, 'bad gateway', { 'x-request-id': 'r8' }]];
    const error = await new KelletClient(options()).get('/healthz').catch((e: unknown) => e);
    expect(error).to.include({ status: 502, code: 'UNKNOWN', requestId: 'r8' });
  });

  it('waits for the window to reset and resends the whole POST', async () => {
    reply([429, { code: 429 }, { 'retry-after': '7' }], [200, { profile_id: 'p' }]);
    await new KelletClient(options()).post('/api/v1/profiles', { body: { name: 'x' } });
    expect(seen.map(({ body }) => body)).to.deep.equal(['{"name":"x"}', '{"name":"x"}']);
    expect(waits).to.have.length(1);
    expect(waits[0]).to.be.within(7, 8.75);
  });

  it('gives up after the configured number of attempts', async () => {
    reply(refused(503, 'UNAVAILABLE'), refused(503, 'UNAVAILABLE'));
    const client = new KelletClient({ ...options(), retry: { maximumAttempts: 2 } });
    const error = await client.get('/api/v1/profiles').catch((e: unknown) => e);
    expect(error).to.include({ status: 503, code: 'UNAVAILABLE' });
    expect(seen).to.have.length(2);
  });

  it('reads every page of a list', async () => {
    reply(
      [200, { profiles: [{ name: 'a' }, { name: 'b' }], next_page_token: 't' }],
      [200, { profiles: [{ name: 'c' }], next_page_token: '' }],
    );
    const names: string[] = [];
    const list = new KelletClient(options()).list('/api/v1/profiles', 'profiles', {
      params: { query: { page_size: 2 } },
    });
    for await (const profile of list) names.push(profile.name);
    expect(names).to.deep.equal(['a', 'b', 'c']);
    expect(seen.map(({ url }) => url)).to.deep.equal([
      '/api/v1/profiles?page_size=2',
      '/api/v1/profiles?page_size=2&page_token=t',
    ]);
  });

  describe('signed in', () => {
    const pair = (name: string, expires_in = 900) => ({
      access_token: `access-${name}`,
      refresh_token: `refresh-${name}`,
      expires_in,
      token_type: 'Bearer',
      mfa_token: '',
    });
    const signIn = () => KelletClient.signIn(options(), { email: 'a@b', password: 'a long password' });

    it('refreshes an expiring token once for several requests', async () => {
      reply([200, pair('1', 10)], [200, pair('2')], [200, {}], [200, {}]);
      const client = await signIn();
      await Promise.all([client.get('/api/v1/tenant'), client.get('/api/v1/tenant')]);
      expect(seen.map(({ url, authorization }) => `${url} ${authorization}`)).to.deep.equal([
        '/api/v1/auth/login undefined',
        '/api/v1/auth/refresh undefined',
        '/api/v1/tenant Bearer access-2',
        '/api/v1/tenant Bearer access-2',
      ]);
      expect(seen[1]!.body).to.equal('{"refresh_token":"refresh-1"}');
    });

    it('asks for the code of a second factor', async () => {
      const first = { ...pair(''), access_token: '', mfa_required: true, mfa_token: 'm', mfa_methods: ['totp'] };
      reply([200, first], [200, pair('1')], [200, {}]);
      const asked: unknown[] = [];
      const client = await KelletClient.signIn(options(), { email: 'a@b', password: 'a long password' }, (methods) => {
        asked.push(methods);
        return '123456';
      });
      await client.get('/api/v1/tenant');
      expect(asked).to.deep.equal([['totp']]);
      expect(seen[1]!.body).to.equal('{"mfa_token":"m","code":"123456"}');
      expect(seen.at(-1)).to.include({ authorization: 'Bearer access-1' });
      reply([200, first]);
      const error = await signIn().catch((e: unknown) => e);
      expect((error as Error).message).to.contain('second factor');
    });

    it('refreshes a rejected token and resends the request', async () => {
      reply([200, pair('1')], refused(401, 'UNAUTHENTICATED'), [200, pair('2')], [200, { profile_id: 'p' }]);
      const profile = await (await signIn()).post('/api/v1/profiles', { body: { name: 'x' } });
      expect(profile.profile_id).to.equal('p');
      expect(seen.at(-1)).to.include({ authorization: 'Bearer access-2', body: '{"name":"x"}' });
    });

    it('throws when the new token is rejected too', async () => {
      reply([200, pair('1')], refused(401, 'UNAUTHENTICATED'), [200, pair('2')], refused(401, 'UNAUTHENTICATED'));
      const error = await (await signIn()).get('/api/v1/tenant').catch((e: unknown) => e);
      expect(error).to.include({ status: 401 });
      expect(seen).to.have.length(4);
    });

    it('throws when the session has ended', async () => {
      reply([200, pair('1', 10)], refused(401, 'UNAUTHENTICATED'));
      const error = await (await signIn()).get('/api/v1/tenant').catch((e: unknown) => e);
      expect((error as Error).message).to.match(/^POST \/api\/v1\/auth\/refresh: 401/);
    });
  });
});
