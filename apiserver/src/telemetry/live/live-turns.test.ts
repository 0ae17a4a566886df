import { expect } from 'chai';
import { eventually } from '../../platform/testing/eventually.ts';
import { type LiveListener, LiveTurns } from './live-turns.ts';

describe('Live points for many listeners', () => {
  const busy = (milliseconds: number): void => {
    for (const end = performance.now() + milliseconds; performance.now() < end;);
  };

  it('are passed on a little at a time, in order, while other tenants get theirs', async () => {
    const turns = new LiveTurns();
    const got: string[] = [];
    const slow = Array.from({ length: 20 }, (_, index): LiveListener => (deviceId, points) => {
      busy(2);
      got.push(`${index} ${deviceId} ${points.length}`);
    });
    const others: LiveListener[] = [(deviceId) => got.push(deviceId)];
    turns.deliver('acme/many', Array.from({ length: 5000 }, String), new Set(slow));
    turns.deliver('acme/few', ['1'], new Set(slow.slice(0, 1)));
    expect(got).to.deep.equal([]);
    turns.deliver('other/few', ['1'], new Set(others));
    turns.deliver('other/many', Array.from({ length: 5000 }, String), new Set(others));
    expect(got).to.deep.equal(['few']);
    let turnsOfOthers = 0;
    const counted = setInterval(() => (turnsOfOthers += 1));
    await eventually(() => got.length === 23);
    clearInterval(counted);
    expect(turnsOfOthers).to.be.greaterThan(3);
    expect(got.indexOf('many')).to.be.within(2, 6);
    const expected = [...slow.map((_, index) => `${index} many 5000`), '0 few 1'];
    expect(got.filter((line) => line.includes(' '))).to.deep.equal(expected);
  });

  it('leave out the oldest when too much waits', async () => {
    const turns = new LiveTurns();
    const got = new Set<string>();
    const listeners = new Set([
      (_deviceId: string, [first = '']: readonly string[]) => void got.add(first.slice(0, 4)),
    ]);
    for (let n = 1000; n < 1020; n += 1) {
      turns.deliver('acme/d', [...Array.from({ length: 1000 }, () => `${n}${'x'.repeat(1000)}`), ''], listeners);
    }
    await eventually(() => got.has('1019'));
    expect([...got]).to.deep.equal(['1016', '1017', '1018', '1019']);
  });
});
