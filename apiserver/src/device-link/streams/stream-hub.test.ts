import { expect } from 'chai';
import { insertTenant } from '../../auth/testing/test-fixtures.ts';
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
});
