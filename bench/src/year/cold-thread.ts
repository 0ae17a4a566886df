// A thread that writes cold files as the code does, each where it belongs, and adds them to the catalogue.
import { mkdir, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { type MessagePort, parentPort, workerData } from 'node:worker_threads';
import pg from 'pg';
import { newId } from '../../../apiserver/src/platform/ids.ts';
import { FileEncoder } from '../../../apiserver/src/telemetry/cold/file-encoder.ts';
import { type ColdRow, dateOf, nameOf } from '../../../apiserver/src/telemetry/cold/file-layout.ts';
import { idText } from './batch-rows.ts';
import type { ColdDay } from './cold-day.ts';
import { copyRows, type Value } from './copy.ts';
import { payloadOf } from './made-block.ts';

/** With what the thread is started. */
export interface ColdThreadData {
  /** Days come here; the number of their points is sent back once they are written. A null ends the thread. */
  readonly port: MessagePort;
  readonly folder: string;
  readonly superuserUrl: string;
}

const filesAtOnce = 500;
const columns = [
  ...['file_id', 'tenant_id', 'date', 'run_id', 'attempt_id', 'state', 'place', 'rows', 'bytes', 'least_device'],
  ...['greatest_device', 'least_time', 'greatest_time', 'least_received', 'greatest_received', 'tail_offset'],
  'tail_sha256',
];

const nanoseconds = (seconds: number): bigint => BigInt(seconds) * 1_000_000_000n;

/** Yields the rows of a day in the order of a file: by device and time. */
function* rowsOf(day: ColdDay): Generator<ColdRow> {
  const order = Uint32Array.from({ length: day.batches }, (_, index) => index);
  order.sort((a, b) => day.devices[a]! - day.devices[b]! || day.firstSeconds[a]! - day.firstSeconds[b]!);
  const own = day.others.toSorted((a, b) =>
    a.deviceId === b.deviceId ? a.seconds - b.seconds : a.deviceId < b.deviceId ? -1 : 1,
  );
  const leaves = Buffer.from(day.leaves.buffer);
  let next = 0;
  for (const batch of order) {
    const deviceId = day.deviceIds[day.devices[batch]!]!;
    while (next < own.length && own[next]!.deviceId < deviceId) yield otherRow(own[next++]!);
    const batchId = idText(day.ids, batch * 16);
    const received = nanoseconds(day.received[batch]!);
    for (let leafIndex = 0; leafIndex < day.count; leafIndex += 1) {
      const at = (batch * day.count + leafIndex) * 32;
      yield {
        ...{ deviceId, batchId, leafIndex, received },
        time: nanoseconds(day.firstSeconds[batch]! + leafIndex),
        payload: payloadOf(day.firstNumbers[batch]! + leafIndex),
        dataHash: leaves.subarray(at, at + 32),
      };
    }
  }
  while (next < own.length) yield otherRow(own[next++]!);
}

const otherRow = ({ seconds, received, ...point }: ColdDay['others'][number]): ColdRow => ({
  ...point,
  ...{ time: nanoseconds(seconds), received: nanoseconds(received), leafIndex: 0 },
});

/** Writes a day to files of one run, and returns their rows of the catalogue. */
async function writeDay(folder: string, day: ColdDay, attemptId: string): Promise<Value[][]> {
  const [runId, { tenantId }] = [newId(), day];
  const files: Value[][] = [];
  let encoder = new FileEncoder();
  let date = '';
  const end = async () => {
    if (date === '') return;
    const { content, rowDigest: _, ...facts } = encoder.end();
    const fileId = newId();
    const path = join(folder, nameOf({ fileId, tenantId, date, attemptId }, 'own'));
    await mkdir(dirname(path), { recursive: true });
    await writeFile(path, content);
    files.push([
      ...[fileId, tenantId, date, runId, attemptId, 'live', 'own', facts.rows, facts.bytes, facts.leastDevice],
      ...[facts.greatestDevice, facts.leastTime, facts.greatestTime, facts.leastReceived, facts.greatestReceived],
      ...[facts.tailOffset, facts.tailSha256],
    ]);
    encoder = new FileEncoder();
  };
  for (const row of rowsOf(day)) {
    if (encoder.isFull) await end();
    date ||= dateOf(row.time);
    encoder.add(row);
  }
  await end();
  return files;
}

const { port, folder, superuserUrl } = workerData as ColdThreadData;
const client = new pg.Client({ connectionString: superuserUrl });
await client.connect();
await client.query('SET session_replication_role = replica; SET synchronous_commit = off');
const attemptId = newId();
const files: Value[][] = [];
/** Days are written one after another. */
let writing: Promise<unknown> = Promise.resolve();

async function write(day: ColdDay | null): Promise<void> {
  if (day) files.push(...(await writeDay(folder, day, attemptId)));
  if (!day || files.length >= filesAtOnce) await copyRows(client, 'cold_files', columns, files.splice(0));
  if (day) port.postMessage(day.batches * day.count + day.others.length);
  else {
    await client.end();
    port.close();
    parentPort!.postMessage('done');
  }
}

port.on('message', (day: ColdDay | null) => {
  writing = writing.then(() => write(day));
});
