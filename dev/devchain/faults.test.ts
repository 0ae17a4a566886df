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
    it(`refuses ${JSON.stringify(body)}`, () => {
      expect(parseFaults(body)).to.be.a('string');
    });
  }

  it('takes every fault that there is', () => {
    expect(parseFaults(noFaults)).to.deep.equal(noFaults);
    expect(parseFaults({})).to.deep.equal({});
  });

  it('merges, and clears', () => {
    board.merge({ reject_next: 2 });
    board.merge({ pause_mining: true });
    expect(board.current).to.deep.equal({ ...noFaults, reject_next: 2, pause_mining: true });
    board.clear();
    expect(board.current).to.deep.equal(noFaults);
  });

  it('uses counted faults up, one for each submission', () => {
    board.merge({ reject_next: 1, orphan_next: 2, double_spend_next: 1 });
    const struck = Array.from({ length: 5 }, () => board.takeForSubmission());
    expect(struck).to.deep.equal(['reject_next', 'double_spend_next', 'orphan_next', 'orphan_next', undefined]);
    expect(board.current).to.deep.equal(noFaults);
  });

  it('counts the unavailable time down from when it was asked for', () => {
    board.merge({ unavailable_ms: 500 });
    now += 200;
    board.merge({ reject_next: 1 });
    expect(board.current.unavailable_ms).to.equal(300);
    now += 300;
    expect(board.current.unavailable_ms).to.equal(0);
  });
});
