// SQL of customers. Every function works inside the caller's transaction.
import type { Transaction } from '../../platform/database/database.ts';
import { keptLimit } from '../../platform/database/number-limits.ts';
import { notFound } from '../../platform/errors.ts';
import { isId } from '../../platform/ids.ts';
import { idField } from '../../platform/requests/fields.ts';
import { type Room, type SizedRow, sizedRows } from '../../platform/statements/sized-rows.ts';
import { visibleTo } from '../../platform/visibility.ts';

/** A row of the table customers. */
export interface CustomerRow {
  customer_id: string;
  name: string;
  contact: string;
  created_at: Date;
  updated_at: Date;
}

/** Customers of one tenant. */
export const customerLimit = keptLimit('customers', 10_000, 'customers');

const columns = 'customer_id, name, contact, created_at, updated_at';

/** Creates a customer. */
export async function insertCustomer(
  tx: Transaction,
  tenantId: string,
  customer: { customerId: string; name: string; contact: string },
): Promise<CustomerRow> {
  const { rows } = await tx.query<CustomerRow>(
    `INSERT INTO customers (tenant_id, customer_id, name, contact) VALUES ($1, $2, $3, $4) RETURNING ${columns}`,
    [tenantId, customer.customerId, customer.name, customer.contact],
  );
  return rows[0]!;
}

/** Returns a customer that users of `customer` see (null: all users). Throws NOT_FOUND. */
export async function findCustomer(
  tx: Transaction,
  tenantId: string,
  customerId: string,
  customer: string | null,
): Promise<CustomerRow> {
  const { rows } = await tx.query<CustomerRow>(
    `SELECT ${columns} FROM customers WHERE tenant_id = $1 AND customer_id = $2 AND ${visibleTo('$3')}`,
    [tenantId, customerId, customer],
  );
  if (!rows[0]) throw notFound('customer');
  return rows[0];
}

/** Returns customers after one, in order of their ids. */
export async function listCustomers(
  tx: Transaction,
  tenantId: string,
  customer: string | null,
  after: string | undefined,
  room: Room,
): Promise<(CustomerRow & SizedRow)[]> {
  const { rows } = await tx.query<CustomerRow & SizedRow>(
    sizedRows(
      `SELECT ${columns}, octet_length(contact) AS row_bytes FROM customers
       WHERE tenant_id = $1 AND ($2::uuid IS NULL OR customer_id > $2) ${customer === null ? '' : 'AND customer_id = $5'}`,
      'customer_id',
      3,
    ),
    [tenantId, after ?? null, room.limit, room.bytes, ...(customer === null ? [] : [customer])],
  );
  return rows;
}

/** Changes a customer; null leaves a field as it is. Throws NOT_FOUND. */
export async function changeCustomer(
  tx: Transaction,
  tenantId: string,
  customerId: string,
  name: string | null,
  contact: string | null,
): Promise<CustomerRow> {
  const { rows } = await tx.query<CustomerRow>(
    `UPDATE customers SET name = coalesce($3, name), contact = coalesce($4, contact), updated_at = now()
     WHERE tenant_id = $1 AND customer_id = $2 RETURNING ${columns}`,
    [tenantId, customerId, name, contact],
  );
  if (!rows[0]) throw notFound('customer');
  return rows[0];
}

/** Locks a customer, so that nothing more can be assigned to it. Throws NOT_FOUND. */
export async function lockCustomer(tx: Transaction, tenantId: string, customerId: string): Promise<void> {
  const { rowCount } = await tx.query('SELECT FROM customers WHERE tenant_id = $1 AND customer_id = $2 FOR UPDATE', [
    tenantId,
    customerId,
  ]);
  if (rowCount === 0) throw notFound('customer');
}

/** Names a kind of thing in the registry that belongs to a customer, or undefined if nothing does. */
export async function belongingsOf(tx: Transaction, tenantId: string, customerId: string): Promise<string | undefined> {
  const { rows } = await tx.query<{ kind: string }>(
    ['devices', 'assets', 'entity views']
      .map(
        (kind) =>
          `(SELECT '${kind}' AS kind FROM ${kind.replace(' ', '_')} WHERE tenant_id = $1 AND customer_id = $2 LIMIT 1)`,
      )
      .join(' UNION ALL '),
    [tenantId, customerId],
  );
  return rows[0]?.kind;
}

/** Deletes a customer. */
export async function deleteCustomer(tx: Transaction, tenantId: string, customerId: string): Promise<void> {
  await tx.query('DELETE FROM customers WHERE tenant_id = $1 AND customer_id = $2', [tenantId, customerId]);
}

/**
 * Throws NOT_FOUND naming the field unless the tenant has the customer. `lock` locks it against deletion until the
 * transaction ends. An empty id names none.
 */
export async function checkCustomer(
  tx: Transaction,
  tenantId: string,
  customerId: string,
  lock: '' | 'FOR KEY SHARE' = 'FOR KEY SHARE',
): Promise<void> {
  if (customerId === '') return;
  const found =
    isId(customerId) &&
    (await tx.query(`SELECT FROM customers WHERE tenant_id = $1 AND customer_id = $2 ${lock}`, [tenantId, customerId]));
  if (!found || found.rowCount === 0) throw notFound('customer_id');
}

/**
 * Returns the customer to which a list is limited: the one that the request names, or the caller's (`customer`). Throws
 * NOT_FOUND naming the field for an id that cannot be one that the caller sees.
 */
export function customerFilter(named: string, customer: string | null): string | undefined {
  if (named === '') return customer ?? undefined;
  const id = idField('customer_id', named);
  if (customer !== null && id !== customer) throw notFound('customer_id');
  return id;
}
