// Row-level security, table by table as the database's catalogue lists them: a transaction of one tenant neither sees nor changes
// a row of another, whatever its statement. A new table is covered without being listed.
import { expect } from 'chai';
import { createTestDatabase, type TestDatabase } from '../platform/testing/test-database.ts';
import { ofTenant, type TenantTable, tenantTables } from './tenant-tables.ts';
import { fillTenant } from './testing/test-rows.ts';

const [victim, attacker] = ['victim', 'attacker'];

describe('a transaction of a tenant', function () {
  this.timeout(60_000);
  let test: TestDatabase;
  let tables: readonly TenantTable[];
  let all: readonly string[];
  before(async () => {
    test = await createTestDatabase();
    for (const tenantId of [victim, attacker]) await fillTenant(test.database, tenantId);
    ({ tables, all } = await test.database.system((tx) => tenantTables(tx)));
  });
  after(() => test.drop());

  /** Runs a statement as the attacker, and rolls it back. Returns its rows, or the code of the error. */
  const attempt = async (text: string, values: unknown[] = []): Promise<Record<string, unknown>[] | string> => {
    let rows: Record<string, unknown>[] = [];
    const rollback = new Error('rolled back');
    try {
      await test.database.tenant(attacker, async (tx) => {
        rows = (await tx.query<Record<string, unknown>>(text, values)).rows;
        throw rollback;
      });
      throw new Error('it was committed');
    } catch (error) {
      if (error === rollback) return rows;
      return String((error as { code?: unknown }).code ?? error);
    }
  };
  const columnsOf = async (table: string): Promise<{ name: string; generated: boolean }[]> => {
    const { rows } = await test.database.system((tx) =>
      tx.query<{ name: string; generated: boolean }>(
        `SELECT quote_ident(attname) AS name, attgenerated <> '' OR attidentity <> '' AS generated FROM pg_attribute
         WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum`,
        [table],
      ),
    );
    return rows;
  };
  /** What PostgreSQL reports for a missing right, and for a row that a policy forbids. */
  const denied = '42501';

  it('can read nothing of tables without a tenant', async () => {
    const owned = new Set(tables.map(({ name }) => name));
    const platform = all.filter((name) => !owned.has(name));
    expect(platform.length).to.be.above(5);
    const readable: string[] = [];
    for (const table of platform) {
      if ((await attempt(`SELECT * FROM ${table}`)) !== denied) readable.push(table);
      expect(await attempt(`DELETE FROM ${table}`), table).to.equal(denied);
    }
    // Headers of blocks are public.
    expect(readable.toSorted()).to.deep.equal(['block_headers']);
  });

  it('can read no column of another tenant’s rows, in any table', async () => {
    let read = 0;
    for (const table of tables) {
      const { rows: there } = await test.database.system((tx) =>
        tx.query(`SELECT FROM ${table.name} t WHERE ${ofTenant(table, 't')} LIMIT 1`, [victim]),
      );
      for (const { name } of await columnsOf(table.name)) {
        const rows = await attempt(`SELECT ${name}::text AS value FROM ${table.name}`);
        if (rows === denied) continue;
        expect(rows, `${table.name}.${name}`).to.be.an('array');
        const values = (rows as { value: string | null }[]).map(({ value }) => value ?? '');
        expect(
          values.filter((value) => value.includes(victim)),
          `${table.name}.${name}`,
        ).to.deep.equal([]);
        expect(values.length, `${table.name}: rows of one tenant`).to.be.at.most(await ownRows(table));
        if (there.length > 0) read += 1;
      }
    }
    expect(read).to.be.above(200);
  });
  const ownRows = async (table: TenantTable): Promise<number> => {
    const { rows } = await test.database.system((tx) =>
      tx.query<{ count: number }>(`SELECT count(*)::int4 AS count FROM ${table.name} t WHERE ${ofTenant(table, 't')}`, [
        attacker,
      ]),
    );
    return rows[0]!.count;
  };

  it('can change, take over and delete no row of another tenant, in any table', async () => {
    for (const table of tables) {
      const columns = await columnsOf(table.name);
      const owner = typeof table.owner === 'string' ? table.owner : undefined;
      const isOfVictim = owner === 'tenant_id' ? `WHERE tenant_id = '${victim}'` : '';
      for (const { name, generated } of columns) {
        if (generated) continue;
        const rows = await attempt(`UPDATE ${table.name} SET ${name} = ${name} ${isOfVictim} RETURNING 1`);
        if (typeof rows === 'string') expect(rows, `${table.name}.${name}`).to.be.oneOf([denied, '42P17']);
        else expect(rows.length, `${table.name}.${name}`).to.be.at.most(isOfVictim === '' ? await ownRows(table) : 0);
      }
      if (owner === 'tenant_id') {
        // Giving a row of its own to the victim.
        const given = await attempt(`UPDATE ${table.name} SET tenant_id = '${victim}' RETURNING 1`);
        if (given !== denied && (await ownRows(table)) > 0) {
          expect(given, `${table.name}: giving a row`).to.deep.equal([]);
        }
      }
      const deleted = await attempt(`DELETE FROM ${table.name} ${isOfVictim} RETURNING 1`);
      if (typeof deleted === 'string') expect(deleted, `${table.name}: delete`).to.be.oneOf([denied, '23503']);
      else expect(deleted.length, `${table.name}: delete`).to.be.at.most(isOfVictim === '' ? await ownRows(table) : 0);
    }
  });

  it('can add no row for another tenant, in any table', async () => {
    for (const table of tables) {
      if (table.owner !== 'tenant_id') continue;
      const names = (await columnsOf(table.name)).filter(({ generated }) => !generated).map(({ name }) => name);
      const values = names.map((name) => (name === 'tenant_id' ? `'${victim}'` : 't.' + name));
      // Copies what the attacker may read, with the victim as owner; rows it may not read are refused anyway.
      const rows = await attempt(
        `INSERT INTO ${table.name} (${names.join(', ')}) SELECT ${values.join(', ')} FROM ${table.name} t RETURNING 1`,
      );
      if (typeof rows === 'string') expect(rows, table.name).to.be.oneOf([denied, '0A000']);
      else expect(rows, table.name).to.deep.equal([]);
      const blank = await attempt(`INSERT INTO ${table.name} (tenant_id) VALUES ('${victim}')`);
      expect(blank, `${table.name}: a blank row`).to.be.oneOf([denied, '23502', '0A000']);
    }
  });

  it('cannot turn off its restriction', async () => {
    for (const text of [
      'SET row_security = off',
      `ALTER TABLE devices DISABLE ROW LEVEL SECURITY`,
      'DROP POLICY tenant ON devices',
      'GRANT ALL ON devices TO kellet_tenant',
      `CREATE FUNCTION steal() RETURNS void LANGUAGE sql SECURITY DEFINER AS 'SELECT 1'`,
    ]) {
      let names: unknown[] = [];
      await test.database
        .tenant(attacker, async (tx) => {
          await tx.query(text);
          names = (await tx.query(`SELECT name FROM devices WHERE tenant_id = '${victim}'`)).rows;
        })
        .catch(() => undefined);
      expect(names, text).to.deep.equal([]);
    }
  });
});
