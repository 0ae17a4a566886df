import { expect } from 'chai';
import { createTestDatabase, type TestDatabase } from '../testing/test-database.ts';
import { alone, whenAlone } from './session-lock.ts';

describe('locks of a session', () => {
  let test: TestDatabase;
  const lock = { key: 815, name: 'lock-test' };
  const nothing = (): void => undefined;
  const failure = (promise: Promise<unknown>) =>
    promise.then(
      () => 'nothing',
      (error: unknown) => (error as Error).message,
    );
  /** Ends the session that holds the lock, as a failing network does. */
  const endSession = () =>
    test.database.system((tx) =>
      tx.query(`SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
        WHERE application_name = 'kellet-lock-test' AND datname = current_database()`),
    );

  before(async () => (test = await createTestDatabase()));
  after(() => test.drop());

  it('let one caller work at a time; others wait or get false', async () => {
    const order: string[] = [];
    let waited: Promise<unknown> | undefined;
    await alone(test.database, lock, async () => {
      expect(await alone(test.database, lock, () => Promise.reject(new Error('not alone')))).to.equal(false);
      await new Promise<void>((resolve) => {
        waited = whenAlone(test.database, lock, async () => order.push('second'), { waiting: resolve });
      });
      order.push('first');
    });
    expect(await waited).to.equal(2);
    expect(order).to.deep.equal(['first', 'second']);
  });

  it('are no longer waited for when the signal aborts, or the caller gives up', async () => {
    const stop = new AbortController();
    await alone(test.database, lock, async () => {
      const waiting = (): void => stop.abort(new Error('interrupted'));
      const work = () => Promise.reject(new Error('not alone'));
      expect(await failure(whenAlone(test.database, lock, work, { waiting, signal: stop.signal }))).to.equal(
        'interrupted',
      );
      const givingUp = (): void => {
        throw new Error('too long');
      };
      expect(await failure(whenAlone(test.database, lock, work, { waiting: givingUp }))).to.equal('too long');
    });
  });

  it('fail work that must hold them when they are lost, and no other', async () => {
    const work = async () => {
      await endSession();
    };
    expect(await failure(whenAlone(test.database, lock, work, { waiting: nothing, mustHold: true }))).to.not.equal(
      'nothing',
    );
    expect(await failure(whenAlone(test.database, lock, work, { waiting: nothing }))).to.equal('nothing');
  });

  it('are free again after work that failed', async () => {
    for (const mustHold of [true, false]) {
      const failing = whenAlone(test.database, lock, () => Promise.reject(new Error('work failed')), {
        ...{ waiting: nothing, mustHold },
      });
      expect(await failure(failing)).to.equal('work failed');
    }
    expect(await whenAlone(test.database, lock, () => Promise.resolve('done'), { waiting: nothing })).to.equal('done');
  });
});
