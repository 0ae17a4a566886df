import { expect } from 'chai';
import { openRolloutFixture, type RolloutFixture } from '../../testing/rollout-fixture.ts';

describe('max_per_minute', () => {
  let fixture: RolloutFixture;
  before(async () => (fixture = await openRolloutFixture()));
  after(() => fixture.close());

  const sendTimes = async (id: string) =>
    (
      await fixture.rows<{ not_before: Date }>(
        'SELECT not_before FROM device_commands WHERE rollout_id = $1 ORDER BY not_before',
        id,
      )
    ).map(({ not_before: at }) => at.getTime());

  it('lets so many commands go a minute, evenly, over all transactions of the rollout', async () => {
    const [sensor] = await fixture.rows<{ profile_id: string }>('SELECT profile_id FROM profiles');
    await fixture.make(sensor!.profile_id, 10);
    const begun = fixture.clock.now();
    const id = await fixture.start({ canaryPercent: 50, maxPerMinute: 4 });
    const spaced = (count: number, from = begun) => Array.from({ length: count }, (_, index) => from + index * 15_000);
    expect(await sendTimes(id)).to.deep.equal(spaced(5));
    // The next stage queues behind the first, not beside it.
    fixture.clock.advance(10_000);
    await fixture.apply(id, { canaryPercent: 80 });
    await fixture.schedule(id);
    expect(await sendTimes(id)).to.deep.equal(spaced(8));
    // What was left unused is not made up for.
    fixture.clock.advance(600_000);
    await fixture.apply(id, { canaryPercent: 100 });
    await fixture.schedule(id);
    expect(await sendTimes(id)).to.deep.equal([...spaced(8), ...spaced(2, begun + 610_000)]);
  });
});
