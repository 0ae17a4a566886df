import { expect } from 'chai';
import { createMetrics } from './metrics.ts';
import { settle, TestClock } from './testing/test-clock.ts';
import { failureDelay, WorkQueue, type WorkQueueOptions } from './work-queue.ts';

function makeQueue(options: Partial<WorkQueueOptions> = {}): { clock: TestClock; queue: WorkQueue } {
  const clock = new TestClock();
  return { clock, queue: new WorkQueue({ name: 'test', clock, metrics: createMetrics(), ...options }) };
}

describe('failureDelay', () => {
  for (const [failures, want] of [
    [0, 5],
    [1, 10],
    [10, 5120],
    [17, 655_360],
    [18, 1_000_000],
    [5000, 1_000_000],
  ] as const) {
    it(`is ${want} ms after ${failures} failures`, () => expect(failureDelay(failures, 5, 1_000_000)).to.equal(want));
  }
});

describe('WorkQueue', () => {
  it('hands out keys in order, each once', async () => {
    const { queue } = makeQueue();
    for (const key of ['a', 'b', 'a', 'c', 'b']) queue.add(key);
    expect(queue.length).to.equal(3);
    expect([await queue.get(), await queue.get(), await queue.get()]).to.deep.equal(['a', 'b', 'c']);
  });

  it('hands out keys of other namespaces next, however many one has', async () => {
    const { queue } = makeQueue();
    for (let index = 0; index < 1000; index += 1) queue.add(`loud/${index}`);
    for (const key of ['quiet/a', 'other/a', 'quiet/b']) queue.add(key);
    const first: (string | undefined)[] = [];
    for (let index = 0; index < 6; index += 1) first.push(await queue.get());
    expect(first).to.deep.equal(['loud/0', 'quiet/a', 'other/a', 'loud/1', 'quiet/b', 'loud/2']);
    expect(queue.length).to.equal(997);
    queue.add('quiet/c');
    expect([await queue.get(), await queue.get(), await queue.get()]).to.deep.equal(['loud/3', 'quiet/c', 'loud/4']);
  });

  it('hands out keys of other namespaces although some are added again all the time', async () => {
    const { queue } = makeQueue();
    const handedOut: (string | undefined)[] = [];
    for (const key of ['quiet/a', 'quiet/b', 'quiet/c', 'loud/a']) queue.add(key);
    for (let index = 0; index < 6; index += 1) {
      const key = (await queue.get())!;
      handedOut.push(key);
      if (key === 'loud/a') queue.add(key);
      queue.done(key);
    }
    expect(handedOut).to.deep.equal(['quiet/a', 'loud/a', 'quiet/b', 'loud/a', 'quiet/c', 'loud/a']);
  });

  it('hands out so many keys of a namespace at a time, and the next when one is done', async () => {
    const { queue } = makeQueue({ perNamespace: 2 });
    for (const key of ['loud/a', 'loud/b', 'loud/c', '/tenant', '/other', '/third']) queue.add(key);
    const handedOut: (string | undefined)[] = [];
    const worker = async (): Promise<void> => void handedOut.push(await queue.get());
    for (let index = 0; index < 7; index += 1) void worker();
    await settle();
    expect(handedOut).to.deep.equal(['loud/a', '/tenant', 'loud/b', '/other', '/third']);
    expect(queue.length).to.equal(1);
    queue.add('loud/d');
    queue.add('loud/a');
    queue.add('quiet/a');
    await settle();
    expect(handedOut.slice(5)).to.deep.equal(['quiet/a']);
    for (const key of ['/tenant', 'quiet/a', 'loud/a']) queue.done(key);
    await settle();
    expect(handedOut.slice(6)).to.deep.equal(['loud/c']);
    for (const key of ['loud/b', 'loud/c']) queue.done(key);
    expect([await queue.get(), await queue.get(), queue.length]).to.deep.equal(['loud/d', 'loud/a', 0]);
  });

  it('hands a key to one worker at a time, and again if it was added in the meantime', async () => {
    const { queue } = makeQueue();
    queue.add('a');
    expect(await queue.get()).to.equal('a');
    queue.add('a');
    queue.add('a');
    expect(queue.length).to.equal(0);
    queue.done('a');
    expect(queue.length).to.equal(1);
    expect(await queue.get()).to.equal('a');
    queue.done('a');
    expect(queue.length).to.equal(0);
  });

  it('wakes a waiting worker', async () => {
    const { queue } = makeQueue();
    const got = queue.get();
    queue.add('a');
    expect(await got).to.equal('a');
  });

  it('adds keys after the shortest of several delays', async () => {
    const { clock, queue } = makeQueue();
    queue.addAfter('a', 100);
    queue.addAfter('a', 500);
    queue.addAfter('b', 500);
    queue.addAfter('b', 50);
    await clock.advance(50);
    expect(await queue.get()).to.equal('b');
    await clock.advance(50);
    expect(await queue.get()).to.equal('a');
    await clock.advance(1000);
    expect(queue.length).to.equal(0);
  });

  it('cancels the delay of a key that is added immediately', async () => {
    const { clock, queue } = makeQueue();
    queue.addAfter('a', 100);
    queue.add('a');
    expect(await queue.get()).to.equal('a');
    queue.done('a');
    await clock.advance(200);
    expect(queue.length).to.equal(0);
  });

  it('increases the delay of a key with each failure until it is forgotten', () => {
    const { queue } = makeQueue();
    expect([1, 2, 3].map(() => queue.addRateLimited('a'))).to.deep.equal([5, 10, 20]);
    expect(queue.addRateLimited('b')).to.equal(5);
    queue.forget('a');
    expect(queue.failuresOf('a')).to.equal(0);
    expect(queue.addRateLimited('a')).to.equal(5);
  });

  it('keeps the order of many keys', async () => {
    const { queue } = makeQueue();
    const keys = Array.from({ length: 5000 }, (_, index) => `key-${index}`);
    for (const key of keys) queue.add(key);
    for (const key of keys) {
      expect(await queue.get()).to.equal(key);
      queue.done(key);
    }
  });

  it('hands out nothing once closed', async () => {
    const { clock, queue } = makeQueue();
    const waiting = queue.get();
    queue.addAfter('a', 10);
    queue.close();
    queue.add('b');
    await clock.advance(100);
    expect(await waiting).to.equal(undefined);
    expect(await queue.get()).to.equal(undefined);
  });
});
