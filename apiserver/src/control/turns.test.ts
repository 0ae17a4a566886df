import { expect } from 'chai';
import { Turns } from './turns.ts';

describe('turns', () => {
  const pause = () => new Promise((resolve) => setTimeout(resolve, 1));

  it('run one at a time and in order for a key, also after a failure', async () => {
    const turns = new Turns();
    const log: string[] = [];
    const work = (name: string, fails = false) =>
      turns.take('key', async () => {
        log.push(`${name} begins`);
        await pause();
        log.push(`${name} ends`);
        if (fails) throw new Error(name);
        return name;
      });
    const answers = await Promise.allSettled([work('a'), work('b', true), work('c')]);
    expect(answers.map((answer) => answer.status)).to.deep.equal(['fulfilled', 'rejected', 'fulfilled']);
    expect(log).to.deep.equal(['a begins', 'a ends', 'b begins', 'b ends', 'c begins', 'c ends']);
  });

  it('do not hold up other keys', async () => {
    const turns = new Turns();
    let open: () => void = () => undefined;
    const held = turns.take('held', () => new Promise<void>((resolve) => (open = resolve)));
    expect(await turns.take('other', async () => 'done')).to.equal('done');
    open();
    await held;
  });
});
