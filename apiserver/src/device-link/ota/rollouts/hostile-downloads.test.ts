// A crowd of devices begins to download, again and again, and never finishes: it times out by the rules of the rollout alone.
import { create } from '@bufbuild/protobuf';
import { OtaReportSchema } from '@kellet/proto/es/kellet/v1/ota_pb';
import { expect } from 'chai';
import { namedId } from '../../../platform/ids.ts';
import { Delivery } from '../../rpc/delivery.ts';
import { chunkBytes } from '../artifacts/artifact-store.ts';
import { openRolloutFixture, type RolloutFixture, tenant } from '../testing/rollout-fixture.ts';

const sensor = namedId(tenant, 'profile', 'sensor');
const two = namedId(tenant, 'package', 'two');
const size = 600;
const deviceTimeoutSeconds = 600;

describe('hostile downloads', function () {
  this.timeout(120_000);
  let fixture: RolloutFixture;
  let delivery: Delivery;
  let id: string;
  before(async () => {
    fixture = await openRolloutFixture();
    delivery = new Delivery(fixture.test.database, fixture.profiles, fixture.clock);
  });
  after(() => fixture.close());

  /** Each takes its command, reads the first chunk and reports progress. */
  const begin = async (devices: readonly string[]): Promise<void> => {
    // Commands become due by the database's clock, which does not move.
    await fixture.rows(`UPDATE device_commands SET not_before = now() WHERE status = 'scheduled'`);
    const one = async (device: string) => {
      expect((await delivery.take(tenant, device)).commands).to.have.length(1);
      expect((await fixture.chunk(device, two)).complete).to.equal(false);
      await fixture.reports.report(tenant, device, create(OtaReportSchema, { rolloutId: id, progressPercent: 50 }));
    };
    await Promise.all(devices.map(one));
  };
  const finish = async (devices: readonly string[]): Promise<void> => {
    const one = async (device: string) => {
      expect((await fixture.chunk(device, two, chunkBytes)).complete).to.equal(true);
      await fixture.report(device, id, '2.0.0');
    };
    await Promise.all(devices.map(one));
  };
  const expire = () => fixture.advance(id, { case: 'expireDevices', value: {} });
  const pass = () => fixture.clock.advance((deviceTimeoutSeconds + 1) * 1000);
  /** Checks the counters, and that the devices are in the states that they say. */
  async function expectCounts(expected: { sent: number; succeeded: number; timedOut: number }, status: string) {
    const rollout = await fixture.rollouts.get(tenant, id);
    expect(rollout.counts).to.include({
      eligible: size,
      scheduled: size,
      failed: 0,
      skipped: 0,
      removed: 0,
      ...expected,
    });
    const states = (await fixture.members(id)).map(({ state }) => state);
    const number = (...of: string[]) => states.filter((state) => of.includes(state)).length;
    expect({
      sent: size - number('scheduled'),
      succeeded: number('successful'),
      timedOut: number('timed_out'),
    }).to.deep.equal(expected);
    expect((await fixture.row(id))['phase']).to.equal(status);
  }
  /** Commands by their status. */
  const commands = async () =>
    Object.fromEntries(
      (
        await fixture.rows<{ status: string; number: number }>(
          `SELECT CASE WHEN status IN ('queued', 'scheduled', 'sent') THEN 'open' ELSE status END AS status,
             count(*)::int4 AS number FROM device_commands WHERE rollout_id = $1 GROUP BY 1`,
          id,
        )
      ).map(({ status, number }) => [status, number]),
    );

  it('count as failures once the attempts are used up, pause the rollout, and disturb no other device', async () => {
    await fixture.load(sensor, size);
    id = await fixture.start({ canaryPercent: 100, failureThresholdPercent: 50, maxAttempts: 2, deviceTimeoutSeconds });
    await fixture.schedule(id);
    const devices = (await fixture.members(id)).map((member) => member.device_id);
    const crowd = devices.slice(0, 500);
    const [early, rest] = [crowd.slice(0, 250), crowd.slice(250)];
    const [quick, late] = [devices.slice(500, 550), devices.slice(550)];

    await begin([...crowd, ...quick]);
    await finish(quick);
    await expectCounts({ sent: 550, succeeded: 50, timedOut: 0 }, 'active');

    // The first timeout is followed by another attempt, and counts nothing. Devices that were not reached do not time out.
    pass();
    expect(await expire()).to.equal(true);
    await expectCounts({ sent: 550, succeeded: 50, timedOut: 0 }, 'active');
    expect(await commands()).to.deep.equal({ expired: 500, successful: 50, open: 550 });
    expect(await expire()).to.equal(false);

    // The second one counts. Progress does not prolong the time.
    await begin(early);
    pass();
    expect(await expire()).to.equal(true);
    await expectCounts({ sent: 550, succeeded: 50, timedOut: 250 }, 'active');
    await begin(rest);
    pass();
    // These have begun shortly before the rollout pauses, and finish although it has.
    await begin(late);
    expect(await expire()).to.equal(true);
    await expectCounts({ sent: 600, succeeded: 50, timedOut: 500 }, 'paused');
    await finish(late);
    await expectCounts({ sent: 600, succeeded: 100, timedOut: 500 }, 'paused');
    expect(await commands()).to.deep.equal({ expired: 1000, successful: 100 });

    // One of the crowd finishes after all, which corrects its timeout, once.
    await finish(crowd.slice(0, 1));
    await finish(crowd.slice(0, 1));
    await expectCounts({ sent: 600, succeeded: 101, timedOut: 499 }, 'paused');
  });
});
