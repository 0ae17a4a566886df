import { connect } from 'node:net';
import { text } from 'node:stream/consumers';
import { expect } from 'chai';
import { type HealthServer, readiness, serveHealth } from './health-server.ts';
import { createMetrics } from './metrics.ts';

describe('serveHealth', () => {
  let server: HealthServer;
  let healthy = true;
  before(async () => {
    const checks = {
      always: () => undefined,
      sometimes: async () => {
        if (!healthy) throw new Error('gone');
      },
    };
    server = await serveHealth({ host: '127.0.0.1', port: 0, registry: createMetrics().registry, checks });
  });
  after(() => server.close());

  const get = async (path: string) => {
    const response = await fetch(`http://127.0.0.1:${server.port}${path}`);
    return { status: response.status, text: await response.text() };
  };

  it('is ready only while all dependencies are healthy, but always alive', async () => {
    expect(await get('/readyz')).to.deep.equal({ status: 200, text: '{"always":"healthy","sometimes":"healthy"}' });
    healthy = false;
    expect(await get('/readyz')).to.deep.equal({
      status: 503,
      text: '{"always":"healthy","sometimes":"unhealthy: gone"}',
    });
    expect((await get('/readyz?exclude=sometimes')).status).to.equal(200);
    expect((await get('/healthz')).status).to.equal(200);
  });

  it('handles any request target, times out slow checks, and redacts addresses', async () => {
    const { port } = server;
    for (const target of ['//', '*', '/%', 'http://', 'http://[/readyz', '/readyz?exclude=%']) {
      const socket = connect(port, '127.0.0.1');
      socket.end(`GET ${target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n`);
      expect(await text(socket), target).to.match(/^HTTP\/1\.1 (200|400|404|503) /);
    }
    const checks = {
      slow: () => new Promise<void>(() => undefined),
      chatty: () => Promise.reject(new Error('connect ECONNREFUSED 10.0.0.1:9091')),
    };
    expect(await readiness(checks, [])).to.deep.equal({
      ready: false,
      report: { slow: 'unhealthy: no response within 1000 ms', chatty: 'unhealthy: connect ECONNREFUSED …' },
    });
  });

  it('serves the metrics', async () => {
    expect((await get('/metrics')).text).to.include('workqueue_depth');
    expect((await get('/other')).status).to.equal(404);
  });
});
