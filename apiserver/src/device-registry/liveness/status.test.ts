import { expect } from 'chai';
import { clockDifference, type LifeSigns, notAfter, offlineAt, withClose, withSign, writeDelay } from './status.ts';

const none: LifeSigns = { lastSeen: 0, aliveAt: 0, closedAt: 0 };

describe('device status', () => {
  for (const [offlineAfter, delay] of [
    [1, 500],
    [10, 5000],
    [60, 30_000],
    [300, 150_000],
    [86_400, 150_000],
  ] as const) {
    it(`delays a sign by ${delay} ms with an offline timeout of ${offlineAfter} s`, () => {
      expect(writeDelay(offlineAfter)).to.equal(delay);
      expect(writeDelay(offlineAfter)).to.be.at.most(offlineAfter * 1000);
    });
  }

  const cases: [string, LifeSigns, LifeSigns][] = [
    ['a first point', withSign(none, 'telemetry', 5), { lastSeen: 5, aliveAt: 5, closedAt: 0 }],
    ['a poll, which does not change last_seen', withSign(none, 'poll', 5), { lastSeen: 0, aliveAt: 5, closedAt: 0 }],
    [
      'signs from before the clock was put back',
      notAfter({ lastSeen: 9, aliveAt: 10, closedAt: 4 }, 6),
      { lastSeen: 6, aliveAt: 6, closedAt: 4 },
    ],
    [
      'a late point',
      withSign({ lastSeen: 9, aliveAt: 10, closedAt: 0 }, 'telemetry', 5),
      { lastSeen: 9, aliveAt: 10, closedAt: 0 },
    ],
    [
      'a closed stream',
      withClose({ lastSeen: 3, aliveAt: 5, closedAt: 0 }, 8),
      { lastSeen: 3, aliveAt: 5, closedAt: 8 },
    ],
    [
      'a stream that closed in the millisecond of a point, such as a will',
      withClose({ lastSeen: 8, aliveAt: 8, closedAt: 0 }, 8),
      { lastSeen: 8, aliveAt: 8, closedAt: 8 },
    ],
    [
      'a sign after the close',
      withSign({ lastSeen: 3, aliveAt: 5, closedAt: 8 }, 'poll', 9),
      { lastSeen: 3, aliveAt: 9, closedAt: 0 },
    ],
    [
      'a sign from before the close',
      withSign({ lastSeen: 3, aliveAt: 5, closedAt: 8 }, 'poll', 7),
      { lastSeen: 3, aliveAt: 7, closedAt: 8 },
    ],
    [
      'a close that arrives after a newer sign',
      withClose({ lastSeen: 3, aliveAt: 9, closedAt: 0 }, 8),
      { lastSeen: 3, aliveAt: 9, closedAt: 0 },
    ],
  ];
  for (const [name, signs, want] of cases) it(`takes ${name}`, () => expect(signs).to.deep.equal(want));

  for (const [name, signs, offlineAfter, want] of [
    ['after silence', { lastSeen: 0, aliveAt: 1000, closedAt: 0 }, 300, 305_000],
    ['ten seconds after its stream closed', { lastSeen: 0, aliveAt: 1000, closedAt: 2000 }, 300, 12_000],
    ['ten seconds after a close that came first', { lastSeen: 0, aliveAt: 0, closedAt: 2000 }, 300, 12_000],
    ['after silence when that is sooner', { lastSeen: 0, aliveAt: 1000, closedAt: 2000 }, 4, 6000],
  ] as [string, LifeSigns, number, number][]) {
    it(`ends ${name}`, () => expect(offlineAt(signs, offlineAfter)).to.equal(want));
  }

  for (const [name, known, reading, want] of [
    ['nothing when the clocks are equal', 0, { sent: 1000, received: 1004, theirs: 1002 }, 0],
    ['nothing however long the answer takes', 0, { sent: 1000, received: 3000, theirs: 2900 }, 0],
    ['what is known as long as that is possible', 500, { sent: 1000, received: 3000, theirs: 2000 }, 500],
    ['the smallest difference for a clock that is ahead', 0, { sent: 9000, received: 9010, theirs: 1000 }, 7999],
    ['the smallest difference for a clock that is behind', 0, { sent: 1000, received: 1010, theirs: 9000 }, -7989],
    ['the new difference after the clock was put back', 7000, { sent: 9000, received: 2000, theirs: 2000 }, 1],
  ] as const) {
    it(`finds as the difference of two clocks ${name}`, () => expect(clockDifference(known, reading)).to.equal(want));
  }
});
