// Users whose scopes come from groups that are limited to device groups: what belongs to other devices cannot be read,
// changed or noticed, by any call of the contract.
import { randomUUID } from 'node:crypto';
import { type DescMethod, getOption, type MessageInitShape, toJsonString } from '@bufbuild/protobuf';
import { Client, credentials, type ServiceError, status } from '@grpc/grpc-js';
import type { LiveError } from '@kellet/client';
import {
  access,
  Access_Caller as AccessCaller,
  Access_CustomerAccess as CustomerAccess,
} from '@kellet/proto/es/kellet/v1/options_pb';
import { expect } from 'chai';
import { publicServices } from '../../apiserver/src/gateway/services.ts';
import { allScopes } from '../../apiserver/src/platform/scopes.ts';
import { LiveFeed } from '../../dev/clients/live-feed.ts';
import { Rest } from '../../dev/clients/rest.ts';
import type { SimulatedDevice } from '../../dev/devices/device.ts';
import { stack } from '../../dev/stack/testing/test-stack.ts';
import { waitUntil } from '../../dev/stack/wait.ts';
import { admin, makeFleet, makeProfile, unique } from '../testing/fixtures.ts';
import { grpcCall } from '../testing/grpc-call.ts';
import { type Ids, lists, named, pointOf, unlimited } from '../testing/limited-calls.ts';

interface ErrorBody {
  code: string;
  message: string;
}

const password = 'correct horse battery';

