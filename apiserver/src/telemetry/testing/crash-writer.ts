// A telemetry writer under load as a separate process, for tests. It takes the database from its environment, appends
// points until it is killed, and prints each acknowledged append as `<client> <round>` on a line of standard output.
import { writeSync } from 'node:fs';
import type { AnchorMode } from '@kellet/verify';
import { systemClock } from '../../platform/clock.ts';
import { Database } from '../../platform/database/database.ts';
import { createLogger } from '../../platform/observability/logger.ts';
import { createMetrics } from '../../platform/observability/metrics.ts';
import { TelemetryWriter, writerDefaults, type WriterOptions } from '../write/group-commit.ts';
import { testPoint } from './test-devices.ts';

/** Points per append. */
export const crashPoints = 7;
/** Clients that append concurrently, each with its own device and mode. */
export const crashModes: readonly AnchorMode[] = ['merkle', 'merkle', 'chain', 'merkle', 'chain', 'per_event'];

/** Returns the points of a client's round; each value identifies its position. */
const crashRound = (client: number, round: number) =>
  Array.from({ length: crashPoints }, (_, index) => {
    const n = round * crashPoints + index;
    return testPoint('acme', client, 1_790_000_000 + n, n, crashModes[client]);
  });

async function main(databaseUrl: string): Promise<void> {
  const logger = createLogger('fatal');
  const database = new Database(databaseUrl, logger);
  const limits = JSON.parse(process.env['KELLET_TEST_CRASH_LIMITS'] ?? '{}') as Partial<WriterOptions>;
  const options = { ...writerDefaults, batchPoints: 50, batchSeconds: 1, segmentRows: 2000, ...limits };
  const writer = new TelemetryWriter(
    { database, logger, clock: systemClock, metrics: createMetrics() },
    options,
    () => undefined,
  );
  writer.start();
  const first = Number(process.env['KELLET_TEST_FIRST_ROUND']);
  await Promise.all(
    crashModes.map(async (_mode, client) => {
      for (let round = first; ; round += 1) {
        await writer.append(crashRound(client, round));
        // Written synchronously: acknowledgements must be known however the process ends.
        writeSync(1, `${client} ${round}\n`);
      }
    }),
  );
}

const databaseUrl = process.env['KELLET_TEST_CRASH_DATABASE_URL'];
if (databaseUrl) await main(databaseUrl);
