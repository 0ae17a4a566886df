// Tests statement batches on a real PostgreSQL: their results, and above all what they must never show.
import { expect } from 'chai';
import pg from 'pg';
import { prepareValue } from 'pg/lib/utils.js';
import { insertTenant } from '../../../auth/testing/test-fixtures.ts';
import type { KelletError } from '../../errors.ts';
import { createLogger } from '../../observability/logger.ts';
import { createTestDatabase, type TestDatabase } from '../../testing/test-database.ts';
import { Database, type Transaction } from '../database.ts';
import { retryConflicts } from '../retry-conflicts.ts';
import { isStale, named, parameterOf, StatementNames } from './statement-batch.ts';

const failureOf = (work: Promise<unknown>): Promise<Error> =>
  work.then(
    () => expect.fail('it succeeded'),
    (error: Error) => error,
  );

describe('parameters', () => {
  let test: TestDatabase;
  before(async () => (test = await createTestDatabase({ isEmpty: true })));
  after(() => test.drop());

  const texts = ['', 'plain', 'NULL', 'null', '"', '\\', '\\"', "'; --", '{a,b}', ', ', ' x ', '\n\t', 'ü😀', '\u0001'];

  it('that are arrays of texts arrive as they are, in every order', async () => {
    for (const array of [texts, [...texts].reverse(), [], [''], ['"'], ...texts.map((text) => [text, text])]) {
      const { rows } = await test.database.systemRead((tx) => tx.query('SELECT $1::text[] AS texts', [array]));
      expect(rows).to.deep.equal([{ texts: array }]);
    }
  });

  it('are as pg would send them', async () => {
    const values = [
      ['a', null, 'b"'],
      [1, 2],
      [0.1, -0, null, 1e21, 5e-324, NaN, -Infinity],
      [2n ** 63n - 1n, -1n, null],
      ['a', 1, 2n, null],
      [null],
      [undefined, 'a'],
      [
        [1, 2],
        [3, 4],
      ],
      [true, null],
      [Buffer.from('a"\\')],
    ];
    for (const value of values) expect(parameterOf(value)).to.deep.equal(prepareValue(value));
    const { rows } = await test.database.systemRead((tx) =>
      tx.query('SELECT $1::text[] AS texts, $2::int4[] AS numbers, $3::bytea[] AS bytes', [
        values[0],
        [1],
        [Buffer.from('a"\\')],
      ]),
    );
    expect(rows).to.deep.equal([{ texts: values[0], numbers: [1], bytes: [Buffer.from('a"\\')] }]);
  });
});

