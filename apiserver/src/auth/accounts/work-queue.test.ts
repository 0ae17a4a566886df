import { expect } from 'chai';
import { WorkQueue } from './work-queue.ts';

describe('a work queue', () => {
  it('runs a bounded number in order, and rejects work beyond the limits', async () => {
    const queue = new WorkQueue({ running: 2, waiting: 3, waitingOfOwner: 2 });
    let running = 0;
    let most = 0;
    const log: string[] = [];
    const work = (owner: string, name: string) =>
      queue.run(owner, async () => {
        most = Math.max(most, (running += 1));
        await new Promise((resolve) => setTimeout(resolve, 5));
        running -= 1;
        log.push(name);
        if (name.endsWith('!')) throw new Error(name);
        return name;
      });
    const outcomes = await Promise.allSettled([
      ...['a1', 'a2!', 'a3', 'a4', 'a5'].map((name) => work('a', name)),
      work('b', 'b1'),
      work('c', 'c1'),
    ]);
    expect(most).to.equal(2);
    expect(log).to.deep.equal(['a1', 'a2!', 'a3', 'a4', 'b1']);
    const reasons = outcomes.map((one) =>
      one.status === 'fulfilled' ? 'ran' : (one.reason as { code?: string }).code,
    );
    // The fifth item of owner a exceeds the limit per owner, the last one the limit in all.
    expect(reasons).to.deep.equal(['ran', undefined, 'ran', 'ran', 'UNAVAILABLE', 'ran', 'UNAVAILABLE']);
    expect(await work('c', 'c2')).to.equal('c2');
  });
});
