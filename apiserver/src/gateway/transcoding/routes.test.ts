import { Access_Caller } from '@kellet/proto/es/kellet/v1/options_pb';
import { expect } from 'chai';
import { parsePermission } from '../../auth/credentials/kubernetes-token.ts';
import { publicServices } from '../services.ts';
import { accessOf, RouteTable } from './routes.ts';

describe('route table of the contract', () => {
  const table = new RouteTable(publicServices);
  const found = (verb: string, path: string): string | undefined => {
    const match = table.match(verb, path);
    if (!match) return undefined;
    const variables = [...match.variables].map(([name, value]) => `${name}=${value}`);
    return [match.route.method.name, ...variables].join(' ');
  };

  for (const [verb, path, want] of [
    ['POST', '/api/v1/auth/login', 'Login'],
    ['GET', '/api/v1/devices/d1', 'GetDevice device_id=d1'],
    ['PATCH', '/api/v1/devices/d1', 'UpdateDevice device_id=d1'],
    ['GET', '/api/v1/devices/d1/rpc', 'ListRpcs device_id=d1'],
    ['GET', '/api/v1/devices/d1/rpc/pending', 'ListPendingRpcs device_id=d1'],
    // A literal takes precedence over a variable, and a dead end falls back to the variable.
    ['GET', '/api/v1/devices/rpc/c1', 'GetRpc correlation_id=c1'],
    ['GET', '/api/v1/devices/rpc/rpc/pending', 'ListPendingRpcs device_id=rpc'],
    ['GET', '/api/v1/devices/rpc/attributes', 'GetRpc correlation_id=attributes'],
    ['PATCH', '/api/v1/devices/rpc/attributes', 'UpdateAttributes device_id=rpc'],
    ['GET', '/api/v1/telemetry/metrics', 'GetMetrics'],
    ['GET', '/api/v1/telemetry/metrics/latest', 'GetLatest device_id=metrics'],
    ['GET', '/api/v1/telemetry/d1', 'GetHistory device_id=d1'],
    ['POST', '/api/v1/ota/rollouts/plan', 'PlanRollout'],
    ['GET', '/api/v1/ota/rollouts/plan', 'GetRollout rollout_id=plan'],
    ['POST', '/api/v1/ota/rollouts/r1/pause', 'PauseRollout rollout_id=r1'],
    ['GET', '/api/v1/verify/hash/00ff', 'VerifyHash data_hash_hex=00ff'],
    ['GET', '/api/v1/auth/sso/acme/start', 'StartSso provider=acme'],
    ['POST', '/api/v1/auth/sso/acme/backchannel-logout', 'BackchannelLogout provider=acme'],
    ['GET', '/api/v1/auth/sso/providers/acme', 'GetSsoProvider provider=acme'],
    ['GET', '/api/v1/devices/a%20b', 'GetDevice device_id=a b'],
    ['GET', '/api/v1/devic%65s/d1', 'GetDevice device_id=d1'],
    ['GET', '/api/v1/devices/%zz', 'GetDevice device_id=undefined'],
    ['GET', '/api/v1/devices/a:b', 'GetDevice device_id=a:b'],
    // No match: another method, a trailing slash, an empty segment, another case, no prefix.
    ['PUT', '/api/v1/devices/d1', undefined],
    ['get', '/api/v1/devices/d1', undefined],
    ['GET', '/api/v1/devices/', undefined],
    ['GET', '/api/v1/devices/d1/', undefined],
    ['GET', '/api/v1//devices', undefined],
    ['GET', '//api/v1/devices', undefined],
    ['GET', '/API/v1/devices', undefined],
    ['GET', '/devices', undefined],
    ['GET', '/', undefined],
    ['GET', '', undefined],
    ['GET', 'http://other/api/v1/devices', undefined],
  ] as const) {
    it(`${verb} ${path} → ${want}`, () => expect(found(verb, path)).to.equal(want));
  }

  it('grants Kubernetes identities access by permissions that exist in RBAC', () => {
    const methods = publicServices.flatMap((service) => service.methods);
    const open = methods.filter((method) => accessOf(method).kubernetesPermission !== '');
    expect(open).to.have.length.above(20);
    for (const method of open) {
      const { kubernetesPermission, scope } = accessOf(method);
      const permission = parsePermission(kubernetesPermission);
      expect(permission, method.name).not.to.equal(undefined);
      // Reading methods must have reading verbs and vice versa: a harmless verb must never grant write access.
      const isReading = permission!.verb === 'get' || permission!.verb === 'list';
      expect(scope.endsWith(':write'), method.name).to.equal(!isReading);
    }
  });

  it('defines the callers of every public method, under /api/v1 but for the well-known address of the signing keys', () => {
    for (const service of publicServices) {
      for (const method of service.methods) expect(accessOf(method).callers, method.name).to.have.length.above(0);
    }
    for (const route of table.routes.filter(({ method }) => method.name !== 'GetJwks')) {
      const [first, second] = route.template.segments;
      expect([first, second], route.method.name).to.deep.equal([
        { kind: 'literal', text: 'api' },
        { kind: 'literal', text: 'v1' },
      ]);
    }
  });

  it('requires no credential for exactly the public routes', () => {
    const open = publicServices
      .flatMap((service) => service.methods)
      .filter((method) => accessOf(method).callers.includes(Access_Caller.PUBLIC))
      .map((method) => method.name);
    expect(open).to.have.members([
      'Login',
      'Refresh',
      'GetJwks',
      'BeginWebauthnLogin',
      'FinishWebauthnLogin',
      'VerifyMfa',
      'StartSso',
      'FinishSso',
      'BackchannelLogout',
      'ClaimDevice',
    ]);
  });

  it('names a request field wherever it names a device', () => {
    for (const method of publicServices.flatMap((service) => service.methods)) {
      const { deviceField } = accessOf(method);
      if (deviceField !== '') {
        expect(
          method.input.fields.map((field) => field.name),
          method.name,
        ).to.include(deviceField);
      }
    }
  });
});
