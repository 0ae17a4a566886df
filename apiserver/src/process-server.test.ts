import { expect } from 'chai';
import { createServer, connect, type AddressInfo } from 'node:net';
import { Health } from './gateway/http/health.ts';
import { createLogger } from './platform/observability/logger.ts';
import { createMetrics, Gauge } from './platform/observability/metrics.ts';
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

  it('collects metrics anew for each scrape', async () => {
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
