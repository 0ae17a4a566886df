import { expect } from 'chai';
import { Hints, type Hint } from './hints.ts';
import { eventually } from '../testing/eventually.ts';
import { createTestDatabase, type TestDatabase } from '../testing/test-database.ts';

describe('hints', () => {
  it('go together and once while others are being sent', async () => {
    const sent: (readonly Hint[])[] = [];
    const finishes: (() => void)[] = [];
    const hints = new Hints((batch) => {
      sent.push(batch);
      return new Promise<void>((resolve) => finishes.push(resolve));
    });
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

  it('are dropped while the database takes none', async () => {
    const sent: (readonly Hint[])[] = [];
    let refuse: (error: Error) => void = () => undefined;
    const hints = new Hints((batch) => {
      sent.push(batch);
      return sent.length === 1 ? new Promise((_, reject) => (refuse = reject)) : Promise.resolve();
    });
    hints.add([['a', 'lost']]);
    await eventually(() => sent.length === 1);
    for (let n = 0; n < 20_000; n += 1) hints.add([['a', String(n)]]);
    refuse(new Error('away'));
    await hints.end();
    expect(sent.map((batch) => batch.length)).to.deep.equal([1, 10_000]);
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
      await eventually(() => heard.length === 3);
      expect(heard).to.have.members(['a 1', 'a 2', 'b ']);
    });
  });
});
