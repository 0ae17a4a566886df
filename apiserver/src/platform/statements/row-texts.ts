// For files that hold rows as text: settings under which PostgreSQL's text of a value does not depend on the server, and how long it is.
import type { Transaction } from '../database/database.ts';

/**
 * Prepares a transaction for reading or writing rows as text, however long the work between its statements takes. Files of
 * earlier releases rely on these settings.
 */
export async function prepareForTexts(tx: Transaction): Promise<void> {
  await tx.query('SET LOCAL idle_in_transaction_session_timeout = 0');
  await tx.query(
    `SELECT set_config('datestyle', 'ISO, YMD', true), set_config('intervalstyle', 'postgres', true),
       set_config('timezone', 'UTC', true), set_config('bytea_output', 'hex', true),
       set_config('extra_float_digits', '1', true)`,
  );
}

/** Returns SQL of about how long the text of a row is. */
export async function textBytes(tx: Transaction, table: string): Promise<string> {
  const { rows } = await tx.query<{ name: string; type: string }>(
    `SELECT quote_ident(attname) AS name, atttypid::regtype::text AS type FROM pg_attribute
     WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped AND attlen = -1`,
    [table],
  );
  // The lengths of texts and bytes are known without unpacking them.
  const lengths = rows.map(({ name, type }) =>
    type === 'bytea' ? `2 * octet_length(${name})` : `octet_length(${name}::text)`,
  );
  return ['100', ...lengths.map((length) => `coalesce(${length}, 0)`)].join(' + ');
}
