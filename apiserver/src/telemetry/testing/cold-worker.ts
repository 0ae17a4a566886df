// A process that does the work of cold storage and kills itself at a step, for tests.
import { Database } from '../../platform/database/database.ts';
import { openStore } from '../../platform/object-store/open-store.ts';
import { createLogger } from '../../platform/observability/logger.ts';
import { createMetrics } from '../../platform/observability/metrics.ts';
import { ColdFiles } from '../cold/cold-files.ts';
import { doColdWork } from '../cold/cold-work.ts';

/** Works until the step with this number, counted from 1, and is killed there. */
async function main(databaseUrl: string, coldUrl: string, killAt: number): Promise<void> {
  const logger = createLogger('fatal');
  const database = new Database(databaseUrl, logger, { maximumConnections: 4 });
  const store = openStore(coldUrl, { endpoint: '', region: '', accessKey: '', secretKey: '' });
  const files = new ColdFiles(store, { logger, metrics: createMetrics() });
  let step = 0;
  const checkpoint = () => {
    step += 1;
    if (step === killAt) process.kill(process.pid, 'SIGKILL');
  };
  const signal = new AbortController().signal;
  // The session of a killed process may hold the lock for a moment.
  while (!(await doColdWork({ database, logger, store, files, hotSeconds: 0, checkpoint }, signal)));
  await database.close();
}

const { KELLET_TEST_COLD_DATABASE_URL: url, KELLET_COLD_URL: cold, KELLET_TEST_KILL_AT: at } = process.env;
if (url && cold) await main(url, cold, Number(at));
