import { setImmediate } from 'node:timers/promises';
import { expect } from 'chai';
import { beginTrace, currentTrace, inTrace } from '../observability/tracing.ts';
import { Batches } from './keyed-batches.ts';

describe('batches', () => {
  it('belong to no call, whichever call has started them', async () => {
    const seen: unknown[] = [];
    const batches = new Batches<number, number>(3, async (_key, items) => {
      await setImmediate();
      seen.push(currentTrace());
      return items;
    });
    const trace = beginTrace('call', 'SERVER', undefined, () => ({}));
    await inTrace(trace, async () => {
      await batches.add('a', 1);
      expect(currentTrace()).to.equal(trace);
    });
    expect(seen).to.deep.equal([undefined]);
  });

  it('run one at a time per key, with everything that arrived meanwhile', async () => {
    const ran: number[][] = [];
    const release: (() => void)[] = [];
    const batches = new Batches<number, number>(3, async (_key, items) => {
      ran.push([...items]);
      await new Promise<void>((resolve) => release.push(resolve));
      return items.map((item) => item * 10);
    });
    const first = [batches.add('a', 1), batches.add('a', 2)];
    await setImmediate();
    const second = [3, 4, 5, 6].map((item) => batches.add('a', item));
    await setImmediate();
    expect(ran).to.deep.equal([[1, 2]]);
    release[0]!();
    expect(await Promise.all(first)).to.deep.equal([10, 20]);
    await setImmediate();
    expect(ran[1]).to.deep.equal([3, 4, 5]);
    release[1]!();
    expect(await Promise.all(second.slice(0, 3))).to.deep.equal([30, 40, 50]);
    await setImmediate();
    release[2]!();
    expect(await second[3]).to.equal(60);
    expect(ran).to.have.length(3);
  });

  it('take what arrives one after another in a turn of the event loop', async () => {
    const sizes: number[] = [];
    const batches = new Batches<number, number>(100, (_key, items) => {
      sizes.push(items.length);
      return Promise.resolve(items);
    });
    const added: Promise<number>[] = [];
    for (let item = 0; item < 10; item += 1) {
      added.push(batches.add('a', item));
      // As between the callbacks of two connections, everything that has resolved runs.
      await Promise.resolve();
    }
    await Promise.all(added);
    expect(sizes).to.deep.equal([10]);
  });

  it('have a bounded number of items that wait', async () => {
    const batches = new Batches<number, number>(2, (_key, items) => Promise.resolve(items), 5);
    const outcomes = await Promise.allSettled(Array.from({ length: 7 }, (_, item) => batches.add('a', item)));
    const refusals = outcomes.flatMap((one) =>
      one.status === 'rejected' ? [(one.reason as { code: string }).code] : [],
    );
    expect(refusals).to.deep.equal(['UNAVAILABLE', 'UNAVAILABLE']);
    expect(await batches.add('a', 8), 'later ones are taken').to.equal(8);
  });

  it('of other keys do not wait', async () => {
    const batches = new Batches<number, string>(3, (key, items) =>
      key === 'stuck' ? new Promise(() => undefined) : Promise.resolve(items.map(() => key)),
    );
    void batches.add('stuck', 1);
    expect(await batches.add('free', 1)).to.equal('free');
  });

  it('fail alone', async () => {
    let fails = true;
    const batches = new Batches<number, number>(3, (_key, items) =>
      fails ? Promise.reject(new Error('away')) : Promise.resolve(items),
    );
    const outcomes = await Promise.allSettled([batches.add('a', 1), batches.add('a', 2)]);
    expect(outcomes.map(({ status }) => status)).to.deep.equal(['rejected', 'rejected']);
    fails = false;
    expect(await batches.add('a', 3)).to.equal(3);
  });
});
