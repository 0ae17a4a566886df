import { expect } from 'chai';
import { settle } from './testing/test-clock.ts';
import { Turns } from './turns.ts';

describe('Turns', () => {
  it('does one work of an owner at a time, and so many in all, in turns', async () => {
    const turns = new Turns(2);
    const begun: string[] = [];
    const ends = new Map<string, () => void>();
    const start = (owner: string, name: string): Promise<string> =>
      turns.run(owner, async () => {
        begun.push(name);
        await new Promise<void>((resolve) => ends.set(name, resolve));
        return name;
      });
    const end = async (name: string): Promise<void> => {
      ends.get(name)!();
      await settle();
    };
    const all = ['a1', 'a2', 'a3', 'b1', 'b2', 'c1'].map((name) => start(name[0]!, name));
    await settle();
    expect(begun).to.deep.equal(['a1', 'b1']);
    await end('a1');
    expect(begun.slice(2)).to.deep.equal(['c1']);
    await end('b1');
    expect(begun.slice(3)).to.deep.equal(['a2']);
    for (const name of ['a2', 'c1', 'b2', 'a3']) await end(name);
    expect(await Promise.all(all)).to.deep.equal(['a1', 'a2', 'a3', 'b1', 'b2', 'c1']);
  });

  it('goes on after a failure', async () => {
    const turns = new Turns(1);
    const failed = turns.run('a', () => Promise.reject(new Error('no')));
    const done = turns.run('a', async () => 'done');
    expect(await failed.catch((error: Error) => error.message)).to.equal('no');
    expect(await done).to.equal('done');
    expect(await turns.run('b', async () => 'too')).to.equal('too');
  });
});
