import { expect } from 'chai';
import { updateHistory, type UpdateTimes } from './update-history.ts';

describe('the time that devices take for an update', () => {
  const rollout = (rolloutId: string, profileId: string, ...seconds: number[]): UpdateTimes => ({
    ...{ rolloutId, profileId, seconds },
  });
  const hundred = Array.from({ length: 100 }, (_, index) => 100 - index);
  const cases: [string, UpdateTimes[], deviceSeconds: number, rolloutIds: string[]][] = [
    ['is not known without rollouts', [], 0, []],
    ['is not known if no device has finished', [rollout('a', 'sensor')], 0, []],
    ['is that of the only device', [rollout('a', 'sensor', 41.2)], 42, ['a']],
    ['is that of 95 of 100 devices', [rollout('a', 'sensor', ...hundred)], 95, ['a']],
    ['is that of all rollouts of the profile', [rollout('b', 'sensor', 9), rollout('a', 'sensor', 4)], 9, ['b', 'a']],
    ['leaves out other profiles', [rollout('b', 'gateway', 900), rollout('a', 'sensor', 4)], 4, ['a']],
    ['is that of other profiles if the profile has none', [rollout('b', 'gateway', 900)], 900, ['b']],
    ['leaves out rollouts of which no device has finished', [rollout('b', 'sensor'), rollout('a', 'sensor', 4)], 4, ['a']], // prettier-ignore
    ['is never less than nothing', [rollout('a', 'sensor', -3)], 0, ['a']],
  ];
  for (const [what, rollouts, deviceSeconds, rolloutIds] of cases) {
    it(what, () => expect(updateHistory(rollouts, 'sensor')).to.deep.equal({ deviceSeconds, rolloutIds }));
  }
});
