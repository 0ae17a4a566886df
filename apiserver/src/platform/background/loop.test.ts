import { expect } from 'chai';
import { createLogger } from '../observability/logger.ts';
import { eventually } from '../testing/eventually.ts';
import { Loop } from './loop.ts';

describe('a loop', () => {
  const begin = (work: (signal: AbortSignal) => Promise<unknown>, milliseconds = 3_600_000) => {
    const lines: string[] = [];
    const loop = new Loop(
      createLogger('warn', {}, { write: (line) => void lines.push(line) }),
      'test',
      milliseconds,
      work,
    );
    loop.start();
    return { loop, lines };
  };

  it('runs at once and again after the interval', async () => {
    let runs = 0;
    const { loop } = begin(async () => (runs += 1), 5);
    await eventually(async () => runs > 3);
    await loop.stop();
    const before = runs;
    await new Promise((resolve) => setTimeout(resolve, 30));
    expect(runs).to.equal(before);
  });

  it('runs again without a pause while there is more to do, and when woken, also during a run', async () => {
    let runs = 0;
    let release: () => void = () => undefined;
    const { loop } = begin(async () => {
      runs += 1;
      if (runs === 4) await new Promise<void>((resolve) => (release = resolve));
      return runs < 3;
    });
    await eventually(async () => runs === 3);
    loop.wake();
    await eventually(async () => runs === 4);
    loop.wake();
    release();
    await eventually(async () => runs === 5);
    await loop.stop();
  });

  it('runs once for several wakes that are planned together, and not after it was stopped', async () => {
    let runs = 0;
    const { loop } = begin(async () => void (runs += 1));
    await eventually(async () => runs === 1);
    for (let n = 0; n < 10; n += 1) loop.wakeIn(20);
    await eventually(async () => runs === 2);
    loop.wakeIn(20);
    await eventually(async () => runs === 3);
    loop.wakeIn(1);
    await loop.stop();
    const stopped = runs;
    await new Promise((resolve) => setTimeout(resolve, 20));
    expect(runs).to.equal(stopped);
  });

  it('survives failures and logs a lasting one once', async () => {
    let runs = 0;
    const { loop, lines } = begin(async () => {
      runs += 1;
      if (runs !== 10) throw new Error('away');
    }, 1);
    await eventually(async () => runs > 20);
    await loop.stop();
    expect(lines).to.have.length(2);
    expect(lines[0]).to.include('away').and.to.include('"loop":"test"');
  });

  it('aborts the signal of its work when stopped, and waits for it', async () => {
    let hasEnded = false;
    const { loop } = begin(async (signal) => {
      await new Promise((resolve) => signal.addEventListener('abort', resolve));
      hasEnded = true;
    });
    await loop.stop();
    expect(hasEnded).to.equal(true);
  });
});
