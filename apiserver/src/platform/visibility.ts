// What a caller sees of its tenant: everything, or only what belongs to one customer (docs/customers.md).
import type { Caller } from './rpc.ts';

/** Returns the customer to which a caller is limited, or null if it sees the whole tenant. */
export const customerOf = (caller: Caller): string | null => caller.customerId || null;

/**
 * Returns the SQL condition of a row that is visible to the customer in `parameter`; every row is if that is null. For
 * lookups by key: a list names the customer only if there is one, so that it is read along the customer's index.
 */
export const visibleTo = (parameter: string, column = 'customer_id'): string =>
  `(${parameter}::uuid IS NULL OR ${column} = ${parameter})`;
