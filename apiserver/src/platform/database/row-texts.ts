// Settings under which PostgreSQL's text of a value does not depend on the server, for files that hold rows as text.
import type { Transaction } from './database.ts';

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