describe('reads', () => {
  let test: TestDatabase;
  /** Everything runs over one connection, so that anything a transaction leaves behind affects the next. */
  let database: Database;
  const ofTenants = 'SELECT tenant_id FROM tenants ORDER BY tenant_id';
  const tenantsSeen = async (tx: Transaction) =>
    (await tx.query<{ tenant_id: string }>(ofTenants)).rows.map((row) => row.tenant_id);
  /** More often than needed for a statement to be prepared. */
  const often = Array.from({ length: 12 }, (_, index) => index);

  before(async () => {
    test = await createTestDatabase();
    database = new Database(test.url, createLogger('silent'), { maximumConnections: 1 });
    for (const tenantId of ['acme', 'other']) await insertTenant(test.database, tenantId);
  });
  after(async () => {
    await database.close();
    await test.drop();
  });

  it('show a tenant only its own rows, whoever used the connection and the prepared statement before', async () => {
    for (const index of often) {
      const [own, foreign] = index % 2 === 0 ? ['acme', 'other'] : ['other', 'acme'];
      expect(await database.read(own, tenantsSeen)).to.deep.equal([own]);
      if (index % 3 === 0) expect(await database.system(tenantsSeen)).to.deep.equal(['acme', 'other']);
      expect(await database.systemRead(tenantsSeen)).to.deep.equal(['acme', 'other']);
      if (index % 4 === 0) expect(await database.tenant(foreign, tenantsSeen)).to.deep.equal([foreign]);
      if (index % 5 === 0) await failureOf(database.read(foreign, (tx) => tx.query('SELECT 1 / 0')));
    }
    expect(await Promise.all(often.map((n) => database.read(n % 2 ? 'acme' : 'other', tenantsSeen)))).to.deep.equal(
      often.map((n) => [n % 2 ? 'acme' : 'other']),
    );
  });

  it('reset role and tenant at the end of their message, also when a statement fails', async () => {
    const scope = `SELECT current_user AS role, current_setting('kellet.tenant_id', true) AS tenant,
      current_setting('transaction_read_only') AS read_only`;
    const during = await database.read('acme', (tx) => tx.query(scope));
    expect(during.rows).to.deep.equal([{ role: 'kellet_tenant', tenant: 'acme', read_only: 'on' }]);
    for (const work of ['SELECT 1', 'SELECT 1 / 0', 'no statement']) {
      await database.read('acme', (tx) => tx.query(work)).catch(() => undefined);
      const after = await database.pool.query(scope);
      expect(after.rows).to.deep.equal([{ role: 'kellet_test', tenant: '', read_only: 'off' }]);
    }
  });

  it('and transactions show nothing if the role cannot be set', async () => {
    const role = `test_stranger_${process.pid}`;
    const server = new pg.Client({ connectionString: process.env['KELLET_TEST_DATABASE_URL'] });
    await server.connect();
    await server.query(`CREATE ROLE ${role} LOGIN BYPASSRLS PASSWORD '${role}'`);
    await test.database.system((tx) => tx.query(`GRANT SELECT, UPDATE ON tenants TO ${role}`));
    const url = new URL(test.url);
    url.username = url.password = role;
    const stranger = new Database(url.href, createLogger('silent'), { maximumConnections: 1 });
    try {
      expect((await stranger.pool.query(ofTenants)).rows).to.have.length(2);
      for (const _ of often) {
        const failed = await failureOf(stranger.read('acme', tenantsSeen));
        expect(failed.message).to.contain('permission denied to set role');
        const changed = stranger.tenant('acme', (tx) => tx.query(`UPDATE tenants SET name = 'stolen' RETURNING name`));
        expect((await failureOf(changed)).message).to.contain('permission denied to set role');
      }
      expect((await stranger.pool.query(`SELECT FROM tenants WHERE name = 'stolen'`)).rowCount).to.equal(0);
    } finally {
      await stranger.close();
      await test.database.system((tx) => tx.query(`REVOKE ALL ON tenants FROM ${role}`));
      await server.query(`DROP ROLE ${role}`);
      await server.end();
    }
  });

  it('reject an invalid tenant id', async () => {
    for (const id of ['', `x'; SELECT 1; --`, 'Acme']) {
      expect((await failureOf(database.read(id, tenantsSeen))).message).to.equal('not a tenant id');
    }
  });

  it('write nothing', async () => {
    for (const statement of [
      `INSERT INTO outbox (tenant_id, event_id, subject, payload) VALUES ('acme', gen_random_uuid(), 's', '')`,
      'SELECT FROM tenants FOR UPDATE',
    ]) {
      const work = (tx: Transaction) => tx.query(statement);
      for (const read of [() => database.read('acme', work), () => database.systemRead(work)]) {
        expect((await failureOf(read())).message).to.contain('in a read-only transaction');
      }
    }
  });

  it('are one transaction for queries issued together, and another for later ones', async () => {
    const time = (tx: Transaction) => tx.query<{ time: string }>('SELECT now()::text AS time');
    const [first, second, third] = await database.read('acme', async (tx) => {
      const together = await Promise.all([time(tx), time(tx)]);
      return [...together, await time(tx)].map(({ rows }) => rows[0]!.time);
    });
    expect(second).to.equal(first);
    expect(third).not.to.equal(first);
  });

  it('parse every type as pg itself does, prepared or not', async () => {
    const text = `SELECT $1::text AS text, $2::int8 AS int8, $3::jsonb AS jsonb, $4::timestamptz AS time, $5::bytea AS bytes,
      $6::uuid[] AS ids, $7::boolean AS boolean, 1.5::float8 AS float, null::int4 AS missing, $8::text[] AS texts
      UNION ALL SELECT null, null, null, null, null, null, null, null, null, null`;
    const id = '0198c7a4-5b1e-7d3a-9c42-1f0e8d6b7a55';
    const date = new Date(1_767_323_045_678);
    const values = ['ä', 2n ** 60n, { a: [1] }, date, Buffer.from([0, 255]), [id], true, ['"', null]];
    const expected = await database.pool.query(text, values);
    expect(expected.rows[0]).to.include({ int8: 2n ** 60n, boolean: true });
    for (const _ of often) {
      const found = await database.read('acme', (tx) => tx.query(text, values));
      expect(found).to.deep.equal({ rows: expected.rows, rowCount: 2 });
    }
    const empty = await database.read('acme', (tx) => tx.query(`${text} LIMIT 0`, values));
    expect(empty).to.deep.equal({ rows: [], rowCount: 0 });
  });

  it('recover when a table changes shape or the connection loses its prepared statements', async () => {
    await test.database.system((tx) => tx.query('CREATE TABLE changing (a int4)'));
    await test.database.system((tx) => tx.query('GRANT SELECT ON changing TO kellet_tenant'));
    await test.database.system((tx) => tx.query('INSERT INTO changing VALUES (1)'));
    const read = async () => (await database.read('acme', (tx) => tx.query('SELECT * FROM changing'))).rows;
    for (const _ of often) expect(await read()).to.deep.equal([{ a: 1 }]);
    await test.database.system((tx) => tx.query('ALTER TABLE changing ADD COLUMN b int4 DEFAULT 2'));
    expect(await read()).to.deep.equal([{ a: 1, b: 2 }]);
    await database.pool.query('DEALLOCATE ALL');
    expect(await read()).to.deep.equal([{ a: 1, b: 2 }]);
    expect(await database.tenant('acme', tenantsSeen)).to.deep.equal(['acme']);
  });

  it('fail alone: the connection serves the next batch', async () => {
    const circular: { self?: unknown } = {};
    circular.self = circular;
    const wrong: [text: string, values: unknown[], message: string][] = [
      ['SELECT $1::int4', ['x'], 'invalid input syntax for type integer'],
      ['SELECT $1::jsonb', [circular], 'circular'],
      ['SELECT 1; SELECT 2', [], 'multiple commands'],
    ];
    for (const [text, values, message] of wrong) {
      const failed = await failureOf(
        database.read('acme', (tx) => Promise.all([tenantsSeen(tx), tx.query(text, values), tenantsSeen(tx)])),
      );
      expect(failed.message).to.contain(message);
      expect(failed.stack).to.contain('statement-batch.test.ts');
      expect(await database.read('acme', tenantsSeen)).to.deep.equal(['acme']);
    }
  });

  it('discard COPY output', async () => {
    await database.read('acme', (tx) => tx.query('COPY (SELECT 1) TO STDOUT'));
    expect(await database.read('acme', tenantsSeen)).to.deep.equal(['acme']);
  });

  it('are UNAVAILABLE when the connection is lost or there is no response in time', async () => {
    const hurried = new Database(test.url, createLogger('silent'), {
      maximumConnections: 1,
      statementMilliseconds: 100,
    });
    const slow = await failureOf(hurried.read('acme', (tx) => tx.query('SELECT pg_sleep(5)')));
    expect((slow as KelletError).code).to.equal('UNAVAILABLE');
    expect(await hurried.read('acme', tenantsSeen)).to.deep.equal(['acme']);
    await hurried.close();
    const { rows } = await database.pool.query<{ pid: number }>('SELECT pg_backend_pid() AS pid');
    setTimeout(() => void test.database.pool.query('SELECT pg_terminate_backend($1)', [rows[0]!.pid]), 50);
    const lost = await failureOf(database.read('acme', (tx) => tx.query('SELECT pg_sleep(10)')));
    expect((lost as KelletError).code).to.equal('UNAVAILABLE');
    expect(await database.read('acme', tenantsSeen)).to.deep.equal(['acme']);
  });
});

