import { expect } from 'chai';
import { readConfig } from './config.ts';

const required = {
  KELLET_DATABASE_URL: 'postgres://x',
  KELLET_NATS_URL: 'nats://x',
  KELLET_CONTROL_SECRET: 'control'.repeat(5),
  KELLET_JWT_PRIVATE_KEY: 'k',
  KELLET_CALLBACK_HMAC_SECRET: 'h',
};
const read = (environment: Record<string, string>, flags: string[] = []) =>
  readConfig({ ...required, ...environment }, flags);

describe('configuration', () => {
  it('reports all missing settings', () => {
    expect(() => readConfig({}, []))
      .to.throw(/KELLET_DATABASE_URL is required/)
      .with.property('message')
      .contain('KELLET_CALLBACK_HMAC_SECRET is required');
  });

  it('rejects a control secret that could be guessed', () => {
    const read31 = () => read({ KELLET_CONTROL_SECRET: 'x'.repeat(31) });
    expect(read31).to.throw('KELLET_CONTROL_SECRET must have at least 32 characters');
    expect(() => read({ KELLET_CONTROL_SECRET: 'x'.repeat(32) })).not.to.throw();
  });

  it('prefers a flag to the environment', () => {
    expect(read({ KELLET_REST_PORT: '1' }, ['--rest-port=2'])).to.include({ restPort: 2, grpcPort: 9090 });
  });

  for (const [given, want] of [
    ['', ''],
    ['https://dashboard.test', 'https://dashboard.test'],
    ['https://Dashboard.TEST/', 'https://dashboard.test'],
    ['https://dashboard.test:443', 'https://dashboard.test'],
    ['http://127.0.0.1:8081', 'http://127.0.0.1:8081'],
  ] as const) {
    it(`takes the dashboard's origin ${JSON.stringify(given)} as browsers write it`, () => {
      expect(read({ KELLET_DASHBOARD_ORIGIN: given }).dashboardOrigin).to.equal(want);
    });
  }

  const local = { KELLET_NETWORK: 'local', KELLET_ENVIRONMENT: 'development' };
  for (const [what, environment, message] of [
    ['an origin with a path', { KELLET_DASHBOARD_ORIGIN: 'https://dashboard.test/app' }, 'must be an origin'],
    ['any origin', { KELLET_DASHBOARD_ORIGIN: '*' }, 'must be an origin'],
    ['the origin null', { KELLET_DASHBOARD_ORIGIN: 'null' }, 'must be an origin'],
    ['an origin with a password', { KELLET_DASHBOARD_ORIGIN: 'https://a:b@dashboard.test' }, 'must be an origin'],
    ['a proxy that is not an address', { KELLET_TRUSTED_PROXIES: '10.0.0.0/8, proxy.test' }, '"proxy.test"'],
    ['a proxy range too long', { KELLET_TRUSTED_PROXIES: '10.0.0.0/33' }, '"10.0.0.0/33"'],
    ['a malformed port', { KELLET_REST_PORT: 'x' }, 'KELLET_REST_PORT must be a whole number'],
    [
      'unsigned callbacks on the main network',
      { KELLET_CALLBACK_SKIP_VALIDATION: 'true', KELLET_ENVIRONMENT: 'development' },
      'SKIP_VALIDATION',
    ],
    [
      'unsigned callbacks on the test network',
      { ...local, KELLET_CALLBACK_SKIP_VALIDATION: '1', KELLET_NETWORK: 'test' },
      'SKIP_VALIDATION',
    ],
    [
      'unsigned callbacks in production',
      { ...local, KELLET_CALLBACK_SKIP_VALIDATION: 'true', KELLET_ENVIRONMENT: 'production' },
      'SKIP_VALIDATION',
    ],
    ['a funding service on the main network', { KELLET_FUNDING_URL: 'http://127.0.0.1:1' }, 'FUNDING_URL'],
    ['a URL as a host of artifacts', { KELLET_ARTIFACT_HOSTS: 'a.test,https://b.test' }, '"https://b.test" is a URL'],
    [
      'all addresses as hosts of artifacts',
      { KELLET_ARTIFACT_HOSTS: '0.0.0.0/0' },
      'KELLET_ARTIFACT_HOSTS: "0.0.0.0/0"',
    ],
    ['artifacts of more than 4 GiB', { KELLET_ARTIFACT_MAX_BYTES: '4294967296' }, 'from 1 to 4294967295'],
    ['cold storage in a database', { KELLET_COLD_URL: 'postgres' }, 'KELLET_COLD_URL must have the form file:///'],
    ['cold storage in S3 without keys', { KELLET_COLD_URL: 's3://cold' }, 'KELLET_COLD_URL in S3 needs'],
    ['hours that are not a number', { KELLET_HOT_HOURS: '1e3' }, 'KELLET_HOT_HOURS must be a number'],
    ['negative hours', { KELLET_HOT_HOURS: '-1' }, 'KELLET_HOT_HOURS must be a number'],
    ['no concurrent artifact', { KELLET_ARTIFACT_TRANSFERS: '0' }, 'KELLET_ARTIFACT_TRANSFERS must be from 1'],
  ] as const) {
    it(`rejects ${what}`, () => expect(() => read(environment)).to.throw(message));
  }

  it('accepts hosts of artifacts, in production too', () => {
    const artifactHosts = 'artifacts.internal, *.build.internal:8443,10.1.0.0/16,[fd00::1]:80';
    expect(read({ KELLET_ARTIFACT_HOSTS: artifactHosts })).to.include({
      artifactHosts,
      artifactMaxBytes: 4_294_967_295,
    });
  });

  it('accepts unsigned callbacks on the local network if configured', () => {
    expect(read(local).callbackSkipValidation).to.equal(false);
    expect(read({ ...local, KELLET_CALLBACK_SKIP_VALIDATION: 'true' }).callbackSkipValidation).to.equal(true);
  });
});
