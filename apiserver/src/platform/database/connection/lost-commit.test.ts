// The connection is lost while a transaction commits. What its caller learns is what happened.
import { expect } from 'chai';
import { KelletError } from '../../errors.ts';
import { createLogger } from '../../observability/logger.ts';
import { eventually } from '../../testing/eventually.ts';
import { createTestDatabase, type TestDatabase } from '../../testing/test-database.ts';
import { TcpProxy } from '../../testing/test-tcp-proxy.ts';
import { Database } from '../database.ts';

describe('a connection lost while committing', function () {
  this.timeout(20_000);
  let test: TestDatabase;
  let proxy: TcpProxy;
  let database: Database;

  before(async () => {
    test = await createTestDatabase();
    // Committing a row takes a second, because a deferred trigger runs at the COMMIT.
    for (const statement of [
      'CREATE TABLE slow_commits (id text PRIMARY KEY)',
      'GRANT ALL ON slow_commits TO kellet_tenant',
      `CREATE FUNCTION slow_commit() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(1); RETURN NULL; END'`,
      `CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON slow_commits DEFERRABLE INITIALLY DEFERRED
       FOR EACH ROW EXECUTE FUNCTION slow_commit()`,
    ]) {
      await test.database.pool.query(statement);
    }
    proxy = await TcpProxy.before(test.url);
    database = new Database(proxy.through(test.url), createLogger('silent'), { outcomeMilliseconds: 4000 });
  });
  after(async () => {
    await database.close();
    await proxy.close();
    await test.drop();
  });

  const scopes = {
    tenant: <T>(work: Parameters<Database['system']>[0]) => database.tenant('acme', work) as Promise<T>,
    system: <T>(work: Parameters<Database['system']>[0]) => database.system(work) as Promise<T>,
  };
  /** Inserts a row and returns `OK` or the code of the error. */
  const insert = (id: string, scope: keyof typeof scopes): Promise<string> =>
    scopes[scope]((tx) => tx.query('INSERT INTO slow_commits VALUES ($1)', [id])).then(
      () => 'OK',
      (error: unknown) => (error instanceof KelletError ? error.code : String(error)),
    );
  const committing = `SELECT pid FROM pg_stat_activity
    WHERE datname = current_database() AND query = 'COMMIT' AND state = 'active'`;
  const whenCommitting = () => eventually(async () => (await test.database.pool.query(committing)).rowCount === 1);
  const exists = async (id: string) =>
    (await test.database.pool.query('SELECT FROM slow_commits WHERE id = $1', [id])).rowCount === 1;

  for (const scope of ['tenant', 'system'] as const) {
    it(`is no error if the transaction was committed (${scope})`, async () => {
      const outcome = insert(`committed-${scope}`, scope);
      await whenCommitting();
      proxy.cut();
      proxy.restore();
      await new Promise((resolve) => setTimeout(resolve, 100));
      expect(await outcome).to.equal('OK');
      expect(await exists(`committed-${scope}`)).to.equal(true);
    });

    it(`is UNAVAILABLE if the transaction was not committed (${scope})`, async () => {
      const outcome = insert(`aborted-${scope}`, scope);
      await whenCommitting();
      await test.database.pool.query(committing.replace('pid', 'pg_terminate_backend(pid)'));
      expect(await outcome).to.equal('UNAVAILABLE');
      expect(await exists(`aborted-${scope}`)).to.equal(false);
    });
  }

  it('is DEADLINE_EXCEEDED if the database stays away', async () => {
    const outcome = insert('unknown', 'tenant');
    await whenCommitting();
    proxy.cut();
    expect(await outcome).to.equal('DEADLINE_EXCEEDED');
    proxy.restore();
  });
});
