// Liveness, readiness and metrics of both programs.
import { expect } from 'chai';
import { Rest } from '../../dev/clients/rest.ts';
import { stack } from '../../dev/stack/testing/test-stack.ts';
import { anonymous } from '../testing/fixtures.ts';

describe('health and readiness', () => {
  const servers = () => ({
    'the REST port': anonymous(),
    'the data plane': new Rest(stack().info.metrics),
    'the operator': new Rest(stack().operatorMetrics),
  });

  it('serves /healthz and /readyz without authentication on every server', async () => {
    for (const [name, rest] of Object.entries(servers())) {
      for (const path of ['/healthz', '/readyz']) {
        const { status, headers } = await rest.send('GET', path);
        expect(status, `${name} ${path}`).to.equal(200);
        expect(headers.has('x-ratelimit-limit'), `${name} ${path}`).to.equal(false);
      }
    }
  });

  it('reports the health of each dependency of the data plane', async () => {
    const { body } = await anonymous().send('GET', '/readyz');
    const auth = stack().isSplit ? { auth: 'healthy' } : {};
    expect(body).to.deep.equal({ postgres: 'healthy', nats: 'healthy', ...auth });
  });

  it('serves metrics of both programs', async () => {
    for (const rest of [new Rest(stack().info.metrics), new Rest(stack().operatorMetrics)]) {
      const { status, body } = await rest.send<string>('GET', '/metrics');
      expect(status).to.equal(200);
      expect(body).to.match(/^# TYPE (kellet|svc)_/m);
    }
  });

  it('does not serve metrics on the public port', async () => {
    expect((await anonymous().send('GET', '/metrics')).status).to.equal(404);
  });
});
