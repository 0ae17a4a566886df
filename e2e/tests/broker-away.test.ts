// A broker outage: ingest is unaffected, readiness fails, and events wait for the broker.
import { expect } from 'chai';
import { followEvents } from '../../dev/clients/broker-events.ts';
import type { SimulatedDevice } from '../../dev/devices/device.ts';
import { replay, weatherStations } from '../../dev/devices/readings.ts';
import { stack } from '../../dev/stack/testing/test-stack.ts';
import { waitUntil } from '../../dev/stack/wait.ts';
import { admin, anonymous, makeDevice, makeFleet, makeProfile } from '../testing/fixtures.ts';

describe('without the broker', function () {
  this.timeout(120_000);
  let device: SimulatedDevice;
  let claimed: SimulatedDevice;
  before(async () => {
    device = await makeDevice(await admin());
    await stack().stopProcess('nats');
  });
  const bringBack = async () => {
    await stack().startProcess('nats');
    await waitUntil(async () => (await anonymous().send('GET', '/readyz')).status === 200, { what: 'readiness' });
  };
  after(bringBack);

  it('fails readiness but not liveness, and can exclude the broker', async () => {
    interface Readiness {
      postgres: string;
      nats: string;
    }
    const unready = await waitUntil(
      async () => {
        const response = await anonymous().send<Readiness>('GET', '/readyz');
        return response.status === 503 ? response : undefined;
      },
      { what: '503', timeoutMilliseconds: 20_000 },
    );
    expect(unready.body.postgres).to.equal('healthy');
    expect(unready.body.nats).to.match(/^unhealthy: ./);
    expect((await anonymous().send('GET', '/healthz')).status).to.equal(200);
    expect((await anonymous().send('GET', '/readyz?exclude=nats')).status).to.equal(200);
  });

  it('accepts, returns and proves points', async () => {
    expect(await device.send(replay(weatherStations(), 0, 50))).to.include({ accepted: 50, rejected: 0 });
    const path = `/api/v1/telemetry/${device.deviceId}`;
    const all = async () => (await admin()).list<{ anchored?: boolean }>(path, 'points', { page_size: 100 });
    expect(await all()).to.have.length(50);
    await waitUntil(async () => (await all()).every(({ anchored }) => anchored), {
      what: 'proofs',
      timeoutMilliseconds: 60_000,
    });
  });

  it('provisions devices, and publishes the events once the broker is back', async () => {
    const { profile_id } = await makeProfile(await admin());
    claimed = (await makeFleet(await admin(), profile_id, 1)).devices[0]!;
    await bringBack();
    const events = await followEvents(stack().info.natsUrl, 'device.provisioned', { fromTheBeginning: true });
    try {
      const told = () => events.received.some(({ data }) => JSON.stringify(data).includes(claimed.deviceId));
      await waitUntil(told, { what: 'device.provisioned', timeoutMilliseconds: 30_000 });
    } finally {
      await events.close();
    }
  });
});
