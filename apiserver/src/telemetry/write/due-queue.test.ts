import { expect } from 'chai';
import { DueQueue } from './due-queue.ts';

describe('a queue by time', () => {
  it('returns its items in the order in which they are due', () => {
    const queue = new DueQueue<number>();
    const times = Array.from({ length: 200 }, (_, n) => (n * 7919) % 101);
    for (const time of times) queue.add(time, time);
    const seen: (number | undefined)[] = [];
    for (let n = 0; n < times.length; n += 1) {
      seen.push(queue.first?.item);
      queue.removeFirst();
    }
    expect(seen).to.deep.equal([...times].sort((a, b) => a - b));
    expect(queue.first).to.equal(undefined);
    queue.removeFirst();
    queue.add(1, 5);
    expect(queue.first).to.deep.equal({ at: 1, item: 5 });
    expect(queue.size).to.equal(1);
  });
});
