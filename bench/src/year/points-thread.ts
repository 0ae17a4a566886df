// A thread that makes the points of a populated installation and stores them in one transaction.
import { type MessagePort, parentPort, workerData } from 'node:worker_threads';
import pg from 'pg';
import { disableIndexes } from './bulk-load.ts';
import { PointFilling, pointTables, unorderedIndex } from './points.ts';
import type { Sizes } from './sizes.ts';

/** With what the thread is started. */
export interface PointsThreadData {
  /** Takes cold points, see cold-thread.ts. */
  readonly port: MessagePort;
  readonly superuserUrl: string;
  /** Whoever owns the tables. */
  readonly owner: string;
  readonly sizes: Sizes;
}

/** Maximum points that wait to be written to cold files. */
const mostWaiting = 1_000_000;

const { port, superuserUrl, owner, sizes } = workerData as PointsThreadData;
const [client, reader] = [1, 2].map(() => new pg.Client({ connectionString: superuserUrl })) as [pg.Client, pg.Client];
await client.connect();
await reader.connect();
await client.query('SET session_replication_role = replica');

let waiting = 0;
let wake = (): void => undefined;
port.on('message', (written: number) => {
  waiting -= written;
  wake();
});

await client.query('BEGIN');
await client.query(`TRUNCATE ${pointTables.join(', ')} CASCADE`);
await disableIndexes(client, [...pointTables.filter((table) => table !== 'anchor_batches'), unorderedIndex]);
await new PointFilling({
  ...{ client, reader, owner, sizes },
  storeCold: async (day, buffers) => {
    waiting += day.batches * day.count + day.others.length;
    port.postMessage(day, buffers);
    while (waiting > mostWaiting) await new Promise<void>((resolve) => (wake = resolve));
  },
  progress: (done) => parentPort!.postMessage(done),
}).run();
await client.query('COMMIT');
port.postMessage(null);
await client.end();
await reader.end();
parentPort!.postMessage('done');
