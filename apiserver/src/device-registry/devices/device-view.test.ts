import { expect } from 'chai';
import { countThatFit } from './device-view.ts';

describe('the devices of a page', () => {
  const device = (characters: number) => ({ tags: { a: 'x'.repeat(characters) }, effectiveTags: { b: '' } });
  const cases: [title: string, devices: number[], expected: number][] = [
    ['are all if they are small', [0, 0, 0, 0], 4],
    ['end with the one that is too much', [3000, 3000, 3000, 3000], 3],
    ['are the first alone if it is too large', [50_000, 0, 0], 1],
    ['are none if there are none', [], 0],
  ];
  for (const [title, devices, expected] of cases) {
    it(title, () => expect(countThatFit(devices.map(device), 10_000)).to.equal(expected));
  }

  it('count with inherited tags, metadata and groups', () => {
    const parts = [
      { effectiveTags: { a: 'x'.repeat(5000) } },
      { metadata: { a: 'x'.repeat(5000) } },
      { groupIds: Array.from({ length: 125 }, () => '') },
    ];
    for (const part of parts) expect(countThatFit([part, part, part], 10_000)).to.equal(2);
  });
});
