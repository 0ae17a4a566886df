// SQL of the attributes of devices: one row per device and scope.
import type { Transaction } from '../../platform/database/database.ts';
import { jsonBytes } from '../../platform/statements/sized-rows.ts';
import type { AttributeScope, StoredAttributes } from './attribute-changes.ts';

/** The attributes of a device by scope. */
export type DeviceAttributes = Readonly<Record<AttributeScope, StoredAttributes>>;

/** Returns the attributes of a device, empty if it has none; 'large' if they have more than so many bytes. */
export async function readAttributes(
  tx: Transaction,
  tenantId: string,
  deviceId: string,
  mostBytes: number,
): Promise<DeviceAttributes | 'large'> {
  const { rows } = await tx.query<{ scope: AttributeScope; attributes: StoredAttributes | null }>(
    `SELECT scope, CASE WHEN sum(bytes) OVER () <= $3::float8 THEN attributes END AS attributes
     FROM (SELECT scope, attributes, ${jsonBytes('attributes')} AS bytes FROM device_attributes
       WHERE tenant_id = $1 AND device_id = $2) AS a`,
    [tenantId, deviceId, mostBytes],
  );
  if (rows.some(({ attributes }) => attributes === null)) return 'large';
  const found = Object.fromEntries(rows.map(({ scope, attributes }) => [scope, attributes]));
  return { client: {}, server: {}, shared: {}, ...found };
}

/** Replaces the attributes of some scopes of a device, whose row the transaction has locked. */
export async function writeAttributes(
  tx: Transaction,
  tenantId: string,
  deviceId: string,
  scopes: ReadonlyMap<AttributeScope, StoredAttributes>,
): Promise<void> {
  await tx.query(
    `INSERT INTO device_attributes (tenant_id, device_id, scope, attributes)
     SELECT $1, $2, scope, attributes FROM unnest($3::text[], $4::jsonb[]) AS given (scope, attributes)
     ON CONFLICT (tenant_id, device_id, scope) DO UPDATE SET attributes = EXCLUDED.attributes`,
    [tenantId, deviceId, [...scopes.keys()], [...scopes.values()].map((attributes) => JSON.stringify(attributes))],
  );
}

/** Deletes the attributes of devices that are gone. */
export async function dropAttributes(tx: Transaction, tenantId: string, deviceIds: readonly string[]): Promise<void> {
  await tx.query(`DELETE FROM device_attributes WHERE tenant_id = $1 AND device_id = ANY($2::uuid[])`, [
    tenantId,
    deviceIds,
  ]);
}
