// Finds the tables with data of tenants in the database catalogue, so that a table that a later migration adds is purged
// and exported without being listed anywhere.
import { type CatalogueTable, type ForeignKey, listTables, referencesLast } from '../platform/database/catalogue.ts';
import type { Transaction } from '../platform/database/database.ts';

/** How the rows of a tenant are recognized: by a column, or by what they refer to. */
export type Owner = 'tenant_id' | 'tenant_ids' | ForeignKey;

/** A table with data of tenants. */
export interface TenantTable extends CatalogueTable {
  readonly owner: Owner;
}

/**
 * Returns the names of all tables, and those with data of tenants: first what refers to others, last what is referred to. `heirs` as in
 * listTables.
 */
export async function tenantTables(
  tx: Transaction,
  heirs?: readonly string[],
): Promise<{ readonly all: readonly string[]; readonly tables: readonly TenantTable[] }> {
  const all = await listTables(tx, heirs);
  const found = new Map<string, TenantTable>();
  // A table without a tenant_id is found through one that refers to it being found first.
  for (let isMore = true; isMore;) {
    isMore = false;
    for (const table of all) {
      const { name, columns, references } = table;
      const owner = (['tenant_id', 'tenant_ids'] as const).find((column) => columns.includes(column));
      const by = owner ?? references.find((reference) => reference.table !== name && found.has(reference.table));
      if (found.has(name) || !by) continue;
      isMore = true;
      found.set(name, { ...table, owner: by });
    }
  }
  return { all: all.map(({ name }) => name), tables: referencesLast([...found.values()]) };
}

/** SQL condition: the row `alias` of a table belongs to the tenant $1. */
export function ofTenant({ owner }: Pick<TenantTable, 'owner'>, alias: string): string {
  if (owner === 'tenant_id') return `${alias}.tenant_id = $1`;
  if (owner === 'tenant_ids') return `${alias}.tenant_ids @> ARRAY[$1]`;
  const matches = owner.columns.map((column, index) => `o.${owner.referencedColumns[index]} = ${alias}.${column}`);
  return `EXISTS (SELECT FROM ${owner.table} o WHERE ${matches.join(' AND ')} AND o.tenant_id = $1)`;
}
