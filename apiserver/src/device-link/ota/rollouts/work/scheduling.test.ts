import { expect } from 'chai';
import { openGround, type Ground } from '../../testing/test-ground.ts';

describe('max_per_minute', () => {
  let ground: Ground;
  before(async () => (ground = await openGround()));
  after(() => ground.close());

  const sendTimes = async (id: string) =>
    (
      await ground.rows<{ not_before: Date }>(
        'SELECT not_before FROM device_commands WHERE rollout_id = $1 ORDER BY not_before',
        id,
      )
    ).map(({ not_before: at }) => at.getTime());

  it('lets so many commands go a minute, evenly, over all transactions of the rollout', async () => {
    const [sensor] = await ground.rows<{ profile_id: string }>('SELECT profile_id FROM profiles');
    await ground.make(sensor!.profile_id, 10);
    const begun = ground.clock.now();
    const id = await ground.start({ canaryPercent: 50, maxPerMinute: 4 });
    const spaced = (count: number, from = begun) => Array.from({ length: count }, (_, index) => from + index * 15_000);
    expect(await sendTimes(id)).to.deep.equal(spaced(5));
    // The next stage queues behind the first, not beside it.
    ground.clock.advance(10_000);
    await ground.apply(id, { canaryPercent: 80 });
    await ground.schedule(id);
    expect(await sendTimes(id)).to.deep.equal(spaced(8));
    // What was left unused is not made up for.
    ground.clock.advance(600_000);
    await ground.apply(id, { canaryPercent: 100 });
    await ground.schedule(id);
    expect(await sendTimes(id)).to.deep.equal([...spaced(8), ...spaced(2, begun + 610_000)]);
  });
});
