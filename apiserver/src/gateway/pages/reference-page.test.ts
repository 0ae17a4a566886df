import { expect } from 'chai';
import { isUnchanged } from '../http/rest-response.ts';
import { startTestGateway, type TestGateway } from '../testing/test-gateway.ts';
import { referencePolicy } from './reference-page.ts';

describe('the API reference', () => {
  let gateway: TestGateway;
  before(async () => {
    gateway = await startTestGateway(() => undefined);
  });
  after(() => gateway.stop());

  const pages: [path: string, type: RegExp, content: RegExp][] = [
    ['/reference', /^text\/html/, /swagger-ui-bundle\.js/],
    ['/reference/initialize.js', /javascript/, /validatorUrl: null/],
    ['/reference/swagger-ui-bundle.js', /javascript/, /SwaggerUIBundle/],
    ['/reference/swagger-ui.css', /^text\/css/, /swagger-ui/],
    ['/reference/favicon-32x32.png', /^image\/png/, /PNG/],
  ];
  for (const [path, type, content] of pages) {
    it(`serves ${path} under a strict policy`, async () => {
      const response = await fetch(gateway.pages + path);
      expect(response.status).to.equal(200);
      expect(response.headers.get('content-type')).to.match(type);
      expect(response.headers.get('content-security-policy')).to.equal(referencePolicy(gateway.rest));
      expect(await response.text()).to.match(content);
    });
  }

  it('is not resent to clients that have it, and has no body for HEAD', async () => {
    for (const [path] of pages) {
      const response = await fetch(gateway.pages + path, { method: 'HEAD' });
      expect(response.headers.get('cache-control')).to.equal('no-cache');
      expect(await response.text()).to.equal('');
      const etag = response.headers.get('etag')!;
      // Without the second header, Node's fetch would not revalidate a stored response.
      const headers = { 'if-none-match': etag, 'cache-control': 'max-age=0' };
      expect((await fetch(gateway.pages + path, { headers })).status, path).to.equal(304);
    }
  });

  it('is read-only, and reveals nothing when a request is malformed', async () => {
    expect((await fetch(gateway.pages, { method: 'POST', body: 'x' })).status).to.equal(404);
    const bundle = `${gateway.pages}/reference/swagger-ui-bundle.js`;
    const response = await fetch(bundle, { headers: { range: 'bytes=99999999-' } });
    expect(response.status).to.equal(416);
    expect(response.headers.has('x-powered-by')).to.equal(false);
    expect(await response.text()).to.equal('not available\n');
  });

  it('requests nothing from other hosts', async () => {
    for (const path of ['/reference/', '/reference/initialize.js']) {
      expect(await (await fetch(gateway.pages + path)).text()).not.to.match(/https?:\/\/|\/\/[a-z]/);
    }
  });

  it('shows the document with the address of the API', async () => {
    const document = (await (await fetch(`${gateway.pages}/reference/openapi.json`)).json()) as {
      openapi: string;
      servers: unknown;
    };
    expect(document.openapi).to.equal('3.1.0');
    expect(document.servers).to.deep.equal([{ url: gateway.rest }]);
  });

  for (const path of [
    '/nothing',
    '/reference/swagger-ui.js',
    '/reference/..%2fpackage.json',
    '/reference/%zz',
    '/Reference/',
    '/api/v1/devices',
  ]) {
    it(`serves nothing at ${path}`, async () => expect((await fetch(gateway.pages + path)).status).to.equal(404));
  }
});

describe('GET /api/v1/openapi.json', () => {
  let gateway: TestGateway;
  before(async () => {
    gateway = await startTestGateway(() => undefined);
  });
  after(() => gateway.stop());
  const get = (headers: Record<string, string>, method = 'GET') =>
    fetch(`${gateway.rest}/api/v1/openapi.json`, { method, headers });

  it('requires a credential', async () => {
    const response = await get({});
    expect(response.status).to.equal(401);
    expect(await response.json()).to.include({ code: 'UNAUTHENTICATED' });
  });

  for (const token of ['viewer', 'device', 'platform']) {
    it(`is served to ${token}, and counted`, async () => {
      const response = await get({ authorization: `Bearer ${token}` });
      expect(response.status).to.equal(200);
      expect(response.headers.get('content-type')).to.match(/^application\/json/);
      expect(response.headers.get('x-ratelimit-remaining')).to.match(/^\d+$/);
      expect(((await response.json()) as { openapi: string }).openapi).to.equal('3.1.0');
    });
  }

  it('is not resent to clients that have it', async () => {
    const etag = (await get({ authorization: 'Bearer viewer' })).headers.get('etag')!;
    const again = await get({ authorization: 'Bearer viewer', 'if-none-match': etag });
    expect(again.status).to.equal(304);
    expect(again.headers.get('etag')).to.equal(etag);
    expect(again.headers.get('x-ratelimit-remaining')).to.match(/^\d+$/);
    expect(await again.text()).to.equal('');
  });

  it('is not a route for other methods', async () => {
    expect((await get({ authorization: 'Bearer viewer' }, 'POST')).status).to.equal(404);
  });

  for (const [header, is] of [
    [undefined, false],
    ['"b"', false],
    ['"a"', true],
    ['W/"a"', true],
    ['"b", "a"', true],
    ['*', true],
  ] as const) {
    it(`${is ? 'matches' : 'does not match'} ${header} for "a"`, () => expect(isUnchanged(header, '"a"')).to.equal(is));
  }
});
