// That tables which grow are vacuumed and frozen as docs/operations.md says, and that the age of the oldest transaction is shown.
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { expect } from 'chai';
import pg from 'pg';
import { createLogger } from '../observability/logger.ts';
import { createMetrics } from '../observability/metrics.ts';
import { createTestDatabase, type TestDatabase } from '../testing/test-database.ts';
import { registerTransactionIdGauge } from './freezing.ts';

const operations = path.join(import.meta.dirname, '../../../../docs/operations.md');

/** Returns the tables that the documentation names by their settings, as `name=value name=value`. */
function documentedSettings(): Map<string, string> {
  const [, section] = readFileSync(operations, 'utf8').split('### When autovacuum runs');
  const rows = section!.split('\n#')[0]!.matchAll(/^\| (`.*`) \| (`.*`) \|/gm);
  const namesIn = (cell: string) => [...cell.matchAll(/`([^`]+)`/g)].map(([, name]) => name!);
  return new Map(
    [...rows].flatMap(([, settings, tables]) =>
      namesIn(tables!).map((table) => [table, namesIn(settings!).toSorted().join(' ')] as const),
    ),
  );
}

describe('autovacuum and freezing', () => {
  let test: TestDatabase;
  before(async () => (test = await createTestDatabase()));
  after(() => test.drop());

  it('are set for each table as documented, and for no other', async () => {
    const { rows } = await test.database.system((tx) =>
      tx.query<{ name: string; settings: string }>(
        `SELECT relname AS name, string_agg(o.setting, ' ' ORDER BY o.setting COLLATE "C") AS settings
         FROM pg_class, LATERAL (SELECT replace(option, 'autovacuum_', '') AS setting FROM unnest(reloptions) AS option
           WHERE option LIKE 'autovacuum_%') AS o
         WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace GROUP BY 1`,
      ),
    );
    expect(rows).to.have.length.above(30);
    expect(Object.fromEntries(rows.map(({ name, settings }) => [name, settings]))).to.deep.equal(
      Object.fromEntries(documentedSettings()),
    );
  });

  it('are watched by the age of the oldest transaction', async () => {
    const metrics = createMetrics();
    registerTransactionIdGauge({ database: test.database, metrics, logger: createLogger('silent') });
    const age = async () => {
      const found = await metrics.getSingleMetric('kellet_database_transaction_id_age')!.get();
      return found.values[0]!.value;
    };
    const before = await age();
    const client = new pg.Client({ connectionString: process.env['KELLET_TEST_DATABASE_URL'] });
    await client.connect();
    try {
      for (let n = 0; n < 200; n += 1) await client.query('SELECT pg_current_xact_id()');
    } finally {
      await client.end();
    }
    expect(await age()).to.be.at.least(before + 200);
  });
});
