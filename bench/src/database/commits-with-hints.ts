// commits-with-hints: transactions per second that write an event of the outbox, 32 at a time, of which each tells the relays that
// there is one. Compared with the same transactions with a NOTIFY of their own, which PostgreSQL commits one at a time.
import { systemClock } from '../../../apiserver/src/platform/clock.ts';
import { outboxChannel } from '../../../apiserver/src/platform/database/channels.ts';
import { Database, type Transaction } from '../../../apiserver/src/platform/database/database.ts';
import { migrate } from '../../../apiserver/src/platform/database/migrate.ts';
import { enqueue } from '../../../apiserver/src/platform/events/outbox.ts';
import { newId } from '../../../apiserver/src/platform/ids.ts';
import { createLogger } from '../../../apiserver/src/platform/observability/logger.ts';
import { cpuMicroseconds } from '../cpu-time.ts';
import { startDatabase } from '../environment.ts';
import type { Benchmark } from '../harness.ts';

const concurrency = 32;
const seconds = 3;

/** The benchmark. */
export const commitsWithHints: Benchmark = {
  name: 'commits-with-hints',
  unit: 'commits/s',
  baseline: 'NOTIFY in each transaction',
  rounds: 5,
  prepare: async () => {
    const { databaseUrl, close, supervisor } = await startDatabase((line) => console.error(line));
    const logger = createLogger('fatal');
    const database = new Database(databaseUrl, logger, { maximumConnections: concurrency });
    await migrate(database, logger);
    database.listen(
      [outboxChannel],
      () => undefined,
      () => undefined,
    );
    const postgres = supervisor.pids()['postgres']!;
    const remarks: Record<string, number> = {};
    const event = () => ({ subject: 'devices.updated', resource: newId(), tenantId: 'bench', data: { n: 1 } }) as const;
    const rate = async (name: string, work: (tx: Transaction) => Promise<unknown>): Promise<number> => {
      const end = performance.now() + seconds * 1000;
      const before = cpuMicroseconds(postgres);
      let commits = 0;
      const worker = async () => {
        for (; performance.now() < end; commits += 1) await database.system(work);
      };
      await Promise.all(Array.from({ length: concurrency }, worker));
      remarks[`PostgreSQL µs, ${name}`] = (cpuMicroseconds(postgres) - before) / commits;
      await database.system((tx) => tx.query('TRUNCATE outbox'));
      return commits / seconds;
    };
    return {
      ours: () => rate('hints', (tx) => enqueue(tx, event(), systemClock)),
      baseline: () =>
        rate('NOTIFY', async (tx) => {
          await enqueue({ query: tx.query.bind(tx), hint: () => undefined }, event(), systemClock);
          await tx.query('SELECT pg_notify($1, $2)', [outboxChannel, '']);
        }),
      remarks: () => remarks,
      close: async () => {
        await database.close();
        await close();
      },
    };
  },
};
