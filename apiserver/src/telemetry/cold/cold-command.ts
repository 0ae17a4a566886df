// The command kellet-apiserver cold: turns points cold now.
import type { Config } from '../../config/config.ts';
import { sleep } from '../../platform/clock.ts';
import { sealChannel } from '../../platform/database/channels.ts';
import type { Database } from '../../platform/database/database.ts';
import type { Logger } from '../../platform/observability/logger.ts';
import { createMetrics } from '../../platform/observability/metrics.ts';
import { eachSegment } from '../write/each-segment.ts';
import { countHotSegmentsOpenedBefore, databaseTime, indexNextSegment } from '../write/segments.ts';
import { takeOverDeadWriters } from '../write/writer-closing.ts';
import { openColdStorage } from './cold-storage.ts';
import { doColdWork } from './cold-work.ts';

export const coldUsage = `usage: kellet-apiserver cold run [--all]

  Converts the points that are due to Parquet files in KELLET_COLD_URL; with --all, all points, whatever their age.
  Exit code: 0 done, 1 failed, or a writer held a segment for three minutes, 2 bad usage.`;

/** How long to wait for writers to complete their segments, and for another process that is at work. */
const patienceMilliseconds = 180_000;
const pauseMilliseconds = 500;

/** Dependencies of the command. */
export interface ColdCommandParts {
  readonly config: Config;
  readonly database: Database;
  readonly logger: Logger;
  readonly write: (line: string) => void;
}

/** Runs `kellet-apiserver cold …` and returns the exit code: 0 when done, 1 if segments are left, 2 for bad usage. */
export async function runColdCommand(args: readonly string[], parts: ColdCommandParts): Promise<number> {
  const [verb, ...rest] = args;
  const isAll = rest.length === 1 && rest[0] === '--all';
  if (verb !== 'run' || (rest.length > 0 && !isAll)) {
    parts.write(coldUsage);
    return 2;
  }
  const { config, database, logger, write } = parts;
  const { store, files } = openColdStorage({ config, logger, metrics: createMetrics() });
  if (!store) {
    write('KELLET_COLD_URL is not set: there is no cold storage');
    return 1;
  }
  let points = 0;
  let bytes = 0;
  const turned = (morePoints: number, moreBytes: number): void => {
    points += morePoints;
    bytes += moreBytes;
  };
  const hotSeconds = isAll ? 0 : config.hotHours * 3600;
  const signal = new AbortController().signal;
  try {
    const started = await database.systemRead((tx) => databaseTime(tx));
    for (const deadline = Date.now() + patienceMilliseconds; ;) {
      if (isAll) await completeSegments(database, logger);
      const isMine = await doColdWork({ database, logger, store, files, hotSeconds, turned }, signal);
      const left = isAll ? await countHotSegmentsOpenedBefore(database, started) : 0;
      if (isMine && left === 0) break;
      if (Date.now() > deadline) {
        write(isMine ? `${left} segments are still in use` : 'another process is turning points cold');
        return 1;
      }
      await sleep(pauseMilliseconds);
    }
    write(`${points} points turned cold, ${bytes} bytes`);
    return 0;
  } finally {
    store.close();
  }
}

/** Asks the writers to complete their segments, takes over dead ones, and indexes what is complete. */
async function completeSegments(database: Database, logger: Logger): Promise<void> {
  await database.system((tx) => tx.query(`NOTIFY ${sealChannel}`));
  await takeOverDeadWriters(database, logger);
  await sleep(pauseMilliseconds);
  await eachSegment((after) => indexNextSegment(database, after), logger);
}
