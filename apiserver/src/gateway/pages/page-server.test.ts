import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { type AddressInfo, createConnection } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { gunzipSync } from 'node:zlib';
import { buildDashboard } from '@kellet/dashboard/build';
import { expect } from 'chai';
import type { HttpServer } from '../http/http-server.ts';
import { dashboardPolicy } from './dashboard-pages.ts';
import { apiUrl, createPageServer } from './page-server.ts';

const api = 'https://api.kellet.test';

/** Starts the server of the pages with the dashboard in a folder. */
async function serve(dashboardFolder: string): Promise<{ server: HttpServer; port: number; base: string }> {
  const dashboardOrigin = 'https://dashboard.test';
  const server = createPageServer({ publicUrl: api, dashboardOrigin, restPort: () => 1, dashboardFolder });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  return { server, port, base: `http://127.0.0.1:${port}` };
}

describe('the dashboard’s files', () => {
  let folder: string;
  let server: HttpServer;
  let port: number;
  let base: string;
  before(async () => {
    folder = mkdtempSync(join(tmpdir(), 'kellet-dashboard-'));
    buildDashboard(join(folder, 'dist'));
    writeFileSync(join(folder, 'secret.txt'), 'a secret');
    ({ server, port, base } = await serve(join(folder, 'dist')));
  });
  after(async () => {
    await server.closeWithin(0);
    rmSync(folder, { recursive: true });
  });

  const html = /^text\/html; charset=utf-8$/;
  const files: [path: string, type: RegExp, content: RegExp][] = [
    ['/', html, /src="\/assets\/application\.js"/],
    ['/assets/application.js', /^text\/javascript/, /telemetry\.live/],
    ['/assets/application.css', /^text\/css/, /prefers-reduced-motion/],
    ['/assets/icon.svg', /^image\/svg\+xml$/, /^<svg/],
  ];
  for (const [path, type, content] of files) {
    it(`include ${path}, under a strict policy`, async () => {
      const response = await fetch(base + path);
      expect(response.status).to.equal(200);
      expect(response.headers.get('content-type')).to.match(type);
      expect(response.headers.get('content-security-policy')).to.equal(dashboardPolicy(api));
      expect(response.headers.get('x-content-type-options')).to.equal('nosniff');
      expect(response.headers.get('referrer-policy')).to.equal('no-referrer');
      expect(await response.text()).to.match(content);
    });
  }

  it('may load nothing from elsewhere, run no inline script, and call nothing but the API', async () => {
    const policy = new Map(
      dashboardPolicy(api)
        .split('; ')
        .map((rule) => rule.split(/ (.*)/s) as [string, string]),
    );
    expect(policy.get('default-src')).to.equal("'none'");
    for (const kind of ['script-src', 'style-src', 'img-src']) expect(policy.get(kind), kind).to.equal("'self'");
    expect(policy.get('connect-src')).to.equal("'self' https://api.kellet.test wss://api.kellet.test");
    expect(policy.get('frame-ancestors')).to.equal("'none'");
    const page = await (await fetch(base)).text();
    expect(page).not.to.match(/<script(?![^>]*src=)|<style|https?:\/\/| on\w+=/);
  });

  it('grant no access to other origins', async () => {
    const response = await fetch(`${base}/settings.json`, { headers: { origin: 'https://evil.test' } });
    expect([...response.headers.keys()].filter((name) => name.startsWith('access-control'))).to.deep.equal([]);
    expect(await response.json()).to.deep.equal({ api, origin: 'https://dashboard.test' });
  });

  for (const path of [
    '/sign-in',
    '/devices',
    '/devices/0198-a.b',
    '/rollouts/x?tab=1',
    '/alarms',
    '/anchors',
    '/account',
  ]) {
    it(`are the application at ${path} too`, async () => {
      const response = await fetch(base + path);
      expect(response.status).to.equal(200);
      expect(await response.text()).to.equal(await (await fetch(base)).text());
    });
  }

  for (const path of [
    '/nothing',
    '/api/v1/devices',
    '/assets/',
    '/assets/none.js',
    '/pages.json',
    '/Devices',
    '/%zz',
  ]) {
    it(`do not include ${path}`, async () => expect((await fetch(base + path)).status).to.equal(404));
  }

  it('do not lead out of their folder', async () => {
    for (const path of [
      '/assets/../../secret.txt',
      '/assets/..%2f..%2fsecret.txt',
      '/assets/%2e%2e/%2e%2e/secret.txt',
      '/assets/..\\..\\secret.txt',
      '/../secret.txt',
      '//secret.txt',
      '/devices/../../secret.txt',
    ]) {
      // Sent as written: fetch would resolve the dots.
      const socket = createConnection(port, '127.0.0.1');
      socket.write(`GET ${path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n`);
      const response = await text(socket);
      expect(response, path).to.match(/^HTTP\/1\.1 (200|404|400) /);
      expect(response, path).not.to.include('a secret');
    }
  });

  it('are not resent to browsers that have them, and sent compressed to those that can take it', async () => {
    for (const [path] of files) {
      const plain = await fetch(base + path, { headers: { 'accept-encoding': 'identity' } });
      const compressed = await fetch(base + path, { headers: { 'accept-encoding': 'gzip' } });
      expect(plain.headers.get('cache-control')).to.equal('no-cache');
      expect(plain.headers.get('vary')).to.equal('accept-encoding');
      expect(plain.headers.get('content-encoding')).to.equal(null);
      expect(compressed.headers.get('content-encoding')).to.equal('gzip');
      expect(await compressed.text()).to.equal(await plain.text());
      const etag = compressed.headers.get('etag')!;
      expect(etag).not.to.equal(plain.headers.get('etag'));
      // Without the last header, Node's fetch would not revalidate a stored response.
      const again = { 'accept-encoding': 'gzip', 'if-none-match': etag, 'cache-control': 'max-age=0' };
      expect((await fetch(base + path, { headers: again })).status, path).to.equal(304);
    }
    const page = await fetch(base, { method: 'HEAD' });
    expect(page.status).to.equal(200);
    expect(await page.text()).to.equal('');
  });

  it('cannot be changed', async () => {
    for (const method of ['POST', 'PUT', 'DELETE']) {
      expect((await fetch(base, { method })).status, method).to.equal(404);
    }
  });

  it('are small enough for a phone', async () => {
    const { server: other, port: at } = await serve(join(folder, 'dist'));
    const socket = createConnection(at, '127.0.0.1');
    socket.write(
      'GET /assets/application.js HTTP/1.1\r\nhost: x\r\naccept-encoding: gzip\r\nconnection: close\r\n\r\n',
    );
    const chunks: Buffer[] = [];
    for await (const chunk of socket) chunks.push(chunk as Buffer);
    const bytes = Buffer.concat(chunks);
    const body = bytes.subarray(bytes.indexOf('\r\n\r\n') + 4);
    expect(gunzipSync(body).length).to.be.greaterThan(body.length);
    expect(body.length).to.be.lessThan(60_000);
    await other.closeWithin(0);
  });
});

describe('a dashboard that is not built', () => {
  it('says how to build it, and leaves the reference where it is', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'kellet-dashboard-'));
    const { server, base } = await serve(folder);
    const page = await fetch(base);
    expect(page.status).to.equal(200);
    expect(await page.text()).to.match(/not built.*href="\/reference\/"/s);
    expect((await fetch(`${base}/devices`)).status).to.equal(404);
    expect((await fetch(`${base}/reference/`)).status).to.equal(200);
    await server.closeWithin(0);
    rmSync(folder, { recursive: true });
  });
});

describe('the URL of the API', () => {
  for (const [publicUrl, host, url] of [
    ['', '127.0.0.1:8081', 'http://127.0.0.1:8080'],
    ['', '[::1]:8081', 'http://[::1]:8080'],
    ['', 'kellet.example', 'http://kellet.example:8080'],
    ['', 'x; script-src *', 'http://localhost:8080'],
    ['', undefined, 'http://localhost:8080'],
    ['https://api.kellet.example/', 'x', 'https://api.kellet.example'],
  ] as const) {
    it(`finds the API of ${JSON.stringify(host)} at ${url}`, () => expect(apiUrl(publicUrl, host, 8080)).to.equal(url));
  }
});
