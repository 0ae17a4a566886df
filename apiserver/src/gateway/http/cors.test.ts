// Cross-origin access as browsers use it.
import { DeviceRegistryService } from '@kellet/proto/es/kellet/v1/device_registry_pb';
import { expect } from 'chai';
import { startTestGateway, type TestGateway } from '../testing/test-gateway.ts';

describe('cross-origin access', () => {
  const origin = 'https://dashboard.test';
  let server: TestGateway;
  before(async () => {
    server = await startTestGateway((registry) =>
      registry.register(DeviceRegistryService, {
        getDevice: async ({ deviceId }) => {
          if (deviceId === 'bug') throw new Error('broken');
          return { deviceId };
        },
      }),
    );
  });
  after(() => server.stop());

  const granted = (headers: Headers) =>
    [...headers].filter(([name]) => name.startsWith('access-control-')).map(([name]) => name);

  const listOf = (text: string | null) => text!.split(', ');

  for (const path of [
    '/api/v1/devices/d1',
    '/api/v1/devices/bug',
    '/nowhere',
    '/healthz',
    '/readyz',
    '/api/v1/auth/login',
  ]) {
    it(`is granted to the dashboard on ${path}, whatever the response`, async () => {
      const { headers } = await fetch(`${server.rest}${path}`, { headers: { origin, 'x-api-key': 'viewer' } });
      expect(granted(headers)).to.deep.equal(['access-control-allow-origin', 'access-control-expose-headers']);
      expect(headers.get('access-control-allow-origin')).to.equal(origin);
      expect(headers.get('vary')).to.equal('origin');
      expect(listOf(headers.get('access-control-expose-headers'))).to.include.members([
        'x-request-id',
        'retry-after',
        'x-ratelimit-limit',
        'x-ratelimit-remaining',
        'x-ratelimit-reset',
      ]);
    });

    it(`is granted by preflight on ${path}, without a credential`, async () => {
      const { status, headers } = await fetch(`${server.rest}${path}`, {
        method: 'OPTIONS',
        headers: {
          origin,
          'access-control-request-method': 'DELETE',
          'access-control-request-headers': 'authorization',
        },
      });
      expect(status).to.equal(204);
      expect(headers.get('access-control-allow-origin')).to.equal(origin);
      expect(listOf(headers.get('access-control-allow-methods'))).to.include.members([
        'GET',
        'POST',
        'PUT',
        'PATCH',
        'DELETE',
      ]);
      expect(listOf(headers.get('access-control-allow-headers'))).to.include.members([
        'authorization',
        'content-type',
        'x-api-key',
        'x-request-id',
        'idempotency-key',
        'traceparent',
        'range',
      ]);
      expect(Number(headers.get('access-control-max-age'))).to.be.within(1, 86_400);
      expect(headers.get('vary')).to.equal('origin');
      // Tokens travel in a header set by the dashboard; any page could send a cookie.
      expect(headers.has('access-control-allow-credentials')).to.equal(false);
      expect(headers.has('x-ratelimit-limit')).to.equal(false);
    });
  }

  for (const other of [
    'null',
    'https://evil.test',
    'http://dashboard.test',
    'https://dashboard.test:444',
    'https://DASHBOARD.test',
    'https://dashboard.test/',
    'https://dashboard.test.evil.test',
    'https://evil.test,https://dashboard.test',
    '*',
    '',
  ]) {
    it(`is denied to ${JSON.stringify(other)}`, async () => {
      for (const init of [
        { headers: { origin: other, 'x-api-key': 'viewer' } },
        { method: 'OPTIONS', headers: { origin: other, 'access-control-request-method': 'GET' } },
      ]) {
        const { headers } = await fetch(`${server.rest}/api/v1/devices/d1`, init);
        expect(granted(headers)).to.deep.equal([]);
        expect(headers.get('vary')).to.equal('origin');
      }
    });
  }

  it('is denied to every origin unless one is configured', async () => {
    const closed = await startTestGateway(() => undefined, { environment: { KELLET_DASHBOARD_ORIGIN: '' } });
    try {
      for (const asking of ['null', origin, '']) {
        const { headers } = await fetch(`${closed.rest}/healthz`, { headers: { origin: asking } });
        expect(granted(headers)).to.deep.equal([]);
      }
    } finally {
      await closed.stop();
    }
  });
});
