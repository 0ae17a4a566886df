import { expect } from 'chai';
import { serveHealth, type HealthServer } from './health-server.ts';
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

  it('is ready only while every dependency is healthy, and alive always', async () => {
    expect(await get('/readyz')).to.deep.equal({ status: 200, text: '{"always":"healthy","sometimes":"healthy"}' });
    healthy = false;
    expect(await get('/readyz')).to.deep.equal({
      status: 503,
      text: '{"always":"healthy","sometimes":"unhealthy: gone"}',
    });
    expect((await get('/readyz?exclude=sometimes')).status).to.equal(200);
    expect((await get('/healthz')).status).to.equal(200);
  });

  it('shows the metrics', async () => {
    expect((await get('/metrics')).text).to.include('workqueue_depth');
    expect((await get('/other')).status).to.equal(404);
  });
});
