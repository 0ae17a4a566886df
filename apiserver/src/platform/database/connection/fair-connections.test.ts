// Connections are shared fairly: what one owner does never keeps another from the database.
import { expect } from 'chai';
import pg from 'pg';
import { createLogger } from '../../observability/logger.ts';
import { beginTrace, inTrace, setTraceOwner } from '../../observability/tracing.ts';
import { eventually } from '../../testing/eventually.ts';
import { createTestDatabase, type TestDatabase } from '../../testing/test-database.ts';
import { Database, type Transaction } from '../database.ts';

describe('the connections of a pool', () => {
  let test: TestDatabase;
  let database: Database;
  let holder: pg.Client;
  before(async () => {
    test = await createTestDatabase();
    database = new Database(test.url, createLogger('silent'), { maximumConnections: 4 });
    holder = new pg.Client({ connectionString: test.url });
    await holder.connect();
  });
  after(async () => {
    await holder.end();
    await database.close();
    await test.drop();
  });

  const lock = 4711;
  const wait = (tx: Transaction) => tx.query('SELECT pg_advisory_xact_lock_shared($1)', [lock]);
  const one = (tx: Transaction) => tx.query('SELECT 1');
  const waiting = async () => {
    const { rows } = await holder.query<{ n: number }>(
      `SELECT count(*)::int4 AS n FROM pg_locks WHERE locktype = 'advisory' AND objid = $1 AND NOT granted`,
      [lock],
    );
    return rows[0]!.n;
  };
  const asCallOf = <T>(owner: string, work: () => Promise<T>): Promise<T> =>
    inTrace(
      beginTrace('call', 'SERVER', undefined, () => ({})),
      () => {
        setTraceOwner(owner);
        return work();
      },
    );

  const owners: readonly (readonly [string, () => Promise<unknown>])[] = [
    ['a tenant', () => database.tenant('busy', wait)],
    ['an address', () => asCallOf('192.0.2.1', () => database.system(wait))],
    ['the loops', () => database.system(wait)],
  ];
  for (const [what, work] of owners)
    it(`are left to others by ${what}`, async () => {
      await holder.query('SELECT pg_advisory_lock($1)', [lock]);
      const all = Array.from({ length: 20 }, work);
      try {
        await eventually(async () => (await waiting()) === 3);
        await database.tenant('other', one);
        await database.read('other', one);
        await asCallOf('192.0.2.2', () => database.systemRead(one));
        await asCallOf('other', () => database.system(one));
        expect(await waiting()).to.equal(3);
      } finally {
        await holder.query('SELECT pg_advisory_unlock($1)', [lock]);
      }
      await Promise.all(all);
    });

  it('are taken in turns when owners need more than there are', async () => {
    await holder.query('SELECT pg_advisory_lock($1)', [lock]);
    const held = ['a', 'b'].flatMap((tenantId) => Array.from({ length: 3 }, () => database.tenant(tenantId, wait)));
    await eventually(async () => (await waiting()) === 4);
    const order: string[] = [];
    const ask = (tenantId: string) => database.tenant(tenantId, one).then(() => order.push(tenantId));
    const asked = [...Array.from({ length: 20 }, () => 'c'), 'd'].map(ask);
    await holder.query('SELECT pg_advisory_unlock($1)', [lock]);
    await Promise.all([...held, ...asked]);
    expect(order.indexOf('d')).to.be.lessThan(6);
  });
});
