import { expect } from 'chai';
import { testPoint } from '../testing/test-devices.ts';
import { Append, costOf, ownerOf, ownPoints, type Part } from './append.ts';
import { FlushQueue, flushWeight } from './flush-queue.ts';

const part = (owner: string, weight: number): Part => ({
  ...{ append: new Append(Infinity), owner, weight, points: [], offset: 0, idempotency: undefined },
});

const queueOf = (...parts: readonly Part[]): FlushQueue => {
  const queue = new FlushQueue();
  for (const one of parts) queue.add(one);
  return queue;
};

/** Returns the owners of the next groups, each with the weights of its parts. */
const groups = (queue: FlushQueue, count: number): string[][] =>
  Array.from({ length: count }, () => queue.take().parts.map(({ owner, weight }) => `${owner} ${weight}`));

const repeated = (owner: string, weight: number, count: number): Part[] =>
  Array.from({ length: count }, () => part(owner, weight));

describe('the queue of a writer', () => {
  it('flushes as much as fits, in order', () => {
    const queue = queueOf(part('a', 6000), part('a', 4000), part('a', 1), part('a', flushWeight + 1), part('a', 2));
    expect(groups(queue, 4)).to.deep.equal([['a 6000', 'a 4000'], ['a 1'], [`a ${flushWeight + 1}`], ['a 2']]);
    expect(queue.isEmpty).to.equal(true);
  });

  it('has what one tenant sends in the next flush, however much of another waits', () => {
    const queue = queueOf(...repeated('a', 2000, 100), part('b', 1));
    expect(groups(queue, 1)).to.deep.equal([['a 2000', 'a 2000', 'a 2000', 'b 1', 'a 2000']]);
    queue.add(part('c', 3));
    expect(groups(queue, 1)[0]).to.include('c 3');
  });

  it('gives each tenant its share of a flush, and what the others leave of theirs', () => {
    const queue = queueOf(...repeated('a', 1000, 20), ...repeated('b', 1000, 20), ...repeated('c', 500, 2));
    const taken = queue.take().parts;
    const weightOfOwner = (owner: string) =>
      taken.filter((one) => one.owner === owner).reduce((sum, one) => sum + one.weight, 0);
    expect(['a', 'b', 'c'].map(weightOfOwner)).to.deep.equal([5000, 4000, 1000]);
  });

  it('lets tenants that had no turn go first in the next flush', () => {
    const queue = queueOf(
      ...['a', 'b', 'c', 'd'].flatMap((owner) => repeated(owner, 5000, 2)),
      part('e', flushWeight + 1),
    );
    expect(groups(queue, 3)).to.deep.equal([['a 5000', 'b 5000'], ['c 5000', 'd 5000'], [`e ${flushWeight + 1}`]]);
    expect(groups(queue, 2)).to.deep.equal([
      ['a 5000', 'b 5000'],
      ['c 5000', 'd 5000'],
    ]);
    expect(queue.isEmpty).to.equal(true);
  });

  it('puts groups back in order, before what has arrived since', () => {
    const queue = queueOf(part('a', 6000), part('a', 6001), part('b', 1));
    const first = queue.take();
    const second = queue.take();
    queue.add(part('b', 2));
    queue.putBack(second);
    queue.putBack(first);
    expect(groups(queue, 2)).to.deep.equal([['a 6000', 'b 1', 'b 2'], ['a 6001']]);
  });

  it('flushes the others before those that may make a flush fail', () => {
    const queue = queueOf(part('a', 1), part('b', 2), part('a', 3), part('c', 4));
    const group = queue.take();
    queue.add(part('c', 5));
    queue.setApart(group, ({ owner }) => owner === 'a');
    expect(queue.hasSuspects).to.equal(true);
    expect(groups(queue, 2)).to.deep.equal([
      ['b 2', 'c 4'],
      ['a 1', 'a 3', 'c 5'],
    ]);
  });

  it('drops what has failed already', () => {
    const late = part('a', 1);
    const queue = queueOf(late, part('a', 2));
    late.append.done.catch(() => undefined);
    late.append.fail(new Error('late'));
    expect(groups(queue, 1)).to.deep.equal([['a 2']]);
    expect(queue.isEmpty).to.equal(true);
  });
});

describe('points that wait to be stored', () => {
  const point = testPoint('acme', 1, 1_790_000_000, 1);

  it('are the tenant’s, but for those that the service has made', () => {
    const key = { tenantId: 'acme', holder: '', idempotencyKey: 'k', requestHash: '', response: '' };
    expect(ownerOf([point], undefined)).to.equal('acme');
    expect(ownerOf([], key)).to.equal('acme');
    expect(ownerOf([{ ...point, isOwn: true }], undefined)).to.equal(ownPoints);
    expect(ownerOf([{ ...point, resultId: 'r' }], undefined)).to.equal(ownPoints);
  });

  it('weigh more if they are large, or have an anchor of their own', () => {
    expect(costOf([point, point, point]).weight).to.equal(3);
    expect(costOf([{ ...point, payload: 'x'.repeat(40_000) }, point]).weight).to.equal(101);
    expect(costOf([testPoint('acme', 1, 1_790_000_000, 1, 'per_event')]).weight).to.equal(10);
  });

  it('take more memory as objects than as rows', () => {
    const { length } = point.payload;
    const row = { bytes: Buffer.alloc(0), rowStart: 0, rowEnd: length };
    const [asObjects, asRow] = [costOf([point]).memory, costOf([{ ...point, row }]).memory];
    expect(asObjects).to.equal(2 * asRow);
    expect(asRow).to.be.at.least(length);
  });
});