describe('users who are limited to device groups', function () {
  this.timeout(120_000);
  let rest: Rest;
  let devices: readonly SimulatedDevice[];
  /** Of a device in the group of the users, and of one outside it. */
  const owned: Ids[] = [];
  let deviceGroup: string;
  let otherDeviceGroup: string;
  let userGroup: string;
  /** Holds every scope for the devices of the group. */
  let member: Rest;
  let account: { email: string; password: string; user_id: string };
  let client: Client;

  const makeDeviceGroup = async () =>
    (await rest.post<{ group_id: string }>('/api/v1/device-groups', { name: unique('devices') })).group_id;
  const makeGroup = async (scopes: readonly string[], device_group_ids: string[], user_ids: string[] = []) =>
    (
      await rest.post<{ group_id: string }>('/api/v1/auth/groups', {
        ...{ name: unique('group'), scopes, device_group_ids, user_ids },
      })
    ).group_id;
  const makeMember = async (fields: { role?: string; group_ids: string[] }) => {
    const email = `${unique('user')}@demo.test`;
    const { user_id } = await rest.post<{ user_id: string }>('/api/v1/auth/users', { email, password, ...fields });
    return { email, password, user_id };
  };
  const join = (group: string, ...device_ids: string[]) =>
    rest.post(`/api/v1/device-groups/${group}/devices`, { device_ids });
  const leave = (group: string, deviceId: string) =>
    rest.call('DELETE', `/api/v1/device-groups/${group}/devices/${deviceId}`);

  before(async () => {
    rest = await admin();
    devices = (await makeFleet(rest, (await makeProfile(rest)).profile_id, 2)).devices;
    for (const [index, device] of devices.entries()) {
      const { deviceId } = device;
      await device.send([pointOf(deviceId, index)]);
      const [alarm, command] = await Promise.all([
        rest.post<{ alarm_id: string }>('/api/v1/alarms', { device_id: deviceId, type: 'heat' }),
        rest.post<{ correlation_id: string }>(`/api/v1/devices/${deviceId}/rpc`, { method: 'blink', persistent: true }),
      ]);
      owned.push({
        ...{ customer: randomUUID(), asset: randomUUID(), view: randomUUID() },
        ...{ device: deviceId, alarm: alarm.alarm_id, command: command.correlation_id, hash: '' },
      });
    }
    for (const ids of owned) {
      ids.hash = await waitUntil(
        async () => {
          const { points } = await rest.get<{ points: { data_hash: string; anchored?: boolean }[] }>(
            `/api/v1/telemetry/${ids.device}`,
          );
          return points[0]?.anchored ? points[0].data_hash : undefined;
        },
        { what: 'proof', timeoutMilliseconds: 60_000 },
      );
    }
    [deviceGroup, otherDeviceGroup] = [await makeDeviceGroup(), await makeDeviceGroup()];
    await join(deviceGroup, devices[0]!.deviceId);
    userGroup = await makeGroup(allScopes, [deviceGroup]);
    member = await Rest.login(rest.base, await makeMember({ group_ids: [userGroup] }));
    // Calls on one's own sessions must not end those of the other tests.
    account = await makeMember({ group_ids: [userGroup] });
    client = new Client(stack().info.grpc, credentials.createInsecure());
  });
  after(() => client.close());

  const call = <M extends DescMethod>(method: M, request: object, token = member.token) =>
    grpcCall(client, method, request as MessageInitShape<M['input']>, token);
  const failure = async (calling: Promise<unknown>): Promise<ServiceError | undefined> =>
    calling.then(
      () => undefined,
      (error: ServiceError) => error,
    );
  const unknownIds = (): Ids => ({
    ...{ customer: randomUUID(), device: randomUUID(), asset: randomUUID(), view: randomUUID(), alarm: randomUUID() },
    ...{ command: randomUUID(), hash: 'ab'.repeat(32) },
  });

  for (const method of publicServices.flatMap((service) => service.methods)) {
    const { callers, customerAccess, everyScope, planned, scope } = getOption(method, access);
    if (!callers.includes(AccessCaller.USER) || method.methodKind !== 'unary') continue;
    const title = `${method.parent.name}/${method.name}`;

    if (scope === '') {
      it(`may call ${title}`, async () => {
        const request = unlimited[method.name];
        if (!request) return expect.fail(`${title} has no request in this test`);
        const error = await failure(call(method, request, (await Rest.login(member.base, account)).token));
        expect([
          undefined,
          status.NOT_FOUND,
          status.INVALID_ARGUMENT,
          status.FAILED_PRECONDITION,
          ...(planned ? [status.UNIMPLEMENTED] : []),
        ]).to.include(error?.code);
      });
    } else if (customerAccess !== CustomerAccess.OWN_DEVICE && customerAccess !== CustomerAccess.FILTERED) {
      it(`are refused ${title}`, async () => {
        const error = await failure(call(method, {}));
        expect(error?.code).to.equal(status.PERMISSION_DENIED);
        expect(error!.details).to.equal(
          everyScope
            ? 'every scope of the tenant is required, as a tenant_admin holds them'
            : `the scope ${scope} is limited to device groups, which does not suffice for this method`,
        );
      });
    } else if (lists[method.name]) {
      it(`are shown what is of their devices alone by ${title}`, async () => {
        const shown = toJsonString(method.output, await call(method, { pageSize: 500 }));
        expect(shown).to.contain(owned[0]![lists[method.name]!]);
        for (const id of Object.values(owned[1]!)) expect(shown).not.to.contain(id);
      });
    } else {
      it(`find nothing of other devices by ${title}`, async () => {
        const request = named[method.name];
        if (!request) return expect.fail(`${title} has no request in this test`);
        const absent = await failure(call(method, request(unknownIds(), 9)));
        expect(absent!.code).to.equal(status.NOT_FOUND);
        const [own, foreign] = [
          await failure(call(method, request(owned[0]!, 0))),
          await failure(call(method, request(owned[1]!, 1))),
        ];
        expect(own?.code).to.equal(planned ? status.UNIMPLEMENTED : undefined, own?.message);
        expect({ code: foreign?.code, details: foreign?.details }).to.deep.equal({
          ...{ code: status.NOT_FOUND, details: absent!.details },
        });
      });
    }
  }

  it('find and are refused the same over REST', async () => {
    const [ours, theirs] = owned as [Ids, Ids];
    for (const [path, id] of [
      ['devices/', 'device'],
      ['telemetry/', 'device'],
      ['alarms/', 'alarm'],
      ['devices/rpc/', 'command'],
      ['verify/hash/', 'hash'],
    ] as const) {
      expect((await member.send('GET', `/api/v1/${path}${ours[id]}`)).status, path).to.equal(200);
      const foreign = await member.send<ErrorBody>('GET', `/api/v1/${path}${theirs[id]}`);
      expect({ path, status: foreign.status, code: foreign.body.code }).to.deep.equal({
        ...{ path, status: 404, code: 'NOT_FOUND' },
      });
    }
    for (const path of ['profiles', 'ota/rollouts', 'auth/users', 'device-groups', 'rules', 'customers', 'tenant']) {
      expect((await member.send('GET', `/api/v1/${path}`)).status, path).to.equal(403);
    }
    const group = async (id: string) => member.send<{ devices: object[] }>('GET', `/api/v1/devices?group_id=${id}`);
    expect((await group(deviceGroup)).body.devices).to.have.length(1);
    expect((await group(otherDeviceGroup)).status).to.equal(404);
    expect((await member.send('GET', '/api/v1/alarms?device_id=' + theirs.device)).status).to.equal(404);
  });

  it('read entity views of their devices no more than others', async () => {
    const body = { name: 'view', device_id: owned[0]!.device };
    const { entity_view_id } = await rest.post<{ entity_view_id: string }>('/api/v1/entity-views', body);
    expect((await member.send('GET', `/api/v1/telemetry/${entity_view_id}`)).status).to.equal(404);
  });

  it('change what is theirs alone, and learn that a device which they may read is not', async () => {
    const group = await makeGroup(['devices:write', 'rpc:write', 'alarms:write'], [deviceGroup]);
    const viewer = await Rest.login(rest.base, await makeMember({ role: 'viewer', group_ids: [group] }));
    const [ours, theirs] = owned as [Ids, Ids];
    const rename = { body: { name: 'renamed' } };
    expect((await viewer.send('PATCH', `/api/v1/devices/${ours.device}`, rename)).status).to.equal(200);
    expect((await viewer.send('PATCH', `/api/v1/alarms/${ours.alarm}`, { body: {} })).status).to.equal(200);
    for (const [method, path, body] of [
      ['PATCH', `devices/${theirs.device}`, rename.body],
      ['PATCH', `devices/${ours.device}`, { group_ids: [] }],
      ['POST', `devices/${theirs.device}/rpc`, { method: 'blink' }],
      ['PATCH', `alarms/${theirs.alarm}`, {}],
      ['DELETE', `devices/${ours.device}`, undefined],
      ['POST', 'devices', { hardware_id: unique('hardware') }],
    ] as const) {
      const refused = await viewer.send<ErrorBody>(method, `/api/v1/${path}`, body && { body });
      expect({ path, status: refused.status }).to.deep.equal({ path, status: 403 });
    }
    expect((await viewer.send('PATCH', `/api/v1/devices/${randomUUID()}`, rename)).status).to.equal(404);
    expect((await viewer.send('GET', `/api/v1/devices/${theirs.device}`)).status).to.equal(200);
  });

  it('follow changes of the group, of its members and of its devices within a second', async () => {
    const group = await makeGroup(['devices:read', 'telemetry:read'], [otherDeviceGroup]);
    const user = await makeMember({ group_ids: [group] });
    const session = await Rest.login(rest.base, user);
    const [ours, theirs] = owned as [Ids, Ids];
    const until = (ids: Ids, code: number) =>
      waitUntil(async () => (await session.send('GET', `/api/v1/devices/${ids.device}`)).status === code, {
        ...{ what: `${code}`, timeoutMilliseconds: 1000 },
      });
    await until(ours, 404);
    await join(otherDeviceGroup, ours.device);
    await until(ours, 200);
    await leave(otherDeviceGroup, ours.device);
    await until(ours, 404);
    await rest.call('PATCH', `/api/v1/auth/groups/${group}`, { body: { device_group_ids: [deviceGroup] } });
    await until(ours, 200);
    await until(theirs, 404);
    await rest.call('PATCH', `/api/v1/auth/groups/${group}`, { body: { device_group_ids: [] } });
    await until(theirs, 200);
    const whole = await makeGroup(['rpc:read'], [], [user.user_id]);
    await rest.call('DELETE', `/api/v1/auth/groups/${group}/members/${user.user_id}`);
    await until(theirs, 403);
    expect((await session.send('GET', `/api/v1/devices/${theirs.device}/rpc`)).status).to.equal(200);
    await rest.call('DELETE', `/api/v1/auth/users/${user.user_id}`);
    await rest.call('DELETE', `/api/v1/auth/groups/${whole}`);
  });

  it('see on /ws what is of their devices, until these leave the group', async () => {
    const user = await makeMember({ group_ids: [userGroup] });
    const { token } = await Rest.login(rest.base, user);
    const extra = (await makeFleet(rest, (await makeProfile(rest)).profile_id, 1)).devices[0]!;
    await join(deviceGroup, extra.deviceId);
    const theirs = owned[1]!;
    const feed = await LiveFeed.open(rest.base, token);
    try {
      const foreign = feed.subscribe({ channel: 'telemetry.live', device_id: theirs.device });
      expect(await foreign.catch(({ code }: LiveError) => code)).to.equal('NOT_FOUND');
      await feed.subscribe({ channel: 'alarms' });
      await feed.subscribe({ channel: 'telemetry.live', device_id: extra.deviceId });
      await extra.send([pointOf(extra.deviceId, 1)]);
      await feed.until(({ channel }) => channel === 'telemetry.live');
      for (const device_id of [theirs.device, extra.deviceId]) {
        await rest.post('/api/v1/alarms', { device_id, type: unique('live') });
      }
      await feed.until(({ channel }) => channel === 'alarms');
      await leave(deviceGroup, extra.deviceId);
      await new Promise((resolve) => setTimeout(resolve, 1000));
      await extra.send([pointOf(extra.deviceId, 2, '2026-01-02T03:04:06Z')]);
      await new Promise((resolve) => setTimeout(resolve, 500));
      expect(feed.points(extra.deviceId)).to.have.length(1);
      const alarms = feed.messages.filter(({ channel }) => channel === 'alarms');
      expect(alarms).to.have.length(1);
      expect(JSON.stringify(alarms)).to.contain(extra.deviceId);
      const closed = feed.closed();
      const role = { body: { role: 'viewer', group_ids: [] } };
      await rest.call('PATCH', `/api/v1/auth/users/${user.user_id}`, role);
      expect(await closed).to.equal(4403);
    } finally {
      feed.close();
    }
  });

  it('keep their device groups from being deleted', async () => {
    const refused = await rest.send<ErrorBody>('DELETE', `/api/v1/device-groups/${deviceGroup}`);
    expect({ status: refused.status, message: refused.body.message }).to.deep.include({ status: 400 });
    expect(refused.body.message).to.match(/^the device group is used by user group /);
  });
});
