// The database goes away at every moment of a transaction: its caller gets an error, and the process keeps running.
import { expect } from 'chai';
import { KelletError } from '../errors.ts';
import { createLogger } from '../observability/logger.ts';
import { createTestDatabase, type TestDatabase } from '../testing/test-database.ts';
import { Database } from './database.ts';
import { migrate } from './migrate.ts';

describe('a lost database connection', () => {
  let test: TestDatabase;

  before(async () => {
    test = await createTestDatabase();
  });
  after(() => test.drop());

  const endBackend = (pid: number) => test.database.system((tx) => tx.query('SELECT pg_terminate_backend($1)', [pid]));
  const backendOf = 'SELECT pg_backend_pid() AS pid';

  it('fails a transaction with UNAVAILABLE between two statements and affects nothing else', async () => {
    const lost = test.database.system(async (tx) => {
      const { rows } = await tx.query<{ pid: number }>(backendOf);
      await endBackend(rows[0]!.pid);
      // Long enough for the loss to arrive while no statement of this transaction is running.
      await new Promise((resolve) => setTimeout(resolve, 200));
      await tx.query('SELECT 1');
    });
    const error: unknown = await lost.then(
      () => undefined,
      (thrown: unknown) => thrown,
    );
    expect(error).to.be.instanceOf(KelletError);
    expect((error as KelletError).code).to.equal('UNAVAILABLE');
    await test.database.ping();
  });

  it('fails a transaction with UNAVAILABLE while a statement runs', async () => {
    const lost = test.database.system(async (tx) => {
      const { rows } = await tx.query<{ pid: number }>(backendOf);
      setTimeout(() => void endBackend(rows[0]!.pid), 50);
      await tx.query('SELECT pg_sleep(10)');
    });
    const error: unknown = await lost.then(
      () => undefined,
      (thrown: unknown) => thrown,
    );
    expect((error as KelletError).code).to.equal('UNAVAILABLE');
    await test.database.ping();
  });
});

describe('a database that hangs', () => {
  let test: TestDatabase;
  let hurried: Database;

  before(async () => {
    test = await createTestDatabase();
    hurried = new Database(test.url, createLogger('silent'), { maximumConnections: 1, statementMilliseconds: 100 });
  });
  after(async () => {
    await hurried.close();
    await test.drop();
  });

  it('does not block a caller forever, and its connection is not used again', async () => {
    const hangs = hurried.tenant('acme', (tx) => tx.query('SELECT pg_sleep(5)'));
    const error: unknown = await hangs.then(
      () => undefined,
      (thrown: unknown) => thrown,
    );
    expect((error as KelletError).code).to.equal('UNAVAILABLE');
    const { rows } = await hurried.tenant('acme', (tx) => tx.query<{ one: number }>('SELECT 1 AS one'));
    expect(rows).to.deep.equal([{ one: 1 }]);
  });

  it("does not limit the data plane's own maintenance work", async () => {
    const { rows } = await hurried.system((tx) =>
      tx.query<{ slept: boolean }>('SELECT true AS slept FROM pg_sleep(0.3)'),
    );
    expect(rows).to.deep.equal([{ slept: true }]);
  });
});

describe('migrations', () => {
  let test: TestDatabase;

  before(async () => {
    test = await createTestDatabase();
  });
  after(() => test.drop());

  const applied = () =>
    test.database.system((tx) =>
      tx.query<{ name: string; applied_at: Date }>('SELECT name, applied_at FROM schema_migrations'),
    );

  it('run once, also when several processes start together', async () => {
    const before = await applied();
    await Promise.all([1, 2, 3].map(() => migrate(test.database, createLogger('silent'))));
    expect((await applied()).rows).to.deep.equal(before.rows);
  });

  it('reject a database that was made by another version of a migration and name it', async () => {
    await test.database.system((tx) =>
      tx.query(`UPDATE schema_migrations SET checksum = 'other' WHERE name = '0002_auth.sql'`),
    );
    const failure = await migrate(test.database, createLogger('silent')).then(
      () => '',
      (error: Error) => error.message,
    );
    expect(failure).to.contain('0002_auth.sql');
  });
});
