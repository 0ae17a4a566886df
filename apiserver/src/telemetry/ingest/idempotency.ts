// Replays the response to a repeated request with the same Idempotency-Key, for one day.
import { createHash } from 'node:crypto';
import { repeatWhileFull } from '../../platform/background/repeat-while-full.ts';
import type { Database } from '../../platform/database/database.ts';
import { failedPrecondition, invalidArgument } from '../../platform/errors.ts';
import type { CallContext, Caller } from '../../platform/rpc.ts';
import type { IdempotencyRow } from '../write/idempotency-keys.ts';

const maxKeyBytes = 255;

/** An idempotency key, scoped to its holder. */
export type IdempotencyScope = Pick<IdempotencyRow, 'tenantId' | 'holder' | 'idempotencyKey'>;

/** Returns the call's idempotency key, or undefined if it has none. Throws INVALID_ARGUMENT for an invalid key. */
export function idempotencyScope(context: CallContext): IdempotencyScope | undefined {
  const idempotencyKey = context.metadata.get('idempotency-key');
  if (idempotencyKey === undefined) return undefined;
  if (idempotencyKey === '' || Buffer.byteLength(idempotencyKey) > maxKeyBytes || idempotencyKey.includes('\0')) {
    throw invalidArgument(`Idempotency-Key must have 1 to ${maxKeyBytes} bytes`);
  }
  return { tenantId: context.tenantId, holder: holderOf(context.caller), idempotencyKey };
}

/** Returns who repeats requests: a user whose token was refreshed, or a device with a new key, is the same as before. */
const holderOf = ({ userId, deviceId, credentialHash }: Caller): string => userId || deviceId || credentialHash;

/** Returns the hex SHA-256 that identifies a request body. */
export const requestHash = (request: unknown): string =>
  createHash('sha256').update(JSON.stringify(request)).digest('hex');

/**
 * Returns the response stored under the key, or undefined. Throws FAILED_PRECONDITION if the key was used for a
 * different request.
 */
export async function keptResponse(
  database: Database,
  scope: IdempotencyScope,
  hash: string,
): Promise<string | undefined> {
  const { rows } = await database.read(scope.tenantId, (tx) =>
    tx.query<{ request_hash: string; response: string }>(
      `SELECT request_hash, response FROM telemetry_idempotency
       WHERE tenant_id = $1 AND credential_hash = $2 AND idempotency_key = $3`,
      [scope.tenantId, scope.holder, scope.idempotencyKey],
    ),
  );
  const kept = rows[0];
  if (kept && kept.request_hash !== hash) throw failedPrecondition('the Idempotency-Key was used for another request');
  return kept?.response;
}

const responsesAtOnce = 1000;

/** Deletes responses older than a day, in small transactions. */
export const forgetOldResponses = (database: Database, signal: AbortSignal): Promise<void> =>
  repeatWhileFull(responsesAtOnce, signal, async (limit) => {
    const { rowCount } = await database.system((tx) =>
      tx.query(
        `DELETE FROM telemetry_idempotency WHERE ctid = ANY (ARRAY (
           SELECT ctid FROM telemetry_idempotency WHERE created_at < now() - interval '1 day'
           ORDER BY created_at LIMIT $1 FOR UPDATE SKIP LOCKED))`,
        [limit],
      ),
    );
    return rowCount ?? 0;
  });
