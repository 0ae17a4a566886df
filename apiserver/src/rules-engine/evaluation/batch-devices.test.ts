import { expect } from 'chai';
import { devicesOfBatch } from './batch-devices.ts';

describe('the devices of a batch', () => {
  const rule = (profile: string | null) => ({ row: { profile_id: profile } });
  const devices = new Map([...'abcd'].map((id) => [id, { profileId: id === 'a' ? 'pump' : 'fan' }]));
  const cases: [title: string, rules: (string | null)[], bytes: Record<string, number>, expected: string][] = [
    ['are all if there are few rules', [null, 'pump', 'fan'], {}, 'abcd'],
    ['are all if the rules are of another profile', Array.from({ length: 50 }, () => 'valve'), {}, 'abcd'],
    ['are as many as there are states', [null, null, 'fan', 'fan'], {}, 'abc'],
    ['are the first alone if it has more rules', Array.from({ length: 20 }, () => null), {}, 'a'],
    ['end before the last point that is too large', [null], { a: 60, c: 41 }, 'ab'],
    ['are the first alone if its last point is too large', [null], { a: 500 }, 'a'],
    ['include the last one if its last point fits', [null], { a: 60, d: 40 }, 'abcd'],
  ];
  for (const [title, rules, bytes, expected] of cases) {
    it(title, () => {
      const room = { states: 10, lastPointBytes: 100 };
      const found = devicesOfBatch([...'abcd'], devices, rules.map(rule), new Map(Object.entries(bytes)), room);
      expect(found.join('')).to.equal(expected);
    });
  }

  it('include those that no longer exist, for which nothing is read', () => {
    const rules = Array.from({ length: 10 }, () => rule(null));
    const found = devicesOfBatch([...'xyaz'], devices, rules, new Map(), { states: 10, lastPointBytes: 100 });
    expect(found.join('')).to.equal('xyaz');
  });
});
