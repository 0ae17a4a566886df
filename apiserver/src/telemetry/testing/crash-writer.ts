// For tests: a process that is nothing but a telemetry writer under load. It is told the database by its environment, appends
// points until it is killed, and says on standard output which appends were acknowledged: `<client> <round>` a line.
import { writeSync } from 'node:fs';
import { systemClock } from '../../platform/clock.ts';
import { Database } from '../../platform/database/database.ts';
import { createLogger } from '../../platform/observability/logger.ts';
import type { AnchoringMode } from '../points/devices.ts';
import { testPoint } from './test-devices.ts';
import { TelemetryWriter, writerDefaults } from '../write/writer.ts';

/** Points of one append. */
export const crashPoints = 7;
/** Clients that append at once; each has a device and a mode of its own. */
export const crashModes: readonly AnchoringMode[] = ['merkle', 'merkle', 'chain', 'merkle', 'chain', 'per_event'];

/** The points of a client's round: a value says where it belongs. */
export const crashRound = (client: number, round: number) =>
  Array.from({ length: crashPoints }, (_, index) => {
    const n = round * crashPoints + index;
    return testPoint('acme', client, 1_790_000_000 + n, n, crashModes[client]);
  });

async function main(databaseUrl: string): Promise<void> {
  const logger = createLogger('fatal');
  const database = new Database(databaseUrl, logger);
  const options = { ...writerDefaults, batchPoints: 50, batchSeconds: 1, segmentRows: 2000 };
  const writer = new TelemetryWriter({ database, logger, clock: systemClock }, options, () => undefined);
  writer.start();
  const first = Number(process.env['KELLET_TEST_FIRST_ROUND']);
  await Promise.all(
    crashModes.map(async (_mode, client) => {
      for (let round = first; ; round += 1) {
        await writer.append(crashRound(client, round));
        // Written at once: what was acknowledged must be known however the process ends.
        writeSync(1, `${client} ${round}\n`);
      }
    }),
  );
}

const databaseUrl = process.env['KELLET_TEST_CRASH_DATABASE_URL'];
if (databaseUrl) await main(databaseUrl);
