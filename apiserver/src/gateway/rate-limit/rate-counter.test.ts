// Timing that real stores cannot be made to show. Their own tests cover the rest.
import { expect } from 'chai';
import { sleep } from '../../platform/clock.ts';
import { eventually } from '../../platform/testing/eventually.ts';
import { CoalescingRateCounter } from './rate-counter.ts';
import type { Counted } from './rate-window.ts';

/** A store of one tenant that awaits `response` before it responds. */
class SlowStore extends CoalescingRateCounter {
  hits = 0;
  added: number[] = [];
  givenBack: number[] = [];
  response = (): Promise<void> => Promise.resolve();

  protected async add(counts: ReadonlyMap<string, number>): Promise<readonly Counted[]> {
    const [[tenantId, count]] = [...counts] as [[string, number]];
    this.added.push(count);
    this.hits += count;
    await this.response();
    return [{ tenantId, hits: this.hits, windowMinute: 10, now: 600 }];
  }

  protected giveBack(_tenantId: string, _windowMinute: number, hits: number): Promise<unknown> {
    this.givenBack.push(hits);
    return Promise.resolve();
  }

  protected onTimeout(): void {}
}

describe('a rate counter', () => {
  it('returns reserved requests when the store reports, late, that the limit is near', async () => {
    const store = new SlowStore();
    const some = () => Promise.all(Array.from({ length: 200 }, () => store.hit('acme', 100_000)));
    await some();
    store.response = async () => {
      // Longer than reservations are held; meanwhile other gateways exhaust the window.
      await sleep(200);
      store.hits = 95_000;
    };
    await some();
    const ahead = store.added.at(-1)! - 200;
    expect(ahead).to.be.above(0);
    await eventually(() => store.givenBack.includes(ahead));
    expect(store.givenBack).to.deep.equal([ahead]);
  });
});
