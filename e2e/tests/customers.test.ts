// Users of a customer: what belongs to another customer, or to none, cannot be read, changed or noticed, by any call of the
// contract.
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
import { LiveFeed } from '../../dev/clients/live-feed.ts';
import { Rest } from '../../dev/clients/rest.ts';
import type { SimulatedDevice } from '../../dev/devices/device.ts';
import { stack } from '../../dev/stack/testing/test-stack.ts';
import { waitUntil } from '../../dev/stack/wait.ts';
import { admin, makeFleet, makeProfile, makeUser, unique } from '../testing/fixtures.ts';
import { grpcCall } from '../testing/grpc-call.ts';
import { type Ids, lists, named, pointOf, unlimited } from '../testing/limited-calls.ts';

interface ErrorBody {
  code: string;
  message: string;
}

const limited: readonly CustomerAccess[] = [
  CustomerAccess.OWN_DEVICE,
  CustomerAccess.FILTERED,
  CustomerAccess.FILTERED_ENTITIES,
];

describe('users of a customer', function () {
  this.timeout(120_000);
  let devices: readonly SimulatedDevice[];
  /** Of the customer of the users, of another one, and of none. */
  const owned: Ids[] = [];
  let operator: Rest;
  let viewer: Rest;
  let viewerId: string;
  let account: { email: string; password: string; user_id: string };
  let client: Client;

  before(async () => {
    const rest = await admin();
    const profile = await makeProfile(rest);
    devices = (await makeFleet(rest, profile.profile_id, 3)).devices;
    for (const [index, device] of devices.entries()) {
      const customerId =
        index === 2
          ? ''
          : (await rest.client.post('/api/v1/customers', { body: { name: unique('customer') } })).customer_id;
      const customer = { customer_id: customerId };
      const { deviceId } = device;
      await rest.call('PATCH', `/api/v1/devices/${deviceId}`, { body: customer });
      await device.send([pointOf(deviceId, index)]);
      const [asset, view, alarm, command] = await Promise.all([
        rest.client.post('/api/v1/assets', { body: { name: unique('asset'), ...customer } }),
        rest.client.post('/api/v1/entity-views', { body: { name: 'view', device_id: deviceId, ...customer } }),
        rest.client.post('/api/v1/alarms', { body: { device_id: deviceId, type: 'heat' } }),
        rest.post<{ correlation_id: string }>(`/api/v1/devices/${deviceId}/rpc`, { method: 'blink', persistent: true }),
      ]);
      owned.push({
        customer: customerId || randomUUID(),
        ...{ device: deviceId, asset: asset.asset_id, view: view.entity_view_id, alarm: alarm.alarm_id },
        ...{ command: command.correlation_id, hash: '' },
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
    const assign = (userId: string) =>
      rest.call('PATCH', `/api/v1/auth/users/${userId}`, { body: { customer_id: owned[0]!.customer } });
    const made = await makeUser(rest, 'operator');
    ({ rest: operator } = made);
    // Calls on one's own sessions must not end those of the other tests.
    const other = await makeUser(rest, 'operator');
    account = other;
    const reader = await makeUser(rest, 'viewer');
    viewer = reader.rest;
    viewerId = reader.user_id;
    // Signed in before: the limit holds for tokens that are already in use.
    for (const user of [made, other, reader]) await assign(user.user_id);
    client = new Client(stack().info.grpc, credentials.createInsecure());
  });
  after(() => client.close());

  const call = <M extends DescMethod>(method: M, request: object, token = operator.token) =>
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
    const { callers, customerAccess, planned } = getOption(method, access);
    if (!callers.includes(AccessCaller.USER) || method.methodKind !== 'unary') continue;
    const title = `${method.parent.name}/${method.name}`;

    if (limited.includes(customerAccess)) {
      const list = lists[method.name];
      if (list) {
        it(`are shown their customer's alone by ${title}`, async () => {
          const { output } = method;
          const shown = toJsonString(output, await call(method, { pageSize: 500 }));
          expect(shown).to.contain(owned[0]![list]);
          for (const foreign of owned.slice(1)) {
            for (const id of Object.values(foreign)) expect(shown).not.to.contain(id);
          }
        });
        continue;
      }
      it(`find nothing else by ${title}`, async () => {
        const request = named[method.name];
        if (!request) return expect.fail(`${title} has no request in this test`);
        const absent = await failure(call(method, request(unknownIds(), 9)));
        expect(absent!.code).to.equal(status.NOT_FOUND);
        for (const [index, ids] of owned.entries()) {
          const error = await failure(call(method, request(ids, index)));
          if (index === 0) {
            expect(error?.code).to.equal(planned ? status.UNIMPLEMENTED : undefined, error?.message);
          } else {
            expect({ code: error?.code, details: error?.details }).to.deep.equal({
              ...{ code: status.NOT_FOUND, details: absent!.details },
            });
          }
        }
      });
    } else if (customerAccess === CustomerAccess.UNLIMITED) {
      it(`may call ${title}`, async () => {
        const request = unlimited[method.name];
        if (!request) return expect.fail(`${title} has no request in this test`);
        const error = await failure(call(method, request, (await Rest.login(operator.base, account)).token));
        expect([
          undefined,
          status.NOT_FOUND,
          status.INVALID_ARGUMENT,
          status.FAILED_PRECONDITION,
          ...(planned ? [status.UNIMPLEMENTED] : []),
        ]).to.include(error?.code);
      });
    } else {
      it(`are refused ${title}`, async () => {
        const error = await failure(call(method, {}));
        expect(error?.code).to.equal(status.PERMISSION_DENIED);
        expect(error!.details).to.match(
          /^(a user of a customer may not call this method|(the scope \S+|every scope of the tenant) is required.*)$/,
        );
      });
    }
  }

  it('export their customer’s devices alone, and import none', async () => {
    const [ours, ...foreign] = owned;
    for (const format of ['csv', 'ndjson']) {
      const file = await viewer.send('GET', `/api/v1/devices/export?format=${format}`);
      const text = JSON.stringify(file.body);
      expect([file.status, text.includes(ours!.device)]).to.deep.equal([200, true]);
      for (const ids of foreign) for (const id of Object.values(ids)) expect(text).not.to.contain(id);
    }
    const body = `hardware_id\n${unique('imported')}\n`;
    const headers = { 'content-type': 'text/csv' };
    const refused = await operator.send('POST', '/api/v1/devices/import', { body, headers });
    expect(refused.status).to.equal(403);
  });

  it('find and are refused the same over REST', async () => {
    const [ours, theirs] = owned as [Ids, Ids];
    for (const [path, id] of [
      ['devices/', 'device'],
      ['telemetry/', 'device'],
      ['telemetry/', 'view'],
      ['customers/', 'customer'],
      ['assets/', 'asset'],
      ['entity-views/', 'view'],
      ['alarms/', 'alarm'],
      ['devices/rpc/', 'command'],
      ['verify/hash/', 'hash'],
    ] as const) {
      expect((await viewer.send('GET', `/api/v1/${path}${ours[id]}`)).status, path).to.equal(200);
      const foreign = await viewer.send<ErrorBody>('GET', `/api/v1/${path}${theirs[id]}`);
      expect({ path, status: foreign.status, code: foreign.body.code }).to.deep.equal({
        ...{ path, status: 404, code: 'NOT_FOUND' },
      });
    }
    for (const path of ['profiles', 'ota/rollouts', 'auth/users', 'device-groups', 'rules', 'anchors', 'tenant']) {
      expect((await viewer.send('GET', `/api/v1/${path}`)).status, path).to.equal(403);
    }
    expect((await viewer.send('GET', '/api/v1/telemetry/metrics')).status).to.equal(403);
    const rename = { body: { name: 'x' } };
    expect((await viewer.send('PATCH', `/api/v1/devices/${ours.device}`, rename)).status).to.equal(403);
    expect((await operator.send('PATCH', `/api/v1/devices/${theirs.device}`, rename)).status).to.equal(404);
  });

  it('read the window of a view of a device that is not their customer’s', async () => {
    const rest = await admin();
    const [ours, theirs] = owned as [Ids, Ids];
    const body = { name: 'humidity', device_id: theirs.device, keys: ['humidity'], customer_id: ours.customer };
    const { entity_view_id } = await rest.client.post('/api/v1/entity-views', { body });
    const path = `/api/v1/telemetry/${entity_view_id}`;
    expect(await viewer.get(`${path}/latest`)).to.deep.include({ numeric_values: { humidity: 50 } });
    const { points } = await viewer.get<{ points: { numeric_values: object }[] }>(path);
    expect(points.map((point) => point.numeric_values)).to.deep.equal([{ humidity: 50 }]);
    expect((await viewer.send('GET', `/api/v1/telemetry/${theirs.device}`)).status).to.equal(404);
    const closed = { body: { end_time: '2026-01-01T00:00:00Z' } };
    await rest.call('PATCH', `/api/v1/entity-views/${entity_view_id}`, closed);
    expect((await viewer.get<{ points: object[] }>(path)).points).to.deep.equal([]);
    await rest.call('DELETE', `/api/v1/entity-views/${entity_view_id}`);
    expect((await viewer.send('GET', path)).status).to.equal(404);
  });

  it('see on /ws what is their customer’s, until it is another one’s', async () => {
    const rest = await admin();
    const [ours, theirs] = owned as [Ids, Ids];
    const extra = (await makeFleet(rest, (await makeProfile(rest)).profile_id, 1)).devices[0]!;
    const give = (customer: string) =>
      rest.call('PATCH', `/api/v1/devices/${extra.deviceId}`, { body: { customer_id: customer } });
    await give(ours.customer);
    const feed = await LiveFeed.open(viewer.base, viewer.token);
    try {
      const foreign = feed.subscribe({ channel: 'telemetry.live', device_id: theirs.device });
      expect(await foreign.catch(({ code }: LiveError) => code)).to.equal('NOT_FOUND');
      await feed.subscribe({ channel: 'alarms' });
      await feed.subscribe({ channel: 'telemetry.live', device_id: extra.deviceId });
      await extra.send([pointOf(extra.deviceId, 1)]);
      await feed.until(({ channel }) => channel === 'telemetry.live');
      for (const device_id of [theirs.device, extra.deviceId]) {
        await rest.client.post('/api/v1/alarms', { body: { device_id, type: unique('live') } });
      }
      await feed.until(({ channel }) => channel === 'alarms');
      await give(theirs.customer);
      const path = `/api/v1/devices/${extra.deviceId}`;
      await waitUntil(async () => (await viewer.send('GET', path)).status === 404, {
        ...{ what: 'the device to leave', timeoutMilliseconds: 1000 },
      });
      await extra.send([pointOf(extra.deviceId, 2, '2026-01-02T03:04:06Z')]);
      await new Promise((resolve) => setTimeout(resolve, 500));
      expect(feed.points(extra.deviceId)).to.have.length(1);
      const alarms = feed.messages.filter(({ channel }) => channel === 'alarms');
      expect(alarms).to.have.length(1);
      expect(JSON.stringify(alarms)).to.contain(extra.deviceId);
      const closed = feed.closed();
      const change = { body: { customer_id: theirs.customer } };
      await rest.call('PATCH', `/api/v1/auth/users/${viewerId}`, change);
      expect(await closed).to.equal(4403);
      expect((await viewer.send('GET', `/api/v1/devices/${ours.device}`)).status).to.equal(404);
      expect((await viewer.send('GET', `/api/v1/devices/${theirs.device}`)).status).to.equal(200);
    } finally {
      feed.close();
    }
  });
});
