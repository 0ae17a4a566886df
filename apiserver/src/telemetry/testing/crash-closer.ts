// Closes the writers of a database as a separate process, for tests, and prints a line on standard output after each step, so that
// it can be killed in the middle. It takes the database from its environment.
import { writeSync } from 'node:fs';
import { Database } from '../../platform/database/database.ts';
import { createLogger } from '../../platform/observability/logger.ts';
import { closingStep, fenceWriter } from '../write/writer-closing.ts';

const database = new Database(process.env['KELLET_TEST_CRASH_DATABASE_URL']!, createLogger('fatal'));
const { rows } = await database.systemRead((tx) =>
  tx.query<{ writer_id: string }>('SELECT writer_id FROM telemetry_writers WHERE closed_at IS NULL'),
);
for (const { writer_id: writerId } of rows) {
  await database.system((tx) => fenceWriter(tx, writerId));
  writeSync(1, 'fenced\n');
  // So few leaves at once that there are many steps.
  while (await database.maintenance((tx) => closingStep(tx, writerId, 1))) writeSync(1, 'step\n');
  writeSync(1, 'closed\n');
}
await database.close();
