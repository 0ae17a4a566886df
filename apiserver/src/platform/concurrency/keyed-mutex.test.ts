import { expect } from 'chai';
import { KeyedMutex } from './keyed-mutex.ts';

describe('the keyed mutex', () => {
  it('runs one at a time per key, in order, and continues after a failure', async () => {
    const turns = new KeyedMutex(10);
    const log: string[] = [];
    const work = (name: string, fails = false) =>
      turns.run('key', async () => {
        log.push(`${name} begins`);
        await new Promise((resolve) => setTimeout(resolve, 1));
        log.push(`${name} ends`);
        if (fails) throw new Error(name);
      });
    const results = await Promise.allSettled([work('a'), work('b', true), work('c')]);
    expect(log).to.deep.equal(['a begins', 'a ends', 'b begins', 'b ends', 'c begins', 'c ends']);
    expect(results.map((result) => result.status)).to.deep.equal(['fulfilled', 'rejected', 'fulfilled']);
  });

  it('does not delay other keys, and rejects calls beyond the limit', async () => {
    const turns = new KeyedMutex(2);
    let release: () => void = () => undefined;
    const held = new Promise<void>((resolve) => (release = resolve));
    const waiting = [turns.run('key', () => held), turns.run('key', () => held)];
    const refused = await turns.run('key', async () => 'ran').catch((error: Error) => error.message);
    expect(refused).to.equal('too many concurrent attempts');
    expect(await turns.run('other', async () => 'ran')).to.equal('ran');
    release();
    await Promise.all(waiting);
    expect(await turns.run('key', async () => 'ran')).to.equal('ran');
  });
});
