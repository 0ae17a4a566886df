import { type IncomingMessage, request as httpRequest } from 'node:http';
import { type AddressInfo, connect, createServer } from 'node:net';
import { expect } from 'chai';
import { Diagnostics } from './diagnostics/diagnostics.ts';
import { Health } from './gateway/http/health.ts';
import type { AuditFacts } from './platform/audit/audit-event.ts';
import { createLogger } from './platform/observability/logger.ts';
import { createMetrics, Gauge } from './platform/observability/metrics.ts';
import { eventually } from './platform/testing/eventually.ts';
import { ProcessServer } from './process-server.ts';

/** Returns a port that was free a moment ago. */
async function freePort(): Promise<number> {
  const server = createServer().listen(0, '127.0.0.1');
  await new Promise((resolve) => server.once('listening', resolve));
  const { port } = server.address() as AddressInfo;
  await new Promise((resolve) => server.close(resolve));
  return port;
}

describe('the port for operations', () => {
  let server: ProcessServer;
  let url: string;
  let port: number;
  let collections: number;

  beforeEach(async () => {
    collections = 0;
    const metrics = createMetrics();
    const collect = function (this: Gauge): void {
      this.set((collections += 1));
    };
    metrics.registerMetric(new Gauge({ name: 'collections', help: 'How often.', registers: [], collect }));
    server = new ProcessServer(new Health({}), metrics, createLogger('silent'));
    port = await freePort();
    await server.listen('127.0.0.1', port);
    server.started();
    url = `http://127.0.0.1:${port}`;
  });
  afterEach(() => server.close());

  const scrape = async (): Promise<number> => {
    const response = await fetch(`${url}/metrics`);
    expect(response.headers.get('content-type')).to.contain('text/plain');
    return Number(/^collections (\d+)$/m.exec(await response.text())![1]);
  };

  it('collects metrics for each scrape', async () => {
    const first = await scrape();
    expect(await scrape()).to.equal(first + 1);
  });

  it('collects metrics once for scrapes that come together, also of clients that do not read', async () => {
    const silent = Array.from({ length: 50 }, () => {
      const socket = connect(port, '127.0.0.1');
      socket.on('error', () => undefined).pause();
      socket.write('GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n'.repeat(20));
      return socket;
    });
    await Promise.all(Array.from({ length: 50 }, scrape));
    expect(collections).to.be.below(20);
    silent.forEach((socket) => socket.destroy());
  });

  for (const [method, path, status] of [
    ['HEAD', '/metrics', 200],
    ['GET', '/metrics?name=x', 200],
    ['GET', '/healthz', 200],
    ['POST', '/metrics', 404],
    ['GET', '/metrics/', 404],
    ['GET', '/loglevel', 404],
    ['GET', `/${'x'.repeat(7000)}`, 404],
    ['GET', `/${'x'.repeat(20_000)}`, 400],
  ] as const) {
    it(`responds with ${status} to ${method} ${path.slice(0, 20)}`, async () => {
      expect((await fetch(`${url}${path}`, { method })).status).to.equal(status);
    });
  }
});

