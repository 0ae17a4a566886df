// Revoking credentials that gateways have cached, with the real auth service behind two gateways.
import { once } from 'node:events';
import { type IncomingMessage, request as httpRequest } from 'node:http';
import { connect as connectHttp2, type IncomingHttpHeaders } from 'node:http2';
import { create } from '@bufbuild/protobuf';
import { Client, credentials, Metadata, status } from '@grpc/grpc-js';
import { ObjectMetaSchema } from '@kellet/proto/es/kellet/control/v1/control_pb';
import { User_Role } from '@kellet/proto/es/kellet/v1/auth_pb';
import { DeviceLinkService, ListPendingRpcsRequestSchema } from '@kellet/proto/es/kellet/v1/device_link_pb';
import {
  CreateDeviceRequestSchema,
  DeviceRegistryService,
  ExportDevicesRequestSchema,
} from '@kellet/proto/es/kellet/v1/device_registry_pb';
import { OtaService, UploadArtifactRequestSchema } from '@kellet/proto/es/kellet/v1/ota_pb';
import { expect } from 'chai';
import { mintDeviceKey, revokeDeviceKeys } from '../../auth/device-credentials/device-keys.ts';
import { method, TestAuth } from '../../auth/testing/test-auth.ts';
import { deviceCredentials, insertTenant } from '../../auth/testing/test-fixtures.ts';
import { MovableClock, testPlatform } from '../../auth/testing/test-platform.ts';
import { insertCustomer } from '../../device-registry/entities/customers.ts';
import { sleep } from '../../platform/clock.ts';
import { Database } from '../../platform/database/database.ts';
import { grpcService } from '../../platform/grpc/grpc-service.ts';
import { newId } from '../../platform/ids.ts';
import { createLogger } from '../../platform/observability/logger.ts';
import { type Caller, publicCaller, type ServiceRegistry } from '../../platform/rpc.ts';
import { eventually } from '../../platform/testing/eventually.ts';
import { TcpProxy } from '../../platform/testing/test-tcp-proxy.ts';
import { TenantApplier } from '../../tenants/tenant-applier.ts';
import { startTestGateway, type TestGateway } from '../testing/test-gateway.ts';
import { frame } from '../testing/test-grpc.ts';

const platformAdmin: Caller = { ...publicCaller, kind: 'platform', userId: 'root' };
const heartbeatMilliseconds = 200;

