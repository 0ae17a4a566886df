import { expect } from 'chai';
import { eventually } from '../../testing/eventually.ts';
import { createTestDatabase, type TestDatabase } from '../../testing/test-database.ts';

describe('listening', () => {
  let test: TestDatabase;
  beforeEach(async () => (test = await createTestDatabase()));
  afterEach(() => test.drop());

  const listeners = async (): Promise<number[]> => {
    const { rows } = await test.database.system((tx) =>
      tx.query<{ pid: number }>(
        `SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'kellet-listener'`,
      ),
    );
    return rows.map(({ pid }) => pid);
  };
  const notify = (channel: string, payload: string) =>
    test.database.system((tx) => tx.query('SELECT pg_notify($1, $2)', [channel, payload]));

  it('takes one connection for all who listen, whenever they begin', async () => {
    const received: string[] = [];
    const states: string[] = [];
    const listen = (name: string, ...channels: string[]) =>
      test.database.listen(
        channels,
        (channel, payload) => received.push(`${name} ${channel} ${payload}`),
        (lost) => states.push(`${name} ${lost ? 'lost' : 'listening'}`),
      );
    listen('first', 'a', 'b');
    await eventually(() => states.length === 1);
    listen('second', 'b', 'c');
    await eventually(() => states.length === 2);
    expect(states).to.deep.equal(['first listening', 'second listening']);
    expect(await listeners()).to.have.length(1);
    for (const channel of ['a', 'b', 'c']) await notify(channel, '1');
    await eventually(() => received.length === 4);
    expect(received).to.deep.equal(['first a 1', 'first b 1', 'second b 1', 'second c 1']);

    // All are notified when the connection is lost, and again when it is back.
    const [pid] = await listeners();
    await test.database.system((tx) => tx.query('SELECT pg_terminate_backend($1)', [pid]));
    await eventually(() => states.length === 6);
    expect(states.slice(2)).to.have.members(['first lost', 'second lost', 'first listening', 'second listening']);
    await notify('c', '2');
    await eventually(() => received.includes('second c 2'));
  });
});
