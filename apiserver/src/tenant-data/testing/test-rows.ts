// For tests: a row of a tenant in every table with data of tenants, made from the catalogue of the database.
import { insertTenant } from '../../auth/testing/test-fixtures.ts';
import type { Database, Transaction } from '../../platform/database/database.ts';
import { nilId } from '../../platform/ids.ts';
import { type TenantTable, tenantTables } from '../tenant-tables.ts';

interface Column {
  name: string;
  type: string;
  required: boolean;
}

/** SQL expressions for values that follow neither from the type nor from a check with a list. */
const special: Readonly<Record<string, Readonly<Record<string, string>>>> = {
  anchor_batches: { status: `'confirmed'` },
  artifact_remains: { store: `'file:///nowhere'` },
  // Of devices that no test makes: there is no such file.
  cold_files: { least_device: `'${nilId}'`, greatest_device: `'${nilId}'` },
  // A segment that was dropped.
  telemetry_tenant_segments: { segment_id: '0' },
  entity_views: { device_id: '(SELECT device_id FROM devices WHERE tenant_id = $1 LIMIT 1)' },
};

/** Creates a tenant, points in a segment, and a row in every other table. Throws naming the table for which that fails. */
export async function fillTenant(database: Database, tenantId: string): Promise<void> {
  await insertTenant(database, tenantId);
  await database.system(async (tx) => {
    const { rows } = await tx.query<{ segment: bigint }>(
      'SELECT telemetry_open_hot_segment(gen_random_uuid()) AS segment',
    );
    const { segment } = rows[0]!;
    await tx.query(`ALTER TABLE telemetry_segment_${segment} ALTER COLUMN received SET NOT NULL`);
    const { tables } = await tenantTables(tx);
    const isOther = (name: string): boolean =>
      /^(telemetry_segment|leaf_index)_\d+$/.test(name) && !name.endsWith(`_${segment}`);
    for (const table of tables.toReversed())
      if (table.name !== 'tenants' && !isOther(table.name)) await fill(tx, table, tenantId);
    await tx.query(
      `UPDATE telemetry_segments SET state = 'sealed', rows = 1, least_time = 1, greatest_time = 1, sealed_at = now()
       WHERE segment_id = $1`,
      [segment],
    );
  });
}

/** Returns the tables with data of tenants that name a device. */
export async function deviceTables(tx: Transaction): Promise<TenantTable[]> {
  const { tables } = await tenantTables(tx);
  return tables.filter(({ name, columns }) => name !== 'devices' && columns.includes('device_id'));
}

/** Adds a row of a device to each of some tables, for a tenant that `fillTenant` has created. */
export async function fillDevice(
  database: Database,
  tenantId: string,
  deviceId: string,
  names: readonly string[],
): Promise<void> {
  await database.system(async (tx) => {
    const tables = (await deviceTables(tx)).filter(({ name }) => names.includes(name));
    for (const table of tables.toReversed()) await fill(tx, table, tenantId, { device_id: `'${deviceId}'` });
  });
}

async function fill(
  tx: Transaction,
  table: TenantTable,
  tenantId: string,
  given: Readonly<Record<string, string>> = {},
): Promise<void> {
  const [columns, literals] = [await columnsOf(tx, table), await literalsOf(tx, table)];
  const values = new Map<string, string>();
  for (const { name, type, required } of columns) {
    const isOwner = typeof table.owner === 'string' ? name === table.owner : table.owner.columns.includes(name);
    if (required || isOwner) values.set(name, literals.get(name) ?? valueOf(type));
  }
  for (const { columns: own, table: other, referencedColumns } of table.references) {
    if (other === table.name || other === 'tenants' || !own.some((name) => values.has(name))) continue;
    for (const [index, name] of own.entries()) {
      if (values.has(name))
        values.set(
          name,
          `(SELECT ${referencedColumns[index]} FROM ${other} o WHERE ${await ownerOf(tx, other, given)} LIMIT 1)`,
        );
    }
  }
  if (values.has('tenant_id')) values.set('tenant_id', '$1');
  if (values.has('tenant_ids')) values.set('tenant_ids', 'ARRAY[$1]');
  for (const [name, value] of Object.entries({ ...special[table.name], ...given })) values.set(name, value);
  const text = `INSERT INTO ${table.name} (${[...values.keys()].join(', ')}) SELECT ${[...values.values()].join(', ')}`;
  const uses = text.includes('$1');
  await tx.query(text, uses ? [tenantId] : []).catch((error: unknown) => {
    throw new Error(`no row can be made for ${table.name}: ${(error as Error).message} (${text})`);
  });
}

const ownerOf = async (tx: Transaction, name: string, given: Readonly<Record<string, string>>): Promise<string> => {
  const { tables } = await tenantTables(tx);
  const table = tables.find((one) => one.name === name);
  const conditions = Object.entries(given).filter(([column]) => table?.columns.includes(column));
  return [
    table?.owner === 'tenant_id' ? 'o.tenant_id = $1' : 'true',
    ...conditions.map(([column, value]) => `o.${column} = ${value}`),
  ].join(' AND ');
};

async function columnsOf(tx: Transaction, { name, identity }: TenantTable): Promise<Column[]> {
  const { rows } = await tx.query<Column & Record<string, unknown>>(
    `SELECT quote_ident(attname) AS name, format_type(atttypid, NULL) AS type, attnotnull AND NOT atthasdef AS required
     FROM pg_attribute WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum`,
    [name],
  );
  return rows.filter((column) => column.name !== identity);
}

/** Returns the first allowed value of each column that a check limits to a list. */
async function literalsOf(tx: Transaction, { name }: TenantTable): Promise<Map<string, string>> {
  const { rows } = await tx.query<{ check: string }>(
    `SELECT pg_get_constraintdef(oid) AS check FROM pg_constraint WHERE conrelid = $1::regclass AND contype = 'c'`,
    [name],
  );
  const found = rows.map(({ check }) => /^CHECK \(\((\w+) = ANY \(ARRAY\[('[^']*')/.exec(check));
  return new Map(found.flatMap((match) => (match ? [[match[1]!, match[2]!]] : [])));
}

function valueOf(type: string): string {
  const values: Record<string, string> = {
    uuid: 'gen_random_uuid()',
    'timestamp with time zone': 'now()',
    date: 'current_date',
    jsonb: `'{}'`,
    boolean: 'false',
    // Suits hashes of keys and of points.
    bytea: `sha256(gen_random_uuid()::text::bytea)`,
    text: `'text ' || gen_random_uuid()`,
  };
  return values[type] ?? (type.endsWith('[]') ? `'{}'` : '1');
}
