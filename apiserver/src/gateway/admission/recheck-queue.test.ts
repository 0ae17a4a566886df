import { expect } from 'chai';
import { RecheckQueue } from './recheck-queue.ts';

describe('calls to be checked again', () => {
  const all = (queue: RecheckQueue<string>): string[] => {
    const taken: string[] = [];
    for (let item = queue.take(); item !== undefined; item = queue.take()) taken.push(item);
    return taken;
  };

  it('take turns by tenant, each in the order of arrival and once', () => {
    const queue = new RecheckQueue<string>();
    for (const item of ['a1', 'a2', 'a1', 'a3', 'b1', 'b2', 'c1']) queue.add(item[0]!, item);
    expect(all(queue)).to.deep.equal(['a1', 'b1', 'c1', 'a2', 'b2', 'a3']);
    expect(queue.isEmpty).to.equal(true);
  });

  it('do not keep those of others waiting although they come again all the time', () => {
    const queue = new RecheckQueue<string>();
    for (const item of ['a1', 'a2', 'a3', 'b1']) queue.add(item[0]!, item);
    const taken: (string | undefined)[] = [];
    for (let index = 0; index < 6; index += 1) {
      const item = queue.take();
      taken.push(item);
      if (item === 'b1') queue.add('b', item);
    }
    expect(taken).to.deep.equal(['a1', 'b1', 'a2', 'b1', 'a3', 'b1']);
  });

  it('may leave before their turn, and come again', () => {
    const queue = new RecheckQueue<string>();
    for (const item of ['a1', 'a2', 'b1']) queue.add(item[0]!, item);
    queue.remove('b', 'b1');
    queue.remove('a', 'a1');
    queue.remove('c', 'c1');
    expect(queue.take()).to.equal('a2');
    expect(queue.isEmpty).to.equal(true);
    queue.add('a', 'a1');
    queue.add('b', 'b1');
    expect(queue.take()).to.equal('a1');
    queue.add('a', 'a1');
    expect(all(queue)).to.deep.equal(['b1', 'a1']);
    for (const item of ['a1', 'a2', 'b1']) queue.add(item[0]!, item);
    queue.removeAll('a');
    expect(all(queue)).to.deep.equal(['b1']);
  });
});
