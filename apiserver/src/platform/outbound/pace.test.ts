import { expect } from 'chai';
import { sleep } from '../clock.ts';
import { pace, TooSlowError } from './pace.ts';

describe('pace', () => {
  const limits = { idleMilliseconds: 1000, totalMilliseconds: 1000, bytesPerSecond: 1, graceMilliseconds: 0 };
  async function* drip(count: number, milliseconds: number): AsyncGenerator<Buffer> {
    for (let index = 0; index < count; index += 1) {
      await sleep(milliseconds);
      yield Buffer.from('x');
    }
  }
  const outcome = async (
    source: AsyncIterable<Buffer>,
    given: Partial<typeof limits>,
    work = 0,
    signal?: AbortSignal,
  ) => {
    let length = 0;
    try {
      for await (const piece of pace(source, { ...limits, ...given }, (piece) => piece.length, signal)) {
        length += piece.length;
        await sleep(work);
      }
      return length;
    } catch (error) {
      return error as Error;
    }
  };

  it('passes everything on while it arrives fast enough, however long processing takes', async () => {
    expect(await outcome(drip(5, 1), { idleMilliseconds: 30 }, 50)).to.equal(5);
    expect(await outcome(drip(0, 1), {})).to.equal(0);
  });

  it('ends a stall, and a trickle that takes too long', async () => {
    expect(await outcome(drip(2, 100), { idleMilliseconds: 20 }))
      .to.be.instanceOf(TooSlowError)
      .with.property('message')
      .match(/no data arrived/);
    expect(await outcome(drip(1000, 5), { totalMilliseconds: 60 }))
      .to.be.instanceOf(TooSlowError)
      .with.property('message')
      .match(/did not arrive within/);
    expect(await outcome(drip(1000, 5), { bytesPerSecond: 1000, graceMilliseconds: 30 }))
      .to.be.instanceOf(TooSlowError)
      .with.property('message')
      .match(/fewer than 1000 bytes per second/);
  });

  it('ends at once when aborted, and passes errors on', async () => {
    const stopping = new AbortController();
    const running = outcome(drip(1, 1000), {}, 0, stopping.signal);
    stopping.abort(new Error('aborted'));
    expect(await running).to.have.property('message', 'aborted');
    const broken = (async function* () {
      yield Buffer.from('x');
      throw new Error('interrupted');
    })();
    expect(await outcome(broken, {})).to.have.property('message', 'interrupted');
  });
});
