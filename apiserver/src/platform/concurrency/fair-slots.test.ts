import { expect } from 'chai';
import { FairSlots, NoSlotError } from './fair-slots.ts';

describe('fair slots', () => {
  const signal = new AbortController().signal;
  /** Lets pending callbacks run. */
  const settle = () => new Promise((resolve) => setImmediate(resolve));
  const failure = (work: Promise<unknown>) =>
    work.then(
      () => undefined,
      (error: unknown) => error,
    );

  it('admit no more than the limits in total and per owner', async () => {
    const slots = new FairSlots({ total: 3, perOwner: 2, waitingPerOwner: 10 });
    const order: string[] = [];
    const enter = async (owner: string) => {
      const release = await slots.acquire(owner, { signal });
      order.push(owner);
      return release;
    };
    const entries = ['a', 'a', 'a', 'b', 'b'].map(enter);
    await settle();
    expect(order).to.deep.equal(['a', 'a', 'b']);
    expect([slots.running, slots.waiting]).to.deep.equal([3, 2]);
    (await entries[3]!)();
    await settle();
    expect(order, 'a has both of its slots').to.deep.equal(['a', 'a', 'b', 'b']);
    for (const entry of entries.slice(0, 2)) (await entry)();
    await settle();
    expect(order).to.deep.equal(['a', 'a', 'b', 'b', 'a']);
    for (const entry of entries) (await entry)();
    expect([slots.running, slots.waiting]).to.deep.equal([0, 0]);
  });

  it('alternate between owners, however many of one are waiting', async () => {
    const slots = new FairSlots({ total: 1, perOwner: 1, waitingPerOwner: 100 });
    const order: string[] = [];
    const first = await slots.acquire('x', { signal });
    const all = ['a', 'a', 'a', 'a', 'b', 'c', 'b'].map(async (owner) => {
      const release = await slots.acquire(owner, { signal });
      order.push(owner);
      release();
    });
    first();
    await Promise.all(all);
    expect(order.slice(0, 5).join('')).to.equal('abcab');
    expect(order).to.have.length(7);
  });

  it('report whether the slots are occupied by the owner or by others', async () => {
    const slots = new FairSlots({ total: 2, perOwner: 1, waitingPerOwner: 1 });
    const releases = [await slots.acquire('a', { signal }), await slots.acquire('b', { signal })];
    expect(await failure(slots.acquire('a', { signal, milliseconds: 5 }))).to.include({ whose: 'own' });
    expect(await failure(slots.acquire('c', { signal, milliseconds: 5 }))).to.include({ whose: 'others' });
    const waits = slots.acquire('a', { signal });
    expect(await failure(slots.acquire('a', { signal })), 'the queue is full')
      .to.be.instanceOf(NoSlotError)
      .that.includes({ whose: 'own' });
    expect(slots.waiting).to.equal(1);
    for (const release of releases) release();
    (await waits)();
    expect(slots.running).to.equal(0);
  });

  it('limit the waiters of all owners together', async () => {
    const slots = new FairSlots({ total: 1, perOwner: 1, waitingPerOwner: 5, waiting: 2 });
    const release = await slots.acquire('a');
    const waits = [slots.acquire('a'), slots.acquire('b')];
    expect(await failure(slots.acquire('c')))
      .to.be.instanceOf(NoSlotError)
      .that.includes({ whose: 'others' });
    release();
    for (const wait of waits) (await wait)();
    (await slots.acquire('c'))();
  });

  it('make room for those with few waiters when those with many have taken all places', async () => {
    const slots = new FairSlots({ total: 1, perOwner: 1, waitingPerOwner: 5, waiting: 6 });
    const release = await slots.acquire('a');
    const order: string[] = [];
    const enter = (owner: string) =>
      slots
        .run(owner, async () => void order.push(owner))
        .catch((error: unknown) => void order.push(`no ${owner} ${String(error)}`));
    const all = ['a', 'a', 'a', 'b', 'b', 'a', 'c', 'c', 'd', 'c', 'b'].map(enter);
    await settle();
    // The newest of those with the most leave, until a further one would have as many itself.
    const left = ['a', 'a', 'a', 'b', 'c'].map((owner) => `no ${owner} NoSlotError: no slot`);
    expect(order).to.have.members(left);
    expect(slots.waiting).to.equal(6);
    release();
    await Promise.all(all);
    expect(order.slice(left.length)).to.deep.equal(['a', 'b', 'c', 'd', 'b', 'c']);
  });

  it('are asked for by those with fewer, until all have as many', async () => {
    const slots = new FairSlots({ total: 8, perOwner: 4, waitingPerOwner: 9, askAfterMilliseconds: 5 });
    const releases: (() => void)[] = [];
    const asked: string[] = [];
    for (const name of ['a1', 'a2', 'a3', 'a4', 'b1', 'b2', 'b3', 'b4']) {
      const index = releases.length;
      const giveWay = () => {
        asked.push(name);
        releases[index]!();
      };
      releases.push(await slots.acquire(name[0]!, { giveWay }));
    }
    const waits = Array.from({ length: 4 }, () => slots.acquire('c'));
    const more = failure(slots.acquire('a', { milliseconds: 60 }));
    await Promise.all(waits.slice(0, 2));
    expect(await more, 'one with more asks for none').to.be.instanceOf(NoSlotError);
    expect(asked).to.deep.equal(['a1', 'b1']);
    expect([slots.running, slots.waiting]).to.deep.equal([8, 2]);
    releases[1]!();
    releases[2]!();
    for (const release of await Promise.all(waits)) release();
    for (const release of releases) release();
    expect([slots.running, slots.waiting]).to.deep.equal([0, 0]);
  });

  it('drop waiters that give up and release a slot only once', async () => {
    const slots = new FairSlots({ total: 1, perOwner: 1, waitingPerOwner: 5 });
    const release = await slots.acquire('a', { signal });
    const leaving = new AbortController();
    const left = failure(slots.acquire('b', { signal: leaving.signal }));
    leaving.abort(new Error('gone'));
    expect(await left).to.have.property('message', 'gone');
    expect(await failure(slots.acquire('b', { signal: leaving.signal }))).to.have.property('message', 'gone');
    const next = slots.acquire('c', { signal });
    release();
    release();
    await next;
    expect([slots.running, slots.waiting]).to.deep.equal([1, 0]);
  });
});
