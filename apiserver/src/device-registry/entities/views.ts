// SQL of entity views. Every function works inside the caller's transaction.
import type { Database, Transaction } from '../../platform/database/database.ts';
import { keptLimit } from '../../platform/database/number-limits.ts';
import { notFound } from '../../platform/errors.ts';
import { type Room, type SizedRow, sizedRows } from '../../platform/statements/sized-rows.ts';
import { visibleTo } from '../../platform/visibility.ts';

/** A row of the table entity_views; absent ids are null. Exactly one of device_id and asset_id is set. */
export interface ViewRow {
  entity_view_id: string;
  name: string;
  device_id: string | null;
  asset_id: string | null;
  /** Empty: all. */
  keys: string[];
  /** Nanoseconds since 1970, the end exclusive; null: no bound. */
  start_time: bigint | null;
  end_time: bigint | null;
  customer_id: string | null;
  created_at: Date;
  updated_at: Date;
}

/** A view as users see it who may be those of a customer. */
export interface SeenView extends ViewRow {
  /** Whether they are told its device: it is theirs, or the view hides nothing of it. */
  sees_device: boolean;
}

/** Entity views of one tenant. */
export const viewLimit = keptLimit('entity_views', 100_000, 'entity views');

const columns =
  'entity_view_id, name, device_id, asset_id, keys, start_time, end_time, customer_id, created_at, updated_at';

/** SQL: the column sees_device, for users of the customer in `parameter` (null: all users). */
const seesDevice = (parameter: string): string => `(${parameter}::uuid IS NULL
  OR (v.keys = '{}' AND v.start_time IS NULL AND v.end_time IS NULL) OR EXISTS (
  SELECT FROM devices d WHERE d.tenant_id = v.tenant_id AND d.device_id = v.device_id AND d.customer_id = ${parameter})) AS sees_device`;

/** The columns that a caller sets, with their values. */
export type ViewValues = ReadonlyMap<string, unknown>;

/** Creates a view. */
export async function insertView(
  tx: Transaction,
  tenantId: string,
  viewId: string,
  values: ViewValues,
): Promise<ViewRow> {
  const places = [...values].map((_value, index) => `$${index + 3}`);
  const { rows } = await tx.query<ViewRow>(
    `INSERT INTO entity_views (tenant_id, entity_view_id, ${[...values.keys()].join(', ')})
     VALUES ($1, $2, ${places.join(', ')}) RETURNING ${columns}`,
    [tenantId, viewId, ...values.values()],
  );
  return rows[0]!;
}

/** Returns a view that users of `customer` see (null: all users), or undefined. */
export async function findView(
  tx: Transaction,
  tenantId: string,
  viewId: string,
  customer: string | null,
  lock: '' | 'FOR UPDATE' = '',
): Promise<SeenView | undefined> {
  const { rows } = await tx.query<SeenView>(
    `SELECT ${columns}, ${seesDevice('$3')} FROM entity_views v
     WHERE tenant_id = $1 AND entity_view_id = $2 AND ${visibleTo('$3')} ${lock}`,
    [tenantId, viewId, customer],
  );
  return rows[0];
}

/** Returns views after one, in order of their ids, as users of `customer` see them (null: all users), and only those of `customerId`, if any. */
export async function listViews(
  tx: Transaction,
  tenantId: string,
  { customer, customerId }: { readonly customer: string | null; readonly customerId: string | undefined },
  after: string | undefined,
  room: Room,
): Promise<(SeenView & SizedRow)[]> {
  const { rows } = await tx.query<SeenView & SizedRow>(
    sizedRows(
      `SELECT ${columns}, ${seesDevice('$5')}, pg_column_size(keys || '{}'::text[]) AS row_bytes FROM entity_views v
       WHERE tenant_id = $1 AND ($2::uuid IS NULL OR entity_view_id > $2) ${customerId ? 'AND customer_id = $6' : ''}`,
      'entity_view_id',
      3,
    ),
    [tenantId, after ?? null, room.limit, room.bytes, customer, ...(customerId ? [customerId] : [])],
  );
  return rows;
}

/** Changes columns of a view, which exists and is locked. */
export async function changeView(
  tx: Transaction,
  tenantId: string,
  viewId: string,
  values: ViewValues,
): Promise<ViewRow> {
  const sets = [...values.keys()].map((column, index) => `${column} = $${index + 3}`);
  const { rows } = await tx.query<ViewRow>(
    `UPDATE entity_views SET ${[...sets, 'updated_at = now()'].join(', ')}
     WHERE tenant_id = $1 AND entity_view_id = $2 RETURNING ${columns}`,
    [tenantId, viewId, ...values.values()],
  );
  return rows[0]!;
}

/** Deletes a view. Throws NOT_FOUND. */
export async function deleteView(tx: Transaction, tenantId: string, viewId: string): Promise<void> {
  const { rowCount } = await tx.query('DELETE FROM entity_views WHERE tenant_id = $1 AND entity_view_id = $2', [
    tenantId,
    viewId,
  ]);
  if (rowCount === 0) throw notFound('entity view');
}

/** Deletes the views of devices. */
export async function deleteViewsOf(tx: Transaction, tenantId: string, deviceIds: readonly string[]): Promise<void> {
  await tx.query('DELETE FROM entity_views WHERE tenant_id = $1 AND device_id = ANY($2::uuid[])', [
    tenantId,
    deviceIds,
  ]);
}

/** Returns what reads the views of a database for other services, limited to what users of a customer see (null: all). */
export const entityViewsOf =
  (database: Database) => async (tenantId: string, viewId: string, customer: string | null) => {
    const row = await database.read(tenantId, (tx) => findView(tx, tenantId, viewId, customer));
    if (!row) return undefined;
    const { device_id: deviceId, sees_device: seesDevice, keys, start_time: start, end_time: end } = row;
    return { deviceId, seesDevice, keys, start, end };
  };
