import type { DescService } from '@bufbuild/protobuf';
import { AuthService, ValidateTokenResponse_Kind as Kind } from '@kellet/proto/es/kellet/v1/auth_pb';
import { Access_Caller, Access_CustomerAccess } from '@kellet/proto/es/kellet/v1/options_pb';
import { OtaService } from '@kellet/proto/es/kellet/v1/ota_pb';
import { VerifierService } from '@kellet/proto/es/kellet/v1/verifier_pb';
import { expect } from 'chai';
import { chainAllOf } from '../../platform/audit/audit-chain.ts';
import type { ChainedEvent } from '../../platform/audit/audit-event.ts';
import { type AuditFilters, listEvents } from '../../platform/audit/audit-store.ts';
import { systemClock } from '../../platform/clock.ts';
import { KelletError, notFound, permissionDenied } from '../../platform/errors.ts';
import { newId } from '../../platform/ids.ts';
import type { Implementation } from '../../platform/rpc.ts';
import { allScopes } from '../../platform/scopes.ts';
import { eventually } from '../../platform/testing/eventually.ts';
import { publicServices } from '../services.ts';
import { startTestGateway, type TestGateway } from '../testing/test-gateway.ts';
import type { Route } from '../transcoding/routes.ts';
import { isAudited } from './audited-calls.ts';

/** A response for every method: nothing. */
async function* nothing(requests: AsyncIterable<object>): AsyncGenerator<object> {
  for await (const request of requests) void request;
  yield {};
}
const drained = async (requests: AsyncIterable<object>) => {
  for await (const request of requests) void request;
  return {};
};

