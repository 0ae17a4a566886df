import { expect } from 'chai';
import { countAhead, CountedWindow } from './rate-window.ts';

describe('reserving requests', () => {
  for (const [requests, milliseconds, remaining, ahead, why] of [
    [40, 10, 1_000_000, 200, 'what the next 50 ms need at this rate'],
    [4000, 10, 1_000_000, 1000, 'a thousandth of the remainder'],
    [4000, 10, 10_000, 10, 'still'],
    [4000, 10, 9_999, 0, 'the end of a window is counted request by request'],
    [4000, 10, -5, 0, 'requests beyond the limit are counted one by one'],
    [1, 60_000, 1_000_000, 0, 'infrequent callers get no reservation'],
    [100, 60_000, 1_000_000, 0, 'callers get no reservation after a long pause'],
    [0, 5, 1_000_000, 0, 'no requests'],
    [-3, 5, 1_000_000, -30, 'no requests since'],
    [10, 0, 1_000_000, 500, 'no elapsed time counts as a millisecond'],
  ] as const) {
    it(`${requests} in ${milliseconds} ms, ${remaining} remain: ${ahead}, ${why}`, () => {
      expect(countAhead(requests, milliseconds, remaining)).to.equal(ahead);
    });
  }
});

describe('a counted window', () => {
  const limit = 1_000_000;
  const counted = (hits: number, windowMinute = 10, now = 630) => ({ tenantId: 'acme', hits, windowMinute, now });

  it('numbers its requests from the counted total, whatever others count in between', () => {
    const window = new CountedWindow();
    window.add(counted(105), 5, 1, 1000, 1000);
    expect([1, 2, 3].map(() => window.take(1000).ordinal)).to.deep.equal([101, 102, 103]);
    // Others took 20; 2 of ours are left and 10 more are counted.
    window.add(counted(135), 10, 0, 1010, 1010);
    const rest: number[] = [];
    while (window.hasAt(1011)) rest.push(window.take(1011).ordinal);
    expect(rest).to.deep.equal(Array.from({ length: 12 }, (_, index) => 124 + index));
  });

  it('reports when the window ends, and the time of the counter', () => {
    const window = new CountedWindow();
    window.add(counted(3), 3, 1, 1000, 1000);
    expect(window.take(3500)).to.deep.equal({ ordinal: 1, resetAt: 660, now: 632.5 });
  });

  it('is empty once its minute is over, and does not carry over', () => {
    const window = new CountedWindow();
    window.add(counted(50), 40, 10, 1000, 1000);
    expect([30_999, 31_000].map((now) => window.hasAt(now))).to.deep.equal([true, false]);
    window.add(counted(2, 11, 660.1), 2, 2, 31_100, 31_100);
    expect([window.take(31_100).ordinal, window.take(31_100).ordinal, window.hasAt(31_100)]).to.deep.equal([
      1,
      2,
      false,
    ]);
  });

  it('reserves by the requests since the last count, less what is left', () => {
    const window = new CountedWindow();
    expect(window.wanted(50, limit, 0)).to.equal(0);
    window.add(counted(50), 50, 50, 0, 0);
    for (let request = 0; request < 50; request += 1) window.take(1);
    // Waiting requests came before.
    expect(window.wanted(0, limit, 10)).to.equal(0);
    expect(window.wanted(30, limit, 10)).to.equal(150);
    window.add(counted(140), 90, 30, 10, 10);
    for (let request = 0; request < 70; request += 1) window.take(11);
    expect(window.isLow).to.equal(true);
    expect(window.wanted(0, limit, 20)).to.equal(200 - 20);
    expect(window.wanted(0, 9000, 20)).to.equal(0);
  });

  it('is returned if it was not used between two checks', () => {
    const window = new CountedWindow();
    window.add(counted(50), 3, 1, 0, 0);
    expect([window.isSpent(1), window.isSpent(2)]).to.deep.equal([false, true]);
    window.take(3);
    expect([window.isSpent(4), window.isSpent(5)]).to.deep.equal([false, true]);
    expect(window.unused).to.deep.equal({ windowMinute: 10, hits: 2 });
  });

  it('is returned some time after it was counted, however slowly it is used and however long the store took', () => {
    const window = new CountedWindow();
    window.add(counted(50), 50, 1, 0, 900);
    for (const [now, isSpent] of [
      [920, false],
      [999, false],
      [1000, true],
    ] as const) {
      window.take(now);
      expect(window.isSpent(now)).to.equal(isSpent);
    }
  });
});
