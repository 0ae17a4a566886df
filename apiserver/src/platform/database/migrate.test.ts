// Tests that migrations disturb nobody: they do not wait long for tables, and build indexes while tables are written.
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect } from 'chai';
import { createLogger } from '../observability/logger.ts';
import { createTestDatabase, lockWaitedFor, type TestDatabase } from '../testing/test-database.ts';
import { Database } from './database.ts';
import { migrate } from './migrate.ts';

const logger = createLogger('fatal');
const table = 'CREATE TABLE large (n int4)';

describe('migrations', function () {
  this.timeout(60_000);
  let test: TestDatabase;
  let folder: string;
  beforeEach(async () => {
    test = await createTestDatabase();
    folder = await mkdtemp(join(tmpdir(), 'kellet-migrations-'));
    await writeFile(join(folder, '9000_table.sql'), table);
  });
  afterEach(async () => {
    await test.drop();
    await rm(folder, { recursive: true, force: true });
  });

  describe('without a transaction', () => {
    const add = (name: string, sql: string) =>
      writeFile(join(folder, name), `-- without a transaction: ${name}\n${sql}`);
    const index = 'CREATE INDEX CONCURRENTLY IF NOT EXISTS large_n ON large (n);';
    const indexes = async () => {
      const { rows } = await test.database.system((tx) =>
        tx.query<{ name: string; valid: boolean }>(
          `SELECT indexrelid::regclass::text AS name, indisvalid AS valid FROM pg_index WHERE indrelid = 'large'::regclass ORDER BY 1`,
        ),
      );
      return rows;
    };

    it('build indexes while the table is written', async () => {
      await migrate(test.database, logger, folder);
      await add('9001_index.sql', `${index}\n-- A second one.\n${index.replaceAll('large_n', 'large_twice')}\n`);
      let migrated: Promise<void> | undefined;
      await test.database.system(async (tx) => {
        await tx.query('INSERT INTO large VALUES (1)');
        migrated = migrate(test.database, logger, folder);
        // The index waits for this transaction, and others need not wait for the index.
        await lockWaitedFor(test.database);
        await test.database.system((other) => other.query('INSERT INTO large VALUES (2)'));
      });
      await migrated;
      expect(await indexes()).to.deep.equal([
        { name: 'large_n', valid: true },
        { name: 'large_twice', valid: true },
      ]);
      await migrate(test.database, logger, folder);
    });

    it('are done by one of several processes that start together', async () => {
      await add('9001_index.sql', index);
      const others = Array.from({ length: 3 }, () => new Database(test.url, logger));
      try {
        await Promise.all(others.map((other) => migrate(other, logger, folder)));
      } finally {
        await Promise.all(others.map((other) => other.close()));
      }
      expect(await indexes()).to.deep.equal([{ name: 'large_n', valid: true }]);
    });

    it('begin again after an attempt that was cut short', async () => {
      await add('9001_index.sql', 'CREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS large_unique ON large (n);');
      await rm(join(folder, '9000_table.sql'));
      await test.database.system((tx) => tx.query(table));
      await test.database.system((tx) => tx.query('INSERT INTO large VALUES (1), (1)'));
      expect(String(await migrate(test.database, logger, folder).catch(String))).to.contain('large_unique');
      expect(await indexes()).to.deep.equal([{ name: 'large_unique', valid: false }]);
      await test.database.system((tx) => tx.query('TRUNCATE large'));
      await migrate(test.database, logger, folder);
      expect(await indexes()).to.deep.equal([{ name: 'large_unique', valid: true }]);
    });

    it('contain nothing else, which would be done twice', async () => {
      await add('9001_other.sql', 'ALTER TABLE large ADD COLUMN m int4;');
      expect(String(await migrate(test.database, logger, folder).catch(String))).to.contain(
        'only indexes can be built',
      );
    });
  });

  describe('of a table that is in use', () => {
    beforeEach(() => migrate(test.database, logger, folder));

    it('let others use it meanwhile, and are applied as a whole once they can have it', async () => {
      await writeFile(
        join(folder, '9001_column.sql'),
        'CREATE TABLE other (n int4); ALTER TABLE large ADD COLUMN m int4;',
      );
      let migrated: Promise<void> | undefined;
      await test.database.system(async (reader) => {
        await reader.query('SELECT n FROM large');
        migrated = migrate(test.database, logger, folder);
        await lockWaitedFor(test.database);
        // Waits behind the migration until that has waited for too long.
        await test.database.system((tx) => tx.query('INSERT INTO large VALUES (1)'));
        const { rows } = await test.database.system((tx) =>
          tx.query<{ other: string | null }>(`SELECT to_regclass('other')::text AS other`),
        );
        expect(rows).to.deep.equal([{ other: null }]);
      });
      await migrated;
      const { rows } = await test.database.system((tx) => tx.query('SELECT n, m FROM large, (SELECT FROM other) AS o'));
      expect(rows).to.deep.equal([]);
      const { rows: kept } = await test.database.system((tx) => tx.query('SELECT n, m FROM large'));
      expect(kept).to.deep.equal([{ n: 1, m: null }]);
    });
  });
});