describe('the statements of a transaction', () => {
  let test: TestDatabase;
  let database: Database;

  before(async () => {
    test = await createTestDatabase();
    database = new Database(test.url, createLogger('silent'), { maximumConnections: 1 });
    await database.system((tx) => tx.query('CREATE TABLE kept (n int4 PRIMARY KEY)'));
  });
  after(async () => {
    await database.close();
    await test.drop();
  });
  const insert = (tx: Transaction, n: number) => tx.query('INSERT INTO kept VALUES ($1)', [n]);
  const kept = async () => {
    const { rows } = await database.pool.query<{ n: number }>('SELECT n FROM kept ORDER BY n');
    return rows.map(({ n }) => n);
  };

  it('are committed together or not at all', async () => {
    await database.system((tx) => Promise.all([insert(tx, 1), insert(tx, 2)]));
    expect(await kept()).to.deep.equal([1, 2]);
    await failureOf(database.system((tx) => Promise.all([insert(tx, 3), insert(tx, 1), insert(tx, 4)])));
    await failureOf(
      database.system(async (tx) => {
        await insert(tx, 5);
        throw new Error('a change of mind');
      }),
    );
    await database.system(async (tx) => {
      await insert(tx, 6);
      await insert(tx, 1).catch(() => undefined);
    });
    expect(await kept()).to.deep.equal([1, 2]);
    const { rowCount } = await database.system((tx) => tx.query('DELETE FROM kept'));
    expect(rowCount).to.equal(2);
  });

  it('never run outside of it when opening it has failed and another statement follows', async () => {
    const circular: { self?: unknown } = {};
    circular.self = circular;
    const work = database.tenant('acme', async (tx) => {
      expect((await failureOf(tx.query('SELECT $1::jsonb', [circular]))).message).to.contain('circular');
      return tx.query('SELECT current_user AS role');
    });
    expect((await failureOf(work)).message).to.contain('none can follow');
    const { rows } = await database.tenant('acme', (tx) => tx.query('SELECT current_user AS role'));
    expect(rows).to.deep.equal([{ role: 'kellet_tenant' }]);
  });

  it('are retried when the connection has lost its prepared statements', async () => {
    await database.tenant('acme', (tx) => tx.query('SELECT 1'));
    await database.pool.query('DEALLOCATE ALL');
    await database.tenant('acme', (tx) => tx.query('SELECT 1'));
    await database.system((tx) => Promise.all([insert(tx, 1), tx.query('DEALLOCATE ALL')]));
    expect((await database.tenant('acme', (tx) => tx.query('SELECT 1'))).rows).to.have.length(1);
    expect((await database.system((tx) => tx.query('DELETE FROM kept'))).rowCount).to.equal(1);
  });

  it('are planned once per connection if they recur in frequent transactions, and retried once stale', async () => {
    const prepared = async () => {
      const text = "SELECT count(*)::int4 AS n FROM pg_prepared_statements WHERE statement LIKE '%recurring%'";
      return (await database.pool.query<{ n: number }>(text)).rows[0]!.n;
    };
    const work = () =>
      retryConflicts(() =>
        database.frequent('acme', async (tx) => {
          await tx.query('SELECT 1');
          return (await tx.query<{ role: string }>('SELECT current_user AS role /* recurring */')).rows[0]!.role;
        }),
      );
    for (let turn = 0; turn < 12; turn += 1) expect(await work()).to.equal('kellet_tenant');
    expect(await prepared()).to.equal(1);
    // The first statement is prepared again, the second fails within the transaction.
    await database.pool.query('DEALLOCATE ALL');
    expect(await work()).to.equal('kellet_tenant');
    expect(await prepared()).to.equal(1);
  });

  it('are sent in it or never', async () => {
    let tx!: Transaction;
    await database.system(async (running) => {
      tx = running;
    });
    expect((await failureOf(insert(tx, 7))).message).to.contain('after its transaction had ended');
    let forgotten!: Promise<unknown>;
    await failureOf(
      database.system(async (running) => {
        await insert(running, 8);
        forgotten = insert(running, 9).catch(() => undefined);
        throw new Error('a change of mind');
      }),
    );
    await forgotten;
    expect(await kept()).to.deep.equal([]);
  });
});

