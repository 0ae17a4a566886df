import { setImmediate } from 'node:timers/promises';
import { expect } from 'chai';
import { DecodingTurns } from './decoding-turns.ts';

describe('the turns of decoding', () => {
  const begin = () => {
    const turns = new DecodingTurns();
    const begun: string[] = [];
    const send = (owner: string, bytes: number, count = 1): void => {
      for (let at = 1; at <= count; at += 1) {
        const turn = turns.enter(owner, bytes);
        const take = (): void => void begun.push(`${owner}${at}`);
        if (turn) void turn.then(take);
        else take();
      }
    };
    return { begun, send };
  };

  it('begin at once for few bytes, and for many small messages after what has arrived meanwhile', async () => {
    const { begun, send } = begin();
    send('a', 50, 300);
    const first = begun.length;
    expect(first).to.be.within(100, 200);
    await setImmediate();
    expect(begun.length).to.be.within(2 * first - 5, 2 * first + 5);
    for (let turn = 0; turn < 3; turn += 1) await setImmediate();
    expect(begun).to.deep.equal(Array.from({ length: 300 }, (_, at) => `a${at + 1}`));
  });

  it('have one message that is larger', async () => {
    const { begun, send } = begin();
    send('a', 1_000_000, 3);
    for (let count = 1; count <= 3; count += 1) {
      expect(begun).to.have.length(count);
      await setImmediate();
    }
  });

  it('pass from owner to owner, however many messages one has', async () => {
    const { begun, send } = begin();
    send('a', 100_000, 50);
    send('b', 100_000, 2);
    send('c', 10);
    for (let turn = 0; turn < 8; turn += 1) await setImmediate();
    expect(begun.slice(0, 6)).to.deep.equal(['a1', 'a2', 'a3', 'b1', 'c1', 'a4']);
    expect(begun).to.include('b2');
    for (let turn = 0; turn < 60; turn += 1) await setImmediate();
    expect(begun).to.have.length(53);
  });
});