describe('a credential', () => {
  const one = TestAuth.define();
  const gateways: TestGateway[] = [];
  let proxy: TcpProxy;
  let remote: Database;
  let validations: number;
  let changing = 0;
  let created = 0;
  let arrived = 0;
  let tenant: string;
  let applier: TenantApplier;

  before(async () => {
    applier = new TenantApplier(testPlatform(one.test.database, new MovableClock()));
    proxy = await TcpProxy.before(one.test.url);
    remote = new Database(proxy.through(one.test.url), createLogger('silent'), { heartbeatMilliseconds });
    const untilAborted = async (signal: AbortSignal) => {
      changing += 1;
      await once(AbortSignal.any([signal, AbortSignal.timeout(10_000)]), 'abort');
      return {};
    };
    const register = (registry: ServiceRegistry): void => {
      one.register(registry);
      const unary = registry.unary.bind(registry);
      registry.unary = (asked, request, context) => {
        if (asked.name === 'ValidateToken') validations += 1;
        return unary(asked, request, context);
      };
      registry.register(DeviceLinkService, {
        listPendingRpcs: async ({ waitSeconds }, context) => {
          const ended = AbortSignal.any([context.signal, AbortSignal.timeout(waitSeconds * 1000)]);
          if (waitSeconds > 0) await once(ended, 'abort');
          return {};
        },
      });
      // As the creation of a package, which fetches its artifact.
      registry.register(OtaService, {
        createPackage: (_request, { signal }) => untilAborted(signal),
        // Completes what is uploaded once all of it has come.
        uploadArtifact: async (requests) => {
          for await (const _part of requests) arrived += 1;
          created += 1;
          return {};
        },
      });
      registry.register(DeviceRegistryService, {
        createDevice: async () => {
          created += 1;
          return {};
        },
        exportDevices: async function* () {
          created += 1;
          yield { contentType: 'text/csv', data: Buffer.from('name') };
        },
        // As a change of many devices, which looks at the signal between its transactions.
        changeDevices: (_request, { signal }) => untilAborted(signal),
      });
    };
    gateways.push(await startTestGateway(register, { testDatabase: one.test }));
    gateways.push(
      await startTestGateway(register, { testDatabase: { database: remote, url: proxy.through(one.test.url) } }),
    );
  });
  after(async () => {
    proxy.restore();
    for (const gateway of gateways) await gateway.stop();
    await remote.close();
    await proxy.close();
  });

  let tenants = 0;
  beforeEach(async () => {
    // Gives each test its own request window.
    await insertTenant(one.test.database, (tenant = `tenant-${(tenants += 1)}`));
    validations = 0;
  });

  const ask = (gateway: TestGateway, token: string, path = '/api/v1/tenant', verb = 'GET') =>
    fetch(`${gateway.rest}${path}`, {
      method: verb,
      headers: { authorization: `Bearer ${token}` },
    });
  const statuses = (token: string, path?: string, verb?: string) =>
    Promise.all(gateways.map(async (gateway) => (await ask(gateway, token, path, verb)).status));
  const call = one.call.bind(one);
  /** Returns the status code with which a poll for a device's commands ends. */
  const pollByGrpc = (gateway: TestGateway, token: string, deviceId: string) =>
    new Promise<status>((resolve) => {
      const client = new Client(gateway.grpc, credentials.createInsecure());
      const { path, requestSerialize, responseDeserialize } = grpcService(DeviceLinkService)['ListPendingRpcs']!;
      const request = create(ListPendingRpcsRequestSchema, { deviceId, waitSeconds: 60 });
      const metadata = new Metadata();
      metadata.set('authorization', `Bearer ${token}`);
      client.makeUnaryRequest(path, requestSerialize, responseDeserialize, request, metadata, {}, (error) => {
        client.close();
        resolve(error?.code ?? status.OK);
      });
    });

  const signIn = async () => {
    const { tokens, user, caller } = await one.signedIn('tenant_admin', tenant);
    return { token: tokens.accessToken, user, caller };
  };
  /** A second administrator, who acts on the first. */
  const colleague = async () => (await one.signedIn('tenant_admin', tenant)).caller;
  const deviceKey = async () => {
    const deviceId = newId();
    await one.test.database.system((tx) =>
      tx.query(`INSERT INTO devices (tenant_id, device_id, name, hardware_id) VALUES ($1, $2, 'pump', 'pump')`, [
        tenant,
        deviceId,
      ]),
    );
    const token = await one.test.database.tenant(tenant, (tx) => mintDeviceKey(tx, tenant, deviceId));
    return { deviceId, token, path: `/api/v1/devices/${deviceId}/rpc/pending` };
  };
  const meta = () => create(ObjectMetaSchema, { tenantId: tenant, name: tenant });

  /** Lets every gateway cache the credential, calls `end`, and expects all of them to reject it within a second. */
  async function endsEverywhere(
    token: string,
    end: () => Promise<unknown>,
    after: number,
    { path = '/api/v1/tenant', verb = 'GET', before = 200 } = {},
  ): Promise<void> {
    const all = async (status: number) => (await statuses(token, path, verb)).every((returned) => returned === status);
    await eventually(async () => {
      await all(before);
      const asked = validations;
      return (await all(before)) && validations === asked;
    });
    await end();
    await eventually(() => all(after), 1000);
  }

  it('ends at logout', async () => {
    const { token, caller } = await signIn();
    await endsEverywhere(token, () => call(method.logout, {}, caller), 401);
  });

  it('ends when its session is removed', async () => {
    const { token, caller } = await signIn();
    await endsEverywhere(token, () => call(method.deleteSession, { sessionId: caller.sessionId }, caller), 401);
  });

  async function endsUnderWay(path: string, body: string): Promise<void> {
    const { token, caller } = await signIn();
    const started = changing;
    const response = fetch(`${gateways[0]!.rest}/api/v1/${path}`, {
      method: 'POST',
      headers: { authorization: `Bearer ${token}`, 'content-type': 'application/json' },
      body,
    });
    await eventually(() => changing > started);
    await call(method.deleteSession, { sessionId: caller.sessionId }, caller);
    expect((await response).status).to.equal(401);
  }

  it('ends together with a change of many devices that is under way', () =>
    endsUnderWay('devices/bulk', '{"action":"delete","expected":100000}'));

  it('ends together with the creation of a package that is under way', () =>
    endsUnderWay('ota/packages', '{"artifact_uri":"https://example.com/fw.bin"}'));

  it('carries out nothing that arrives as a whole only after its end', async () => {
    const { token, caller } = await signIn();
    const body = '{"name":"pump","hardware_id":"pump"}';
    /** Returns a function that sends the rest of a request whose headers and first bytes are sent, and returns its outcome. */
    const byRest = (gateway: TestGateway) => {
      const sending = httpRequest(`${gateway.rest}/api/v1/devices`, {
        method: 'POST',
        headers: { authorization: `Bearer ${token}`, 'content-length': body.length },
      });
      sending.write(body.slice(0, 5));
      const response = once(sending, 'response') as Promise<[IncomingMessage]>;
      return async () => {
        sending.end(body.slice(5));
        const [{ statusCode }] = await response;
        return statusCode;
      };
    };
    const byGrpc = (gateway: TestGateway, name: 'CreateDevice' | 'ExportDevices', message: Buffer) => {
      const session = connectHttp2(`http://${gateway.grpc}`);
      const stream = session.request({
        ':method': 'POST',
        ':path': grpcService(DeviceRegistryService)[name]!.path,
        'content-type': 'application/grpc',
        te: 'trailers',
        authorization: `Bearer ${token}`,
      });
      stream.write(message.subarray(0, 5));
      let outcome: unknown;
      stream.on('response', (headers) => (outcome = headers['grpc-status'] ?? outcome));
      stream.on('trailers', (trailers: IncomingHttpHeaders) => (outcome = trailers['grpc-status'] ?? outcome));
      return async () => {
        stream.end(message.subarray(5)).resume();
        await once(stream, 'close');
        session.destroy();
        return Number(outcome);
      };
    };
    const begin = () =>
      gateways.flatMap((gateway) => [
        byRest(gateway),
        byGrpc(gateway, 'CreateDevice', frame(CreateDeviceRequestSchema, { name: 'pump', hardwareId: 'pump' })),
        byGrpc(gateway, 'ExportDevices', frame(ExportDevicesRequestSchema, { q: 'pump' })),
      ]);
    const outcomes = (rest: number, grpc: status) => gateways.flatMap(() => [rest, grpc, grpc]);
    const all = (rests: readonly (() => Promise<unknown>)[]) => Promise.all(rests.map((rest) => rest()));
    const slow = begin();
    await sleep(1200);
    created = 0;
    expect(await all(slow)).to.deep.equal(outcomes(200, status.OK));
    expect(created).to.equal(6);
    const late = begin();
    await sleep(300);
    await call(method.deleteSession, { sessionId: caller.sessionId }, caller);
    await sleep(1000);
    expect(await all(late)).to.deep.equal(outcomes(401, status.UNAUTHENTICATED));
    expect(created).to.equal(6);
  });

  it('completes no upload whose end arrives only after its own', async () => {
    const { token, caller } = await signIn();
    /** Returns a function that sends the end of an upload of which all but that has arrived, after the call has ended. */
    const byRest = async (headers: Record<string, string>, rest: string) => {
      const sending = httpRequest(`${gateways[0]!.rest}/api/v1/ota/packages/${newId()}/artifact`, {
        method: 'PUT',
        headers: { authorization: `Bearer ${token}`, 'content-type': 'application/octet-stream', ...headers },
      });
      const before = arrived;
      sending.write('artifact');
      const response = once(sending, 'response') as Promise<[IncomingMessage]>;
      await eventually(() => arrived > before);
      return async () => {
        const [incoming] = await response;
        incoming.resume();
        sending.end(rest);
        await once(incoming, 'end');
        return incoming.statusCode;
      };
    };
    const byGrpc = async () => {
      const session = connectHttp2(`http://${gateways[0]!.grpc}`);
      const stream = session.request({
        ':method': 'POST',
        ':path': grpcService(OtaService)['UploadArtifact']!.path,
        'content-type': 'application/grpc',
        te: 'trailers',
        authorization: `Bearer ${token}`,
      });
      const before = arrived;
      const response = once(stream, 'response') as Promise<[IncomingHttpHeaders]>;
      stream.write(frame(UploadArtifactRequestSchema, { packageId: newId() }));
      await eventually(() => arrived > before);
      return async () => {
        const [headers] = await response;
        stream.end().resume();
        session.close();
        return Number(headers['grpc-status']);
      };
    };
    created = 0;
    const ends = await Promise.all([byRest({}, ''), byRest({ 'content-length': '9' }, '!'), byGrpc()]);
    await call(method.deleteSession, { sessionId: caller.sessionId }, caller);
    const statuses = await Promise.all(ends.map((end) => end()));
    expect(statuses).to.deep.equal([401, 401, status.UNAUTHENTICATED]);
    await sleep(300);
    expect(created).to.equal(0);
  });

  it('ends when its user is disabled', async () => {
    const { token, user } = await signIn();
    const admin = await colleague();
    const request = { userId: user.user_id, disabled: true, updateMask: { paths: ['disabled'] } };
    await endsEverywhere(token, () => call(method.updateUser, request, admin), 401);
  });

  it('ends when its user is deleted', async () => {
    const { token, user } = await signIn();
    const admin = await colleague();
    await endsEverywhere(token, () => call(method.deleteUser, { userId: user.user_id }, admin), 401);
  });

  it('loses scopes when its user gets a lesser role', async () => {
    const { token, user } = await signIn();
    const admin = await colleague();
    const request = { userId: user.user_id, role: User_Role.viewer, updateMask: { paths: ['role'] } };
    await endsEverywhere(token, () => call(method.updateUser, request, admin), 403, {
      path: `/api/v1/auth/api-keys/${newId()}`,
      verb: 'DELETE',
      before: 404,
    });
    expect(await statuses(token)).to.deep.equal([200, 200]);
  });

  it('loses scopes when its user leaves a group', async () => {
    const admin = await colleague();
    const groups: string[] = [];
    for (const scopes of [['keys:write'], ['tenant:read']]) {
      groups.push((await call(method.createGroup, { name: newId(), scopes }, admin)).groupId);
    }
    const { token, user } = await signIn();
    const mask = (...paths: string[]) => ({ userId: user.user_id, updateMask: { paths } });
    await call(method.updateUser, { groupIds: groups, ...mask('role', 'group_ids') }, admin);
    const leave = { groupIds: groups.slice(1), ...mask('group_ids') };
    await endsEverywhere(token, () => call(method.updateUser, leave, admin), 403, {
      path: `/api/v1/auth/api-keys/${newId()}`,
      verb: 'DELETE',
      before: 404,
    });
    expect(await statuses(token)).to.deep.equal([200, 200]);
  });

  it('is that of a user of a customer when its user is given to one', async () => {
    const admin = await colleague();
    const { tokens, user } = await one.signedIn('operator', tenant);
    const customer = { customerId: newId(), name: 'Harbour', contact: '' };
    await one.test.database.tenant(tenant, (tx) => insertCustomer(tx, tenant, customer));
    const { customerId } = customer;
    const request = { userId: user.user_id, customerId, updateMask: { paths: ['customer_id'] } };
    await endsEverywhere(tokens.accessToken, () => call(method.updateUser, request, admin), 403);
  });

  it('ends when the API key is deleted', async () => {
    const { caller } = await signIn();
    const made = await one.call(method.createApiKey, { name: 'k', scopes: ['tenant:read'] }, caller);
    await endsEverywhere(made.apiKey!, () => call(method.deleteApiKey, { keyId: made.keyId }, caller), 401);
  });

  it("ends when its device's keys are revoked", async () => {
    const { deviceId, token, path } = await deviceKey();
    const end = () => one.test.database.tenant(tenant, (tx) => revokeDeviceKeys(tx, tenant, [deviceId]));
    await endsEverywhere(token, end, 401, { path });
  });

  it('ends with its waiting polls when the grace period of a rotated key is over', async function () {
    this.timeout(10_000);
    const { deviceId, token, path } = await deviceKey();
    expect(await statuses(token, path)).to.deep.equal([200, 200]);
    const polls = statuses(token, `${path}?wait_seconds=60`);
    const grpcPolls = Promise.all(gateways.map((gateway) => pollByGrpc(gateway, token, deviceId)));
    await one.test.database.tenant(tenant, (tx) =>
      deviceCredentials().rotate(tx, { tenantId: tenant, deviceId }, { type: 'api_key' }, 1),
    );
    expect(await statuses(token, path)).to.deep.equal([200, 200]);
    // In this test the auth service's clock is fixed, but not the gateways'.
    one.clock.advance(60_000);
    expect(await polls).to.deep.equal([401, 401]);
    expect(await grpcPolls).to.deep.equal([status.UNAUTHENTICATED, status.UNAUTHENTICATED]);
  });

  it("ends when the tenant's allowlist changes", async () => {
    const { token, caller } = await signIn();
    const request = { ipAllowlist: ['192.0.2.0/24'], updateMask: { paths: ['ip_allowlist'] } };
    await endsEverywhere(token, () => call(method.updateOwnTenant, request, caller), 403);
  });

  it('ends when the tenant is deleted', async () => {
    const { token } = await signIn();
    await endsEverywhere(token, () => applier.remove(meta(), false), 403);
  });

  it('of another tenant survives when a tenant is deleted', async () => {
    const { deviceId, token, path } = await deviceKey();
    const deleted = meta();
    await insertTenant(one.test.database, (tenant = `${tenant}-neighbour`));
    const neighbour = await signIn();
    const held = await deviceKey();
    await eventually(async () => {
      await statuses(neighbour.token);
      await statuses(held.token, held.path);
      const asked = validations;
      await statuses(neighbour.token);
      await statuses(held.token, held.path);
      return validations === asked;
    });
    const ends = statuses(token, `${path}?wait_seconds=60`);
    const grpcEnds = Promise.all(gateways.map((gateway) => pollByGrpc(gateway, token, deviceId)));
    const staysOn = statuses(held.token, `${held.path}?wait_seconds=2`);
    await new Promise((resolve) => setTimeout(resolve, 300));
    const asked = validations;
    await applier.remove(deleted, false);
    expect(await ends).to.deep.equal([403, 403]);
    expect(await grpcEnds).to.deep.equal([status.PERMISSION_DENIED, status.PERMISSION_DENIED]);
    const ofDeleted = validations - asked;
    expect(await statuses(neighbour.token)).to.deep.equal([200, 200]);
    expect(await statuses(held.token, held.path)).to.deep.equal([200, 200]);
    expect(validations - asked).to.equal(ofDeleted);
    // Only the deleted tenant's four polls were rechecked.
    expect(ofDeleted).to.be.at.most(4);
    expect(await staysOn).to.deep.equal([200, 200]);
  });

  it("keeps working and gets the new limit when its tenant's limit changes, by the platform or by its resource", async () => {
    const { token } = await signIn();
    const limits = () =>
      Promise.all(
        gateways.map(async (gateway) => Number((await ask(gateway, token)).headers.get('x-ratelimit-limit'))),
      );
    const byPlatform = (rateLimitPerMinute: number) => {
      const request = { tenantId: tenant, rateLimitPerMinute, updateMask: { paths: ['rate_limit_per_minute'] } };
      return call(method.updateTenant, request, platformAdmin);
    };
    const byResource = (rateLimitPerMinute: number) => applier.apply(meta(), { rateLimitPerMinute });
    expect(await limits()).to.deep.equal([1000, 1000]);
    for (const change of [byPlatform, byResource]) {
      await change(2000);
      await eventually(async () => (await limits()).every((limit) => limit === 2000), 1000);
      await change(1);
      await eventually(async () => (await statuses(token)).every((status) => status === 429), 1000);
      await change(3000);
      await eventually(async () => (await statuses(token)).every((status) => status === 200), 1000);
    }
  });

  /** Resolves once the second gateway receives revocations again. */
  const restore = async (): Promise<void> => {
    proxy.restore();
    await eventually(async () => {
      const { token } = await signIn();
      await ask(gateways[1]!, token);
      const before = validations;
      await ask(gateways[1]!, token);
      return validations === before;
    });
  };

  it('ends also while a gateway cannot receive revocations, which caches nothing until it can', async function () {
    this.timeout(15_000);
    const { token, caller } = await signIn();
    const cutOff = gateways[1]!;
    const isRemembered = async () => {
      await ask(cutOff, token);
      const before = validations;
      await ask(cutOff, token);
      return validations === before;
    };
    await eventually(isRemembered);
    proxy.cut();
    await eventually(async () => !(await isRemembered()), 1000);
    await call(method.logout, {}, caller);
    // This gateway's auth service still reaches the database.
    expect((await ask(cutOff, token)).status).to.equal(401);
    await restore();
  });

  it('ends also with its open calls while a gateway cannot receive revocations for long', async function () {
    this.timeout(15_000);
    const { deviceId, token, path } = await deviceKey();
    proxy.cut();
    const poll = ask(gateways[1]!, token, `${path}?wait_seconds=60`);
    const grpcPoll = pollByGrpc(gateways[1]!, token, deviceId);
    // What losing the connection makes due has been looked at.
    await sleep(5 * heartbeatMilliseconds);
    await one.test.database.tenant(tenant, (tx) => revokeDeviceKeys(tx, tenant, [deviceId]));
    const started = performance.now();
    // This gateway's auth service still reaches the database.
    expect((await poll).status).to.equal(401);
    expect(await grpcPoll).to.equal(status.UNAUTHENTICATED);
    expect(performance.now() - started).to.be.below(8000);
    await restore();
  });

  it('ends also when the network drops the announcement silently', async function () {
    this.timeout(15_000);
    const { deviceId, token, path } = await deviceKey();
    const poll = ask(gateways[1]!, token, `${path}?wait_seconds=60`);
    const grpcPoll = pollByGrpc(gateways[1]!, token, deviceId);
    await new Promise((resolve) => setTimeout(resolve, 100));
    proxy.silence();
    await one.test.database.tenant(tenant, (tx) => revokeDeviceKeys(tx, tenant, [deviceId]));
    const started = performance.now();
    expect((await poll).status).to.equal(401);
    expect(await grpcPoll).to.equal(status.UNAUTHENTICATED);
    expect(performance.now() - started).to.be.below(5 * heartbeatMilliseconds);
    proxy.restore();
  });
});