describe('a batch that failed', () => {
  it("may be retried when its prepared statements are stale, whatever the language of the server's messages", () => {
    for (const [code, message, expected] of [
      ['0A000', 'gecachter Plan darf den Ergebnistyp nicht ändern', true],
      ['26000', 'vorbereitete Anweisung »scope« existiert nicht', true],
      ['42P01', 'prepared, but the table is gone', false],
    ] as const) {
      const error = Object.assign(new pg.DatabaseError(message, 0, 'error'), { code });
      expect(isStale(error)).to.equal(expected);
    }
  });
});

describe('statement names', () => {
  it('are given to frequent statements, always the same, and no more than connections can hold', () => {
    const names = new StatementNames('a');
    const uses = Array.from({ length: 7 }, () => names.nameOf('SELECT 1'));
    expect(uses.slice(0, 4)).to.deep.equal([undefined, undefined, undefined, undefined]);
    expect(uses.slice(4)).to.deep.equal(Array.from({ length: 3 }, () => named('a', 'SELECT 1').name));
    const given = new Set<string | undefined>();
    for (let text = 0; text < 2000; text += 1)
      for (let use = 0; use < 6; use += 1) given.add(names.nameOf(`SELECT ${text}`));
    given.delete(undefined);
    expect(given.size).to.equal(100);
    expect(names.nameOf('SELECT 1')).to.equal(uses[4]);
  });

  it('depend only on the text, in every process and order', () => {
    const texts = ['SELECT 1', 'SELECT 2'];
    const given = (order: readonly string[]) => {
      const names = new StatementNames('a');
      for (let use = 0; use < 5; use += 1) for (const text of order) names.nameOf(text);
      return texts.map((text) => names.nameOf(text));
    };
    expect(given(texts)).to.deep.equal(given(texts.toReversed()));
    expect(new Set([...given(texts), named('b', 'SELECT 1').name]).size).to.equal(3);
  });
});
