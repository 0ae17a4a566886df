import { expect } from 'chai';
import { eventually } from '../../testing/eventually.ts';
import { createTestDatabase, type TestDatabase } from '../../testing/test-database.ts';
import { type Hint, Hints, pauseAfter } from './hints.ts';

describe('hints', () => {
  let dropped: [channel: string, count: number][];
  const drop = (channel: string, count: number) => dropped.push([channel, count]);
  beforeEach(() => (dropped = []));

  for (const [taken, pause] of [
    [0.1, 2],
    [0.4, 2],
    [2, 10],
    [4, 20],
    [1000, 20],
  ] as const)
    it(`are collected for ${pause} ms after a statement of ${taken} ms`, () =>
      expect(pauseAfter(taken)).to.equal(pause));

  it('go together and once while others are being sent', async () => {
    const sent: (readonly Hint[])[] = [];
    const finishes: (() => void)[] = [];
    const hints = new Hints((batch) => {
      sent.push(batch);
      return new Promise<void>((resolve) => finishes.push(resolve));
    }, drop);
    hints.add([['a', '']]);
    hints.add([['a', '']]);
    await eventually(() => sent.length === 1);
    expect(sent[0]).to.deep.equal([['a', '']]);
    for (let n = 0; n < 100; n += 1) hints.add([['b', String(n % 3)]]);
    hints.add([['a', '']]);
    finishes.shift()!();
    await eventually(() => sent.length === 2);
    expect(sent[1]).to.deep.equal([
      ['b', '0'],
      ['b', '1'],
      ['b', '2'],
      ['a', ''],
    ]);
    finishes.shift()!();
    await hints.end();
  });

  it('of a channel become one for all who listen, once too many wait, and those of other channels stay', async () => {
    const sent: (readonly Hint[])[] = [];
    const finishes: (() => void)[] = [];
    const hints = new Hints((batch) => {
      sent.push(batch);
      return new Promise<void>((resolve) => finishes.push(resolve));
    }, drop);
    hints.add([['a', 'first']]);
    await eventually(() => sent.length === 1);
    for (let n = 0; n < 10_000; n += 1) hints.add([['a', String(n)]]);
    hints.add([['b', 'kept']]);
    hints.add([['a', '0']]);
    for (let n = 10_000; n < 15_000; n += 1) hints.add([['a', String(n)]]);
    finishes.shift()!();
    await eventually(() => sent.length === 2);
    expect(sent[1]).to.deep.equal([
      ['a', ''],
      ['b', 'kept'],
    ]);
    expect(dropped).to.deep.equal([['a', 15_000]]);
    hints.add([['a', 'again']]);
    finishes.shift()!();
    await eventually(() => sent.length === 3);
    expect(sent[2]).to.deep.equal([['a', 'again']]);
    finishes.shift()!();
    await hints.end();
  });

  it('are sent again with later ones after a failure, but not once the process ends', async () => {
    const sent: (readonly Hint[])[] = [];
    const hints = new Hints((batch) => {
      sent.push(batch);
      return sent.length === 2 ? Promise.resolve() : Promise.reject(new Error('away'));
    }, drop);
    hints.add([['a', '1']]);
    await eventually(() => sent.length === 1);
    hints.add([['a', '2']]);
    await eventually(() => sent.length === 2);
    expect(sent[1]).to.have.deep.members([
      ['a', '1'],
      ['a', '2'],
    ]);
    hints.add([['a', '3']]);
    await hints.end();
    expect(sent.slice(2)).to.deep.equal([[['a', '3']]]);
    expect(dropped).to.deep.equal([]);
  });

  describe('of transactions', () => {
    let test: TestDatabase;
    let heard: string[];
    beforeEach(async () => {
      test = await createTestDatabase();
      heard = [];
      let isListening = false;
      test.database.listen(
        ['a', 'b'],
        (channel, payload) => heard.push(`${channel} ${payload}`),
        (lost) => (isListening = !lost),
      );
      await eventually(() => isListening);
    });
    afterEach(() => test.drop());

    it('arrive once they have committed, and not if they were rolled back', async () => {
      const failure = await test.database
        .system(async (tx) => {
          tx.hint('a', ['rolled back']);
          await tx.query('SELECT 1 / 0');
        })
        .catch(String);
      expect(failure).to.contain('division by zero');
      await test.database.tenant('acme', async (tx) => {
        tx.hint('a', ['1', '2']);
        tx.hint('b');
        await tx.query('SELECT 1');
        expect(heard).to.deep.equal([]);
      });
      test.database.hint('b');
      await eventually(() => heard.length >= 3);
      // The last one may have followed by itself.
      expect([...new Set(heard)]).to.have.members(['a 1', 'a 2', 'b ']);
    });
  });
});
