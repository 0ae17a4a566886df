import { expect } from 'chai';
import { FaultBoard, noFaults, parseFaults } from './faults.ts';

describe('faults', () => {
  let now: number;
  let board: FaultBoard;

  beforeEach(() => {
    now = 1000;
    board = new FaultBoard(() => now);
  });

  for (const body of [
    null,
    [],
    'drop_callbacks',
    { nonsense: 1 },
    { drop_callbacks: 1 },
    { pause_mining: 'true' },
    { reject_next: -1 },
    { reject_next: 1.5 },
    { reject_next: true },
    { unavailable_ms: 86_400_001 },
    { toString: 1 },
  ]) {
    it(`rejects ${JSON.stringify(body)}`, () => {
      expect(parseFaults(body)).to.be.a('string');
    });
  }

  it('accepts every fault', () => {
    expect(parseFaults(noFaults)).to.deep.equal(noFaults);
    expect(parseFaults({})).to.deep.equal({});
  });

  it('merges and clears faults', () => {
    board.merge({ reject_next: 2 });
    board.merge({ pause_mining: true });
    expect(board.current).to.deep.equal({ ...noFaults, reject_next: 2, pause_mining: true });
    board.clear();
    expect(board.current).to.deep.equal(noFaults);
  });

  it('decrements counted faults with each submission', () => {
    board.merge({ reject_next: 1, orphan_next: 2, double_spend_next: 1 });
    const struck = Array.from({ length: 5 }, () => board.takeForSubmission());
    expect(struck).to.deep.equal(['reject_next', 'double_spend_next', 'orphan_next', 'orphan_next', undefined]);
    expect(board.current).to.deep.equal(noFaults);
  });

  it('counts down the unavailable time from the request', () => {
    board.merge({ unavailable_ms: 500 });
    now += 200;
    board.merge({ reject_next: 1 });
    expect(board.current.unavailable_ms).to.equal(300);
    now += 300;
    expect(board.current.unavailable_ms).to.equal(0);
  });
});
