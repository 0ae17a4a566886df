// The Idempotency-Keys of a flush, and which of them are in use if it was refused.
import type { Transaction } from '../../platform/database/database.ts';
import { sqlState } from '../../platform/errors.ts';

/** The response to a request with an Idempotency-Key, stored with its points. */
export interface IdempotencyRow {
  readonly tenantId: string;
  /** Whose key it is; in the column credential_hash, which once held the hash of the credential. */
  readonly holder: string;
  readonly idempotencyKey: string;
  readonly requestHash: string;
  readonly response: string;
}

type Key = Pick<IdempotencyRow, 'tenantId' | 'holder' | 'idempotencyKey'>;

/** PostgreSQL's code for a row that exists already. */
const uniqueViolation = '23505';

/** Reports whether a flush was refused because an Idempotency-Key is in use. */
export const isKeyTaken = (error: unknown): boolean =>
  sqlState(error) === uniqueViolation && (error as { table?: string }).table === 'telemetry_idempotency';

/** Returns what tells a key from all others. Keys contain no NUL. */
export const nameOfKey = ({ tenantId, holder, idempotencyKey }: Key): string =>
  [tenantId, holder, idempotencyKey].join('\0');

/** Returns the names of those of the keys that are in use. */
export async function takenKeys(tx: Transaction, keys: readonly Key[]): Promise<Set<string>> {
  const { rows } = await tx.query<{ tenant_id: string; credential_hash: string; idempotency_key: string }>(
    `SELECT tenant_id, credential_hash, idempotency_key
     FROM unnest($1::text[], $2::text[], $3::text[]) AS given (tenant_id, credential_hash, idempotency_key)
     JOIN telemetry_idempotency USING (tenant_id, credential_hash, idempotency_key)`,
    [
      keys.map(({ tenantId }) => tenantId),
      keys.map(({ holder }) => holder),
      keys.map(({ idempotencyKey }) => idempotencyKey),
    ],
  );
  return new Set(
    rows.map((row) =>
      nameOfKey({
        tenantId: row.tenant_id,
        holder: row.credential_hash,
        idempotencyKey: row.idempotency_key,
      }),
    ),
  );
}