describe('the audit log of the gateway', function () {
  this.timeout(60_000);
  let server: TestGateway;

  before(async () => {
    server = await startTestGateway((registry) => {
      for (const service of publicServices) {
        const handlers = service.methods.map((method) => {
          const isUnary = method.methodKind === 'unary';
          const handler = isUnary ? async () => ({}) : method.methodKind === 'client_streaming' ? drained : nothing;
          return [method.localName, handler] as const;
        });
        const others = handlers.filter(([name]) => name !== 'validateToken');
        registry.register(service, Object.fromEntries(others) as unknown as Implementation<DescService>);
      }
      registry.register(VerifierService, {
        verifyHash: async ({ includeBundle }) => (includeBundle ? Promise.reject(permissionDenied('no')) : {}),
      });
      registry.register(AuthService, {
        deleteUser: async () => Promise.reject(notFound('user')),
        createUser: async () => ({ userId: 'u7' }),
        updateUser: async () => Promise.reject(new KelletError('CANCELLED', 'the caller has disconnected')),
      });
    });
    const scopes = [...allScopes];
    const common = { valid: true, tenantId: 'acme', scopes, kind: Kind.user, rateLimitPerMinute: 100_000 };
    server.tokens.set('all', { ...common, userId: 'u9', name: 'ann@acme.test' });
    server.tokens.set('key', { ...common, kind: Kind.service, userId: '', keyId: 'k9', name: 'importer' });
    const limitedGrants = [{ scopes, deviceGroupIds: [newId()] }];
    server.tokens.set('limited', { ...common, userId: 'u11', scopes: [], limitedGrants });
    server.tokens.set('flooding', { ...common, tenantId: 'flooded', userId: 'u10' });
    server.tokens.set('nothing', { ...common, userId: 'u6', scopes: [] });
    server.tokens.set('reader', { ...common, userId: 'u8', scopes: scopes.filter((scope) => /:read$/.test(scope)) });
  });
  after(() => server.stop());

  const noFilters: AuditFilters = {
    actor: '',
    action: '',
    resourceId: '',
    result: '',
    start: undefined,
    end: undefined,
  };
  const events = async (tenantId = 'acme', filters: Partial<AuditFilters> = {}): Promise<ChainedEvent[]> => {
    const { database } = server.testDatabase;
    await chainAllOf(database, systemClock, tenantId);
    const all = await database.systemRead((tx) =>
      listEvents(tx, tenantId, { ...noFilters, ...filters }, undefined, 10_000),
    );
    return all.map(({ event }) => event);
  };
  const send = (verb: string, path: string, token: string, more: RequestInit = {}) =>
    fetch(`${server.rest}/api/v1/${path}`, {
      method: verb,
      headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json', 'user-agent': 'walk' },
      body: verb === 'GET' || verb === 'DELETE' ? undefined : '{}',
      ...more,
    });
  const walk = async (routes: readonly Route[], token: string) => {
    for (const { verb, path } of routes) {
      const response = await send(verb, path.replace('/api/v1/', '').replace(/\{\w+\}/g, 'x'), token);
      await response.text();
    }
  };
  const recorded = () => server.gateway.routes.routes.filter(isAudited);
  const actionsOf = (routes: readonly Route[]) =>
    routes.map(({ method }) => `${method.parent.name}/${method.name}`).sort();
  const mayCall = (kind: Access_Caller) => recorded().filter(({ access }) => access.callers.includes(kind));

  it('has every call that changes something, whoever makes it', async () => {
    const { USER: user, PLATFORM: platform } = Access_Caller;
    await walk(mayCall(user), 'all');
    await walk(mayCall(platform), 'platform');
    const seen = async (tenantId: string) => (await events(tenantId)).map(({ action }) => action).sort();
    await eventually(async () => (await seen('acme')).length === mayCall(user).length);
    expect(await seen('acme')).to.deep.equal(actionsOf(mayCall(user)));
    await eventually(async () => (await seen('')).length === mayCall(platform).length);
    expect(await seen('')).to.deep.equal(actionsOf(mayCall(platform)));
  });

  it('has every denied attempt to change something', async () => {
    const scoped = mayCall(Access_Caller.USER).filter(({ access }) => access.scope !== '');
    await walk(scoped, 'reader');
    const refused = () => events('acme', { actor: 'u8', result: 'PERMISSION_DENIED' });
    await eventually(async () => (await refused()).length === scoped.length);
    expect((await refused()).map(({ action }) => action).sort()).to.deep.equal(actionsOf(scoped));
    const [deletion] = (await refused()).filter(({ action }) => action === 'DeviceRegistryService/DeleteDevice');
    expect(deletion!.resource).to.deep.equal({ kind: 'device', id: 'x' });
  });

  it('has attempts to change a device that a limited caller must not know of, which are NOT_FOUND', async () => {
    const ownDevice = Access_CustomerAccess.OWN_DEVICE;
    const ofDevices = mayCall(Access_Caller.USER).filter(
      ({ access, path }) => access.customerAccess === ownDevice && path.includes('{device_id}'),
    );
    expect(ofDevices.length).to.be.greaterThan(2);
    for (const { verb, path } of ofDevices) {
      const response = await send(verb, path.replace('/api/v1/', '').replace('{device_id}', newId()), 'limited');
      expect(response.status, path).to.equal(404);
      await response.text();
    }
    const tried = () => events('acme', { actor: 'u11', result: 'NOT_FOUND' });
    await eventually(async () => (await tried()).length === ofDevices.length);
    expect((await tried()).map(({ action }) => action).sort()).to.deep.equal(actionsOf(ofDevices));
  });

  it('has refused attempts to read, the same ones once a minute', async () => {
    const reading = server.gateway.routes.routes.filter(
      ({ access, verb }) => verb === 'GET' && access.scope !== '' && access.callers.includes(Access_Caller.USER),
    );
    for (let times = 0; times < 3; times += 1) await walk(reading, 'nothing');
    const refused = () => events('acme', { actor: 'u6', result: 'PERMISSION_DENIED' });
    await eventually(async () => (await refused()).length >= reading.length);
    const actions = (await refused()).map(({ action }) => action);
    expect([...new Set(actions)].sort()).to.deep.equal(actionsOf(reading));
    // A minute may have passed meanwhile.
    expect(actions.length).to.be.below(2.5 * reading.length);
  });

  it('has attempts to read that are refused by what they are about, the same ones once a minute', async () => {
    for (const query of ['', '?include_bundle=true', '?include_bundle=true'])
      await send('GET', `verify/hash/${'0'.repeat(64)}${query}`, 'all');
    const refused = () => events('acme', { actor: 'u9', action: 'VerifierService/VerifyHash' });
    await eventually(async () => (await refused()).length > 0);
    expect((await refused()).map(({ result }) => result)).to.deep.equal(['PERMISSION_DENIED']);
  });

  it('says who did what, from where and with which result', async () => {
    const headers = { authorization: 'Bearer key', 'content-type': 'application/json' };
    const mark = { 'user-agent': 'tool/1', 'x-request-id': 'request-1' };
    await send('POST', 'auth/users', 'key', {
      headers: { ...headers, ...mark },
      body: '{"email":"eve@acme.test","password":"hidden password"}',
    });
    const [event] = await events('acme', { actor: 'k9' });
    expect(event).to.deep.include({
      actor: { kind: 'service', id: 'k9', name: 'importer' },
      action: 'AuthService/CreateUser',
      resource: { kind: 'user', id: 'u7' },
      result: 'OK',
      address: '127.0.0.1',
      userAgent: 'tool/1',
      requestId: 'request-1',
    });
    expect(JSON.stringify(event)).not.to.contain('hidden');
    await send('DELETE', 'auth/users/u5', 'key');
    await eventually(async () => (await events('acme', { actor: 'k9', result: 'NOT_FOUND' })).length === 1);
  });

  it('has changes whose outcome is unknown, also while refused attempts are left out because there are too many', async () => {
    for (let sent = 0; sent < 1200; sent += 100)
      await Promise.all(
        Array.from({ length: 100 }, async () => (await send('DELETE', 'auth/users/u5', 'flooding')).arrayBuffer()),
      );
    await (await send('PATCH', 'auth/users/u5', 'flooding')).arrayBuffer();
    const made = () => events('flooded', { result: 'CANCELLED' });
    await eventually(async () => (await made()).length === 1);
    expect((await made())[0]!.action).to.equal('AuthService/UpdateUser');
    expect((await events('flooded', { result: 'NOT_FOUND' })).length).to.be.below(2001);
  });

  it('has no reads, telemetry or routine calls of devices, but calls that devices must not make', async () => {
    const before = (await events()).length;
    await send('GET', 'devices', 'all');
    await send('GET', 'devices', 'nobody');
    await send('POST', 'telemetry', 'all');
    await send('PATCH', 'devices/d1/attributes', 'device');
    await send('PATCH', 'devices/d2/attributes', 'device');
    await send('POST', 'devices/d1/ota/report', 'device');
    await send('DELETE', 'devices/d1', 'device');
    await eventually(async () => (await events()).length === before + 1);
    const [event] = await events();
    expect(event).to.deep.include({
      actor: { kind: 'device', id: 'd1', name: '' },
      action: 'DeviceRegistryService/DeleteDevice',
      result: 'PERMISSION_DENIED',
    });
  });
});

