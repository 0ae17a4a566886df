import { expect } from 'chai';
import { isBlockDue } from './block-timer.ts';

describe('timed mining', () => {
  for (const { waiting, intervals, paused, due } of [
    { waiting: 1, intervals: 0, paused: false, due: true },
    { waiting: 0, intervals: 1, paused: false, due: false },
    { waiting: 0, intervals: 4, paused: false, due: false },
    { waiting: 0, intervals: 5, paused: false, due: true },
    { waiting: 9, intervals: 9, paused: true, due: false },
  ]) {
    it(`${due ? 'mines' : 'does not mine'} with ${waiting} waiting, ${intervals} idle, paused ${paused}`, () => {
      expect(isBlockDue(waiting, intervals, paused)).to.equal(due);
    });
  }
});
