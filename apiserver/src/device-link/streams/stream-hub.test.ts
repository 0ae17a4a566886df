import { expect } from 'chai';
import { insertTenant } from '../../auth/testing/test-fixtures.ts';
import { MovableClock } from '../../auth/testing/test-platform.ts';
import { createDevice, notifyDeviceChanged, setGateway } from '../../device-registry/devices/devices.ts';
import { systemClock } from '../../platform/clock.ts';
import { deviceChannel } from '../../platform/database/channels.ts';
import { newId } from '../../platform/ids.ts';
import { createLogger } from '../../platform/observability/logger.ts';
import { eventually } from '../../platform/testing/eventually.ts';
import { createTestDatabase, type TestDatabase } from '../../platform/testing/test-database.ts';
import { CommandFeed } from '../commands/command-feed.ts';
import { StreamHub } from './stream-hub.ts';
import { StreamSession } from './stream-session.ts';

const tenantId = 'acme';

describe('the streams of gateways', () => {
  let test: TestDatabase;
  before(async () => {
    test = await createTestDatabase();
    await insertTenant(test.database, tenantId);
  });
  after(() => test.drop());

  it('carry no child that leaves while it is being looked up', async () => {
    const { database } = test;
    const logger = createLogger('silent');
    const liveness = { seen: () => undefined, streamOpened: () => undefined, streamClosed: () => undefined };
    const hub = new StreamHub(database, liveness, systemClock, logger);
    const [gateway, child, other] = [newId(), newId(), newId()];
    await database.tenant(tenantId, async (tx) => {
      for (const [deviceId, gatewayDeviceId] of [
        [gateway, undefined],
        [child, gateway],
        [other, gateway],
      ] as const) {
        const device = { tenantId, deviceId, name: deviceId, hardwareId: deviceId, profileId: '', groupIds: [] };
        await createDevice(tx, { ...device, credentialType: 'api_key', ...(gatewayDeviceId && { gatewayDeviceId }) });
      }
    });
    const nothing = { commands: [], nextMilliseconds: undefined, heldBy: [] };
    const delivery = { take: async () => nothing } as unknown as ConstructorParameters<
      typeof StreamSession
    >[2]['delivery'];
    const parts = { feed: new CommandFeed(database), delivery, failed: () => undefined };
    const session = new StreamSession(tenantId, gateway, parts);
    await hub.add(session);
    const announced = new Set<string>();
    database.listen(
      [deviceChannel],
      (_channel, payload) => void announced.add(payload),
      () => undefined,
    );
    await eventually(async () => {
      await database.tenant(tenantId, (tx) => notifyDeviceChanged(tx, tenantId, 'listening'));
      return announced.has(`${tenantId}/listening`);
    });
    const children = await hub.childrenOf(session, [child, other]);
    await database.tenant(tenantId, (tx) => setGateway(tx, tenantId, child, null));
    await eventually(() => announced.has(`${tenantId}/${child}`));
    hub.carry(session, children);
    await eventually(() => ![...session.deviceIds].includes(child), 5000);
    expect([...session.deviceIds]).to.have.members([gateway, other]);
    hub.close(session);
  });

  it('are forgotten although they end while their children are being looked up', async () => {
    const { database } = test;
    const signs: string[] = [];
    const liveness = {
      ...{ seen: (_tenantId: string, deviceId: string) => signs.push(deviceId) },
      ...{ streamOpened: () => undefined, streamClosed: () => undefined },
    };
    const [gateway, child] = [newId(), newId()];
    await database.tenant(tenantId, async (tx) => {
      const device = { tenantId, profileId: '', groupIds: [], credentialType: 'api_key' as const };
      await createDevice(tx, { ...device, deviceId: gateway, name: gateway, hardwareId: gateway });
      await createDevice(tx, {
        ...{ ...device, deviceId: child, name: child, hardwareId: child },
        gatewayDeviceId: gateway,
      });
    });
    const hub = new StreamHub(database, liveness, systemClock, createLogger('silent'));
    const watched = new Set<string>();
    const watch = (key: string) => {
      watched.add(key);
      return () => watched.delete(key);
    };
    for (const isClosedFirst of [true, false]) {
      const session = new StreamSession(tenantId, gateway, {
        ...{ feed: { watch }, delivery: {}, failed: () => undefined },
      } as unknown as ConstructorParameters<typeof StreamSession>[2]);
      await hub.add(session);
      const children = await hub.childrenOf(session, [child]);
      if (isClosedFirst) hub.close(session);
      // Its call ends, and closes it a moment later.
      else session.end();
      hub.carry(session, children);
      if (!isClosedFirst) hub.close(session);
      expect({ carried: hub.carriedChildren, watched: [...watched], signs }).to.deep.equal({
        ...{ carried: 0, watched: [], signs: [] },
      });
    }
  });

  it('carry a limited number of children, of a tenant and in all', async () => {
    const { database } = test;
    const liveness = { seen: () => undefined, streamOpened: () => undefined, streamClosed: () => undefined };
    const hub = new StreamHub(database, liveness, systemClock, createLogger('silent'), { ofTenant: 10, total: 15 });
    const parts = { feed: { watch: () => () => undefined }, delivery: {}, failed: () => undefined };
    // Known to no gateway in the database, which takes a moment to notice.
    const children = (count: number) => new Set(Array.from({ length: count }, () => newId()));
    const sessions: StreamSession[] = [];
    const open = async (tenant: string) => {
      const deviceId = newId();
      await database.tenant(tenant, (tx) =>
        createDevice(tx, {
          ...{ tenantId: tenant, deviceId, name: deviceId, hardwareId: deviceId, profileId: '', groupIds: [] },
          credentialType: 'api_key',
        }),
      );
      const session = new StreamSession(
        tenant,
        deviceId,
        parts as unknown as ConstructorParameters<typeof StreamSession>[2],
      );
      await hub.add(session);
      sessions.push(session);
      return session;
    };
    const tooMany = 'too many children of gateways';
    await insertTenant(database, 'full');
    const [first, second, other] = [await open(tenantId), await open(tenantId), await open('full')];
    hub.carry(first, children(6));
    expect(() => hub.carry(second, children(5))).to.throw(tooMany);
    hub.carry(second, children(4));
    // Others instead of these are no more.
    hub.carry(first, children(6));
    expect(() => hub.carry(first, children(7))).to.throw(tooMany);
    expect(() => hub.carry(other, children(6))).to.throw(tooMany);
    hub.carry(other, children(5));
    hub.close(first);
    hub.carry(second, children(10));
    for (const session of sessions) hub.close(session);
    expect(hub.carriedChildren).to.equal(0);
    hub.carry(await open(tenantId), children(10));
    hub.close(sessions.at(-1)!);
  });

  it('look once at what many changes of a gateway and its children leave, one stream after another', async () => {
    const { database } = test;
    let [reads, running, most] = [0, 0, 0];
    const counted = Object.create(database, {
      read: {
        value: async (...given: Parameters<typeof database.read>) => {
          reads += 1;
          most = Math.max(most, (running += 1));
          return database.read(...given).finally(() => (running -= 1));
        },
      },
    }) as typeof database;
    const liveness = { seen: () => undefined, streamOpened: () => undefined, streamClosed: () => undefined };
    const hub = new StreamHub(counted, liveness, systemClock, createLogger('silent'));
    const parts = { feed: { watch: () => () => undefined }, delivery: {}, failed: () => undefined };
    const device = { tenantId, profileId: '', groupIds: [], credentialType: 'api_key' as const };
    const families = Array.from({ length: 20 }, () => ({
      gateway: newId(),
      children: Array.from({ length: 5 }, newId),
    }));
    const sessions: StreamSession[] = [];
    for (const { gateway, children } of families) {
      await database.tenant(tenantId, async (tx) => {
        await createDevice(tx, { ...device, deviceId: gateway, name: gateway, hardwareId: gateway });
        for (const id of children) {
          await createDevice(tx, { ...device, deviceId: id, name: id, hardwareId: id, gatewayDeviceId: gateway });
        }
      });
      const session = new StreamSession(
        tenantId,
        gateway,
        parts as unknown as ConstructorParameters<typeof StreamSession>[2],
      );
      session.following = 'all';
      await hub.add(session);
      hub.carry(session, await hub.followedBy(session));
      sessions.push(session);
    }
    const announce = async (ids: readonly string[]) => {
      for (let n = 0; n < 50; n += 1)
        await database.tenant(tenantId, (tx) => notifyDeviceChanged(tx, tenantId, ...ids));
    };
    await eventually(() => running === 0);
    [reads, most] = [0, 0];
    const { gateway, children } = families[0]!;
    await database.tenant(tenantId, (tx) => setGateway(tx, tenantId, children[0]!, null));
    await announce(families.flatMap((family) => [family.gateway, ...family.children]));
    await eventually(() => [...sessions[0]!.deviceIds].length === children.length);
    await eventually(() => running === 0);
    expect([...sessions[0]!.deviceIds]).to.have.members([gateway, ...children.slice(1)]);
    // One for each change and device would be 6,000.
    expect(reads).to.be.lessThan(2000);
    expect(most).to.be.at.most(4);
    for (const session of sessions) hub.close(session);
    expect(hub.carriedChildren).to.equal(0);
  });

  it('are signs of life of their children once a second, however many messages the gateways send', () => {
    const clock = new MovableClock();
    const seen: string[] = [];
    const liveness = {
      ...{ seen: (_tenantId: string, deviceId: string) => seen.push(deviceId) },
      ...{ streamOpened: () => undefined, streamClosed: () => undefined },
    };
    const hub = new StreamHub(test.database, liveness, clock, createLogger('silent'));
    const session = new StreamSession(tenantId, 'gateway', {
      ...{ feed: { watch: () => () => undefined }, delivery: {}, failed: () => undefined },
    } as unknown as ConstructorParameters<typeof StreamSession>[2]);
    session.carry(new Map(['gateway', 'first', 'second'].map((deviceId) => [deviceId, undefined])));
    for (let message = 0; message < 100; message += 1) hub.alive(session);
    expect(seen).to.deep.equal(['gateway', 'first', 'second']);
    clock.advance(1000);
    for (let message = 0; message < 100; message += 1) hub.alive(session);
    expect(seen).to.have.length(6);
  });
});
