// What the database's catalogue says about tables with data of tenants: each row names its tenant or belongs to one that does,
// and a foreign key cannot lead from a row of one tenant to a row of another.
import { expect } from 'chai';
import { createTestDatabase, type TestDatabase } from '../platform/testing/test-database.ts';
import { ofTenant, type TenantTable,tenantTables } from './tenant-tables.ts';
import { fillTenant } from './testing/test-rows.ts';

/** Foreign keys without the tenant, to ids that no two tenants share. Their rows are compared below. */
const withoutTenant = [
  'device_certificates -> api_keys',
  'pending_sign_ins -> users',
  'recovery_codes -> users',
  'second_factors -> users',
  'sessions -> users',
  'sso_identities -> users',
  'user_group_members -> users',
  'webauthn_credentials -> users',
];

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
      .flatMap(({ name, references }) =>
        references
          .filter(({ table }) => named.has(table) && table !== 'tenants')
          .filter(({ columns, referencedColumns }) => {
            const position = columns.indexOf('tenant_id');
            return position === -1 || referencedColumns[position] !== 'tenant_id';
          })
          .map(({ table }) => `${name} -> ${table}`),
      );
    expect(bare.toSorted()).to.deep.equal(withoutTenant);
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
