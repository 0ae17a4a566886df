import { expect } from 'chai';
import { MessagePace } from './message-pace.ts';

describe('the pace of messages on a stream', () => {
  const waits = (pace: MessagePace, count: number, now: number) => Array.from({ length: count }, () => pace.take(now));

  it('admits 500 at once, and then 100 a second', () => {
    const pace = new MessagePace(100, 0);
    expect(waits(pace, 500, 0)).to.deep.equal(Array(500).fill(0));
    expect(waits(pace, 2, 0)).to.deep.equal([10, 20]);
    expect(pace.take(30)).to.equal(0);
    expect(pace.take(30)).to.equal(10);
  });

  it('admits no more than 500 after a pause, and none for a clock that goes back', () => {
    const pace = new MessagePace(100, 0);
    waits(pace, 500, 0);
    expect(waits(pace, 501, 3_600_000).at(-1)).to.equal(10);
    expect(pace.take(0)).to.equal(20);
  });
});
