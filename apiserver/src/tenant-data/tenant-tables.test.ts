// What the database's catalogue says about tables with data of tenants: each row names its tenant or belongs to one that does,
// and a foreign key cannot lead from a row of one tenant to a row of another.
import { expect } from 'chai';
import type { ForeignKey } from '../platform/database/catalogue.ts';
import { createTestDatabase, type TestDatabase } from '../platform/testing/test-database.ts';
import { ofTenant, type TenantTable, tenantTables } from './tenant-tables.ts';
import { fillTenant } from './testing/test-rows.ts';

/**
 * Foreign keys without the tenant, to ids that no two tenants share. Their rows are compared below. The key of a
 * certificate: naming the tenant would need another index of the keys of all devices, and each statement that writes one
 * has already found the device, with which the certificate's row shares its tenant by another key.
 */
const withoutTenant = ['device_certificates -> api_keys'];

/** Reports whether a foreign key cannot lead to a row of another tenant. */
const namesTenant = ({ columns, referencedColumns }: ForeignKey): boolean => {
  const position = columns.indexOf('tenant_id');
  return position !== -1 && referencedColumns[position] === 'tenant_id';
};

describe('tables with data of tenants', function () {
  this.timeout(60_000);
  const tenants = ['first', 'second'];
  let test: TestDatabase;
  let tables: readonly TenantTable[];
  before(async () => {
    test = await createTestDatabase();
    for (const tenantId of tenants) await fillTenant(test.database, tenantId);
    ({ tables } = await test.database.system((tx) => tenantTables(tx)));
  });
  after(() => test.drop());

  it('name the tenant in each foreign key between them, except to ids that no two tenants share', () => {
    const named = new Set(tables.filter(({ owner }) => owner === 'tenant_id').map(({ name }) => name));
    const bare = tables
      .filter(({ name }) => named.has(name))
      .flatMap(({ name, references }) => {
        const others = references.filter(({ table }) => named.has(table) && table !== 'tenants');
        // A row without a tenant, of a platform administrator, is held by a second key to the same table.
        const held = new Set(others.filter(namesTenant).map(({ table }) => table));
        return others.filter(({ table }) => !held.has(table)).map(({ table }) => `${name} -> ${table}`);
      });
    expect(bare.toSorted()).to.deep.equal(withoutTenant);
  });

  it('refuse a row that refers to a user of another tenant', async () => {
    const userId = await test.database.system(async (tx) => {
      const { rows } = await tx.query<{ user_id: string }>(
        `INSERT INTO users (user_id, tenant_id, email, role, password_hash)
         VALUES (gen_random_uuid(), $1, 'stranger@tenant.test', 'viewer', '') RETURNING user_id`,
        [tenants[1]],
      );
      return rows[0]!.user_id;
    });
    const refused: string[] = [];
    for (const { name, references } of tables) {
      if (!references.some((reference) => reference.table === 'users' && namesTenant(reference))) continue;
      const one = `SELECT ctid FROM ${name} WHERE tenant_id = $2 LIMIT 1`;
      const outcome = await test.database
        .system((tx) => tx.query(`UPDATE ${name} SET user_id = $1 WHERE ctid = (${one})`, [userId, tenants[0]]))
        .then(
          ({ rowCount }) => `${rowCount} rows changed`,
          (error: { code?: string }) => error.code,
        );
      expect(outcome, name).to.equal('23503');
      refused.push(name);
    }
    expect(refused).to.have.length.above(6);
  });

  it('have no row that refers to a row of another tenant', async () => {
    let compared = 0;
    for (const table of tables) {
      for (const { table: name, columns, referencedColumns } of table.references) {
        const target = tables.find((other) => other.name === name);
        if (!target || name === 'tenants') continue;
        const join = columns.map((column, index) => `r.${referencedColumns[index]} = t.${column}`).join(' AND ');
        const { rows } = await test.database.system((tx) =>
          tx.query<{ rows: string; own: string }>(
            `SELECT count(*) AS rows, count(*) FILTER (WHERE ${ofTenant(target, 'r')}) AS own
             FROM ${table.name} t JOIN ${name} r ON ${join} WHERE ${ofTenant(table, 't')}`,
            [tenants[0]],
          ),
        );
        expect(rows[0]!.own, `${table.name} -> ${name}`).to.equal(rows[0]!.rows);
        compared += Number(rows[0]!.rows);
      }
    }
    expect(compared).to.be.above(20);
  });
});
