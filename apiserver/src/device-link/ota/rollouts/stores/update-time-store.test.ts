import { expect } from 'chai';
import { namedId } from '../../../../platform/ids.ts';
import { Delivery } from '../../../rpc/delivery.ts';
import { openRolloutFixture, type RolloutFixture, tenant } from '../../testing/rollout-fixture.ts';
import { listUpdateTimes } from './update-time-store.ts';

const sensor = namedId(tenant, 'profile', 'sensor');

describe('the times that devices took for their updates', () => {
  let fixture: RolloutFixture;
  before(async () => (fixture = await openRolloutFixture()));
  after(() => fixture.close());

  it('count from the delivery to the success, of each rollout with its profile', async () => {
    const [first, second, failing, silent] = (await fixture.make(sensor, 4)) as [string, string, string, string];
    const id = await fixture.start({ canaryPercent: 100, failureThresholdPercent: 100 });
    await fixture.schedule(id);
    const times = () => fixture.test.database.tenant(tenant, (tx) => listUpdateTimes(tx, tenant));
    expect(await times()).to.deep.equal([{ rolloutId: id, profileId: sensor, seconds: [] }]);
    const delivery = new Delivery(fixture.test.database, fixture.profiles, fixture.clock);
    for (const device of [first, failing, silent]) {
      expect((await delivery.take(tenant, device)).commands).to.have.length(1);
    }
    await fixture.rows(`UPDATE device_commands SET sent_at = sent_at - interval '4 minutes'`);
    await fixture.report(first, id, '2.0.0');
    await fixture.report(failing, id, '1.0.0', false);
    // Reports although the command was never delivered to it.
    await fixture.report(second, id, '2.0.0');
    const [rollout] = await times();
    expect(rollout!.seconds).to.have.length(1);
    expect(rollout!.seconds[0]).to.be.within(240, 300);
  });
});
