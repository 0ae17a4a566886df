import { expect } from 'chai';
import type { KelletError } from '../../platform/errors.ts';
import { eventually } from '../../platform/testing/eventually.ts';
import { BodyMemory } from './body-memory.ts';
import { type Contents, LargeRequests } from './large-requests.ts';

const mebibyte = 1024 * 1024;

describe('large requests', function () {
  this.timeout(10_000);
  let requests: LargeRequests;
  let running: Map<string, (() => void)[]>;

  beforeEach(() => {
    requests = new LargeRequests(new BodyMemory());
    running = new Map();
  });

  /** Starts a request that runs until its tenant's `finish`. Returns its outcome. */
  const send = (tenantId: string, bytes = mebibyte, contents: Contents = 'points'): Promise<string> =>
    requests
      .run(tenantId, bytes, contents, async () => {
        await new Promise<void>((resolve) => running.set(tenantId, [...(running.get(tenantId) ?? []), resolve]));
        return 'done';
      })
      .catch((error: unknown) => (error as KelletError).code);
  const count = (tenantId: string) => running.get(tenantId)?.length ?? 0;
  const finish = (tenantId: string) =>
    running
      .get(tenantId)
      ?.splice(0)
      .forEach((end) => end());
  const settled = () => new Promise((resolve) => setTimeout(resolve, 50));

  it('run a few at a time, those of another tenant at once, and small ones always', async () => {
    const outcomes = Array.from({ length: 10 }, () => send('busy'));
    await settled();
    expect(count('busy')).to.equal(2);
    const other = send('other');
    const small = send('busy', 256 * 1024);
    await eventually(() => count('other') === 1 && count('busy') === 3);
    finish('other');
    expect(await other).to.equal('done');
    const drain = setInterval(() => finish('busy'), 5);
    expect(new Set(await Promise.all([...outcomes, small]))).to.deep.equal(new Set(['done']));
    clearInterval(drain);
  });

  it('of other contents run a few at a time if they have more than 16 KiB, and those of strangers always', async () => {
    const outcomes = Array.from({ length: 20 }, () => send('busy', 17 * 1024, 'others'));
    await settled();
    expect(count('busy')).to.equal(8);
    const [other, small] = [send('other', mebibyte, 'others'), send('busy', 16 * 1024, 'others')];
    const strangers = Array.from({ length: 20 }, () => send('', 64 * 1024, 'others'));
    await eventually(() => count('other') === 1 && count('busy') === 9 && count('') === 20);
    const drain = setInterval(() => ['busy', 'other', ''].forEach(finish), 5);
    expect(new Set(await Promise.all([...outcomes, ...strangers, other, small]))).to.deep.equal(new Set(['done']));
    clearInterval(drain);
  });

  it('reject those whose turn does not come', async () => {
    const outcomes = Array.from({ length: 3 }, () => send('busy'));
    expect(await outcomes[2]).to.equal('UNAVAILABLE');
    finish('busy');
    expect(await Promise.all(outcomes.slice(0, 2))).to.deep.equal(['done', 'done']);
  });

  it('hold at most 64 MiB of a tenant that wait', async () => {
    const outcomes = Array.from({ length: 2 + 20 }, () => send('busy', 4 * mebibyte));
    const rejected: number[] = [];
    outcomes.forEach((outcome, index) => void outcome.then((code) => code !== 'done' && rejected.push(index)));
    await settled();
    // The oldest.
    expect(rejected).to.deep.equal([2, 3, 4, 5]);
    const drain = setInterval(() => finish('busy'), 5);
    await Promise.all(outcomes);
    clearInterval(drain);
    expect(rejected).to.have.length(4);
  });

  it('let others run between two', async () => {
    const order: string[] = [];
    const work = (name: string) =>
      requests.run('busy', mebibyte, 'points', async () => {
        order.push(name);
      });
    const all = Promise.all([work('a'), work('b'), work('c')]);
    setImmediate(() => order.push('other'));
    await all;
    expect(order.indexOf('other')).to.be.lessThan(3);
  });
});
