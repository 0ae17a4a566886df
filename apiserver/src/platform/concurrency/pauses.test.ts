import { expect } from 'chai';
import { Pauses } from './pauses.ts';

describe('pauses in long work', () => {
  it('are taken when the work has taken some milliseconds, and let others run', async () => {
    const pauses = new Pauses();
    let others = 0;
    const other = setInterval(() => (others += 1), 0);
    try {
      await pauses.next();
      const before = others;
      for (let count = 0; count < 5; count += 1) {
        const began = performance.now();
        while (performance.now() - began < 6);
        await pauses.next();
      }
      expect(others - before).to.be.within(4, 6);
    } finally {
      clearInterval(other);
    }
  });
});