for (const [where, split] of [
  ['this process', false],
  ['another process', true],
] as const) {
  describe(`the audit log of calls that ${where} refuses after a change`, function () {
    this.timeout(60_000);
    let server: TestGateway;
    /** What a call does before it is refused. */
    let work: () => Promise<unknown> = () => Promise.resolve();

    before(async () => {
      const refused = async () => {
        await work();
        throw notFound('user');
      };
      server = await startTestGateway(
        (registry) => {
          registry.register(AuthService, { deleteUser: refused });
          registry.register(OtaService, {
            uploadArtifact: async (requests) => {
              for await (const request of requests) if (request.content?.data.length) return refused();
              return {};
            },
          });
        },
        { split },
      );
      const all = { valid: true, scopes: [...allScopes], kind: Kind.user, userId: 'u1', rateLimitPerMinute: 100_000 };
      server.tokens.set('all', { ...all, tenantId: 'acme' });
      // From now on refused attempts of the user are left out.
      for (let sent = 0; sent < 1000; sent += 100)
        await Promise.all(Array.from({ length: 100 }, () => deleteUser('u5')));
      const { database } = server.testDatabase;
      await database.system((tx) => tx.query('CREATE TABLE made (tenant_id text)'));
      await database.system((tx) => tx.query('GRANT ALL ON made TO kellet_tenant'));
    });
    after(() => server.stop());
    beforeEach(() => (work = () => Promise.resolve()));

    const send = async (verb: string, path: string, body?: string) => {
      const headers = { authorization: 'Bearer all' };
      const response = await fetch(`${server.rest}/api/v1/${path}`, { method: verb, headers, body });
      await response.arrayBuffer();
      return response.status;
    };
    const deleteUser = (userId: string) => send('DELETE', `auth/users/${userId}`);
    const upload = (packageId: string) => send('PUT', `ota/packages/${packageId}/artifact`, 'bytes');
    const count = async (id: string) => {
      const { database } = server.testDatabase;
      await chainAllOf(database, systemClock, 'acme');
      const { rows } = await database.systemRead((tx) =>
        tx.query<{ count: number }>(
          `SELECT count(*)::int4 FROM audit_events WHERE tenant_id = 'acme' AND resource_id = $1 AND result = 'NOT_FOUND'`,
          [id],
        ),
      );
      return rows[0]!.count;
    };
    /** Resolves once each of five calls is recorded; among refused attempts one in 17 seconds would be. */
    const expectRecorded = async (call: (id: string) => Promise<number>, id: string) => {
      for (let times = 0; times < 5; times += 1) expect(await call(id)).to.equal(404);
      await eventually(async () => (await count(id)) === 5);
    };
    const insert = `INSERT INTO made VALUES ('acme')`;
    const transactions: readonly [name: string, run: () => Promise<unknown>][] = [
      ['transaction', () => server.testDatabase.database.tenant('acme', (tx) => tx.query(insert))],
      ['frequent', () => server.testDatabase.database.frequent('acme', (tx) => tx.query(insert))],
      ['system', () => server.testDatabase.database.system((tx) => tx.query(insert))],
    ];
    it('has every one that has changed something, also while refused attempts are left out', async () => {
      for (const [name, run] of transactions) {
        work = run;
        await expectRecorded(deleteUser, name);
      }
    });

    it('has uploads that have changed something', async () => {
      work = () => server.testDatabase.database.tenant('acme', (tx) => tx.query(insert));
      await expectRecorded(upload, 'uploaded');
    });

    it('leaves those out that have only read, or have rolled back what they have written', async () => {
      const { database } = server.testDatabase;
      work = async () => {
        await database.tenant('acme', (tx) => tx.query('SELECT FROM made'));
        await database.read('acme', (tx) => tx.query('SELECT FROM made'));
        const failed = database.tenant('acme', async (tx) => {
          await tx.query(insert);
          throw notFound('anything');
        });
        await failed.catch(() => undefined);
      };
      for (let times = 0; times < 20; times += 1) expect(await deleteUser('left')).to.equal(404);
      work = () => database.tenant('acme', (tx) => tx.query(insert));
      await expectRecorded(deleteUser, 'changed');
      expect(await count('left')).to.be.below(10);
    });
  });
}
