// How many of something a tenant, a device or a group of users may have. docs/operations.md lists the maximums.
import { resourceExhausted } from '../errors.ts';
import { nilId } from '../ids.ts';
import { holdLock, numberLock } from './advisory-locks.ts';
import type { Transaction } from './database.ts';

/** A limit on a number. */
export interface NumberLimit {
  readonly of: 'tenant' | 'device' | 'group';
  readonly maximum: number;
  /** The plural that messages use. */
  readonly what: string;
  /** SQL: how many there are, at least up to the maximum and one more. $1 is the tenant, $2 the device or group. */
  readonly held: string;
}

/** Returns a limit on a tenant's rows of a table whose number triggers keep (migrations/0141_kept_numbers.sql). */
export const keptLimit = (table: string, maximum: number, what: string): NumberLimit => ({
  ...{ of: 'tenant', maximum, what, held: `kept_sum($1, '${table}', '${nilId}')::int4` },
});

/** Returns a limit on the rows of a query, which are counted: for small numbers. */
export const countedLimit = (of: NumberLimit['of'], rows: string, maximum: number, what: string): NumberLimit => ({
  ...{ of, maximum, what, held: `(SELECT count(*)::int4 FROM (${rows} LIMIT ${maximum + 1}) AS counted)` },
});

/** Returns how many the owner has, at least up to the maximum and one more. */
export async function countHeld(
  tx: Transaction,
  owner: readonly [tenantId: string, ownId?: string],
  { held }: NumberLimit,
): Promise<number> {
  const { rows } = await tx.query<{ held: number }>(`SELECT ${held} AS held`, owner);
  return rows[0]!.held;
}

/**
 * Throws RESOURCE_EXHAUSTED if the owner, a tenant or a tenant's device or group of users, has no room for another, or
 * has more than the maximum `including` one that the transaction has added. Takes an advisory lock, which serialises
 * additions until the transaction ends.
 */
export async function checkRoom(
  tx: Transaction,
  owner: readonly [tenantId: string, ownId?: string],
  limit: NumberLimit,
  including: 0 | 1 = 0,
): Promise<void> {
  // Sent together, they share a round trip.
  const { of, maximum, what } = limit;
  const [, held] = await Promise.all([holdLock(tx, numberLock(what, owner)), countHeld(tx, owner, limit)]);
  if (held - including >= maximum) throw resourceExhausted(`a ${of} has at most ${maximum} ${what}`);
}
