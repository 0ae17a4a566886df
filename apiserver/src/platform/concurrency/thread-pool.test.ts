import { expect } from 'chai';
import { ThreadPool } from './thread-pool.ts';

/** Answers with the number of its questions so far, after doing what a question says. */
const program = `
  import { parentPort } from 'node:worker_threads';
  let count = 0;
  parentPort.on('message', (question) => {
    count += 1;
    if (question === 'fail') throw new Error('failed');
    if (question !== 'say nothing') parentPort.postMessage(count);
  });`;

describe('a pool of threads', () => {
  const file = new URL(`data:text/javascript,${encodeURIComponent(program)}`);
  const failure = (work: Promise<unknown>) =>
    work.then(
      () => 'none',
      (error: Error) => error.message,
    );

  it('uses a thread for each question at a time, and the same ones again', async () => {
    const pool = new ThreadPool<string, number>(file, 60_000);
    expect(await Promise.all([pool.ask('a'), pool.ask('b')])).to.deep.equal([1, 1]);
    expect(await Promise.all([pool.ask('a'), pool.ask('b')])).to.deep.equal([2, 2]);
    expect(await pool.ask('c')).to.equal(3);
  });

  it('replaces a thread that fails, or takes too long', async () => {
    const pool = new ThreadPool<string, number>(file, 60_000);
    expect([await pool.ask('a'), await pool.ask('b')]).to.deep.equal([1, 2]);
    expect(await failure(pool.ask('fail'))).to.equal('failed');
    expect(await pool.ask('c')).to.equal(1);
    const impatient = new ThreadPool<string, number>(file, 300);
    expect(await failure(impatient.ask('say nothing'))).to.match(/aborted/);
  });
});
