import { expect } from 'chai';
import { ConcurrentWork, forEachConcurrently } from './concurrent-work.ts';

/** Lets promises that are settled go on. */
const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

describe('concurrent work', () => {
  /** Begins pieces of some sizes, as far as there is room. Returns the names of those that began, and how to end and fail one. */
  const started = (work: ConcurrentWork, sizes: readonly number[]) => {
    const begun: number[] = [];
    const gates = sizes.map(() => Promise.withResolvers<void>());
    const all = (async () => {
      for (const [index, bytes] of sizes.entries())
        await work.begin(() => {
          begun.push(index);
          return gates[index]!.promise;
        }, bytes);
      await work.end();
    })();
    const failure = all.then(
      () => undefined,
      (error: unknown) => error,
    );
    return { begun, gates, failure };
  };

  it('begins as many pieces as may run, and another when one ends, whichever', async () => {
    const { begun, gates, failure } = started(new ConcurrentWork({ pieces: 3 }), [0, 0, 0, 0, 0]);
    await turn();
    expect(begun).to.deep.equal([0, 1, 2]);
    gates[1]!.resolve();
    await turn();
    expect(begun).to.deep.equal([0, 1, 2, 3]);
    for (const gate of gates) gate.resolve();
    expect(await failure).to.equal(undefined);
    expect(begun).to.deep.equal([0, 1, 2, 3, 4]);
  });

  it('begins none while those that run have more bytes than may be, and lets a larger one run alone', async () => {
    const { begun, gates, failure } = started(new ConcurrentWork({ pieces: 8, bytes: 10 }), [6, 4, 1, 50, 1]);
    await turn();
    // The third is one too many, and so nothing follows it.
    expect(begun).to.deep.equal([0, 1, 2]);
    gates[0]!.resolve();
    await turn();
    expect(begun).to.deep.equal([0, 1, 2, 3]);
    gates[1]!.resolve();
    gates[2]!.resolve();
    await turn();
    expect(begun).to.deep.equal([0, 1, 2, 3]);
    gates[3]!.resolve();
    await turn();
    expect(begun).to.deep.equal([0, 1, 2, 3, 4]);
    gates[4]!.resolve();
    expect(await failure).to.equal(undefined);
  });

  it('begins nothing after a failure, and throws it', async () => {
    const work = new ConcurrentWork({ pieces: 2 });
    const { begun, gates, failure } = started(work, [0, 0, 0]);
    await turn();
    gates[1]!.reject(new Error('full'));
    expect(await failure).to.have.property('message', 'full');
    expect(begun).to.deep.equal([0, 1]);
    let isSettled = false;
    const settled = work.settle().then(() => (isSettled = true));
    await turn();
    expect(isSettled).to.equal(false);
    gates[0]!.resolve();
    await settled;
  });

  it('for each item throws only when nothing runs any more', async () => {
    const running = new Set<number>();
    const done: number[] = [];
    const work = async (item: number): Promise<void> => {
      running.add(item);
      await turn();
      if (item !== 2) for (let turns = 0; turns < 20; turns += 1) await turn();
      running.delete(item);
      if (item === 2) throw new Error('two');
      done.push(item);
    };
    const failure = await forEachConcurrently([1, 2, 3, 4], 3, work).catch((error: unknown) => error);
    expect(failure).to.have.property('message', 'two');
    expect([...running]).to.deep.equal([]);
    expect(done.toSorted()).to.deep.equal([1, 3]);
    await forEachConcurrently([5, 6, 7, 8], 3, work);
    expect(done.toSorted()).to.deep.equal([1, 3, 5, 6, 7, 8]);
  });
});