describe('diagnostics on the port for operations', function () {
  this.timeout(60_000);
  const secret = 'control'.repeat(5);
  const logged: { level: string; msg: string }[] = [];
  const logger = createLogger('info', {}, { write: (line) => void logged.push(JSON.parse(line) as never) });
  const child = logger.child({ service: 'x' });
  const recorded: AuditFacts[] = [];
  const take = (facts: AuditFacts): void => void recorded.push(facts);
  const audit = { record: async (facts: AuditFacts) => take(facts), noteOnce: take };
  let server: ProcessServer;
  let port: number;

  before(async () => {
    server = new ProcessServer(new Health({}), createMetrics(), logger, new Diagnostics(secret, logger, audit));
    port = await freePort();
    await server.listen('127.0.0.1', port);
  });
  after(() => server.close());

  const send = (method: string, path: string, authorization = `Bearer ${secret}`, body?: string) =>
    fetch(`http://127.0.0.1:${port}${path}`, {
      method,
      headers: authorization === '' ? {} : { authorization },
      ...(body === undefined ? {} : { body }),
    });

  for (const [method, path, authorization, body, status] of [
    ['GET', '/loglevel', '', undefined, 401],
    ['GET', '/loglevel', 'Bearer wrong', undefined, 401],
    ['GET', '/loglevel', 'Bearer', undefined, 401],
    ['GET', '/loglevel', `Basic ${secret}`, undefined, 401],
    ['GET', '/loglevel', `Bearer ${secret}x`, undefined, 401],
    ['GET', '/loglevel', `Bearer ${secret.slice(1)}`, undefined, 401],
    ['PUT', '/loglevel', '', '{"level":"debug"}', 401],
    ['POST', '/profile/cpu?seconds=1', '', undefined, 401],
    ['POST', '/profile/heap', '', undefined, 401],
    ['PUT', '/loglevel', `Bearer ${secret}`, '{"level":"loud"}', 400],
    ['PUT', '/loglevel', `Bearer ${secret}`, '{"level":["debug"]}', 400],
    ['PUT', '/loglevel', `Bearer ${secret}`, 'null', 400],
    ['PUT', '/loglevel', `Bearer ${secret}`, 'debug', 400],
    ['PUT', '/loglevel', `Bearer ${secret}`, ' '.repeat(100_000), 400],
    ['PUT', '/loglevel', `Bearer ${secret}`, undefined, 400],
    ['PUT', '/loglevel', `Bearer ${secret}`, '{"level":"info","levle":"debug"}', 400],
    ['GET', '/loglevel?level=debug', `Bearer ${secret}`, undefined, 400],
    ['POST', '/profile/cpu?second=1', `Bearer ${secret}`, undefined, 400],
    ['POST', '/loglevel', `Bearer ${secret}`, undefined, 404],
    ['GET', '/profile/heap', `Bearer ${secret}`, undefined, 404],
    ['POST', '/profile/cpu?seconds=0', `Bearer ${secret}`, undefined, 400],
    ['POST', '/profile/cpu?seconds=61', `Bearer ${secret}`, undefined, 400],
    ['POST', '/profile/cpu?seconds=1.5', `Bearer ${secret}`, undefined, 400],
  ] as const) {
    it(`responds with ${status} to ${method} ${path} ${authorization.slice(0, 12)} ${(body ?? '').slice(0, 20)}`, async () => {
      expect((await send(method, path, authorization, body)).status).to.equal(status);
      expect(logger.level).to.equal('info');
    });
  }

  it('changes the level of the loggers of all services', async () => {
    expect(await (await send('GET', '/loglevel')).json()).to.deep.equal({ level: 'info' });
    child.debug('before');
    const response = await send('PUT', '/loglevel', `bearer ${secret}`, '{"level":"debug"}');
    expect(response.status).to.equal(200);
    expect(await response.json()).to.deep.equal({ level: 'debug' });
    child.debug('after');
    expect(logged.map(({ msg }) => msg)).to.deep.equal(['the log level was changed', 'after']);
    expect(await (await send('GET', '/loglevel')).json()).to.deep.equal({ level: 'debug' });
    await send('PUT', '/loglevel', `Bearer ${secret}`, '{"level":"info"}');
  });

  it('returns a CPU profile, and refuses a second one meanwhile', async () => {
    logged.length = 0;
    const first = send('POST', '/profile/cpu?seconds=1');
    await eventually(() => logged.length === 1);
    const second = await send('POST', '/profile/heap');
    expect(second.status).to.equal(409);
    expect(await second.json()).to.include({ code: 'ABORTED', message: 'another profile is being taken' });
    const profile = (await (await first).json()) as { nodes: unknown[]; startTime: number; endTime: number };
    expect(profile.nodes).not.to.have.length(0);
    expect(profile.endTime - profile.startTime).to.be.at.least(900_000);
  });

  it('ends the CPU profile of a client that has disconnected', async () => {
    logged.length = 0;
    const gone = new AbortController();
    const headers = { authorization: `Bearer ${secret}` };
    const url = `http://127.0.0.1:${port}/profile/cpu?seconds=60`;
    const first = fetch(url, { method: 'POST', headers, signal: gone.signal }).catch(() => undefined);
    await eventually(() => logged.length === 1);
    gone.abort();
    await first;
    await eventually(async () => (await send('POST', '/profile/cpu?seconds=1')).status === 200);
  });

  it('records in the audit log of the platform who took what, and who was refused', async () => {
    recorded.length = 0;
    await send('GET', '/loglevel');
    await send('PUT', '/loglevel', `Bearer ${secret}`, '{"level":"info"}');
    await (await send('POST', '/profile/cpu?seconds=1')).json();
    await send('POST', '/profile/heap', 'Bearer wrong');
    expect(recorded.map(({ tenantId, actor, action, result }) => [tenantId, actor.kind, action, result])).to.deep.equal(
      [
        ['', 'control', 'diagnostics.loglevel', 'OK'],
        ['', 'control', 'diagnostics.profile_cpu', 'OK'],
        ['', 'public', 'diagnostics.profile_heap', 'UNAUTHENTICATED'],
      ],
    );
    expect(recorded[0]).to.include({ address: '127.0.0.1' });
  });

  it('streams a heap snapshot', async () => {
    const response = await send('POST', '/profile/heap');
    const { snapshot, nodes } = (await response.json()) as { snapshot: { node_count: number }; nodes: number[] };
    expect(snapshot.node_count).to.be.above(1000);
    expect(nodes.length % snapshot.node_count).to.equal(0);
  });

  it('releases the heap snapshot of a client that has disconnected', async () => {
    const headers = { authorization: `Bearer ${secret}` };
    await new Promise<void>((resolve, reject) => {
      const request = httpRequest({ port, host: '127.0.0.1', path: '/profile/heap', method: 'POST', headers });
      request.on('error', reject).on('response', (response: IncomingMessage) => {
        response.once('data', () => {
          response.destroy();
          resolve();
        });
      });
      request.end();
    });
    await eventually(async () => (await send('POST', '/profile/cpu?seconds=1')).status === 200);
  });
});
