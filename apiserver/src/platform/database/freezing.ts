// Shows how far PostgreSQL is from having to stop because transaction ids run out.
import type { Logger } from '../observability/logger.ts';
import { readGauge, type Registry } from '../observability/metrics.ts';
import type { Database } from './database.ts';

/** Registers the gauge. */
export function registerTransactionIdGauge(parts: {
  readonly database: Database;
  readonly metrics: Registry;
  readonly logger: Logger;
}): void {
  readGauge(
    parts,
    'kellet_database_transaction_id_age',
    'Transactions since the oldest one that PostgreSQL has not frozen',
    async () => {
      const { rows } = await parts.database.systemRead((tx) =>
        tx.query<{ value: number }>(
          // Multixacts, which shared row locks use, run out in the same way.
          `SELECT greatest(age(datfrozenxid), mxid_age(datminmxid))::float8 AS value FROM pg_database
           WHERE datname = current_database()`,
        ),
      );
      return rows[0]!.value;
    },
  );
}
