// Reads the hot tail of dead writers again: points that are durable but whose effects were only in the memory of a
// process that was killed. They take the same path as new points; to take it twice changes nothing.
import type { Clock } from '../../platform/clock.ts';
import type { Database, Transaction } from '../../platform/database/database.ts';
import { readCursor, sizedPieces } from '../../platform/statements/cursor.ts';
import type { Liveness } from '../points/devices.ts';
import { isMadeHere } from '../points/payload.ts';
import type { MeasuredPoint, SnapshotStore } from './snapshot-store.ts';

/** Where the points of a tail go. */
export interface TailReaders {
  readonly database: Database;
  readonly clock: Clock;
  readonly snapshots: SnapshotStore;
  readonly liveness: Liveness;
}

const pieces = sizedPieces(5000, 'octet_length(payload)');

/** A generous bound on the difference between the writer's idea of the database's clock and that clock. */
const clockErrorMilliseconds = 3_600_000n;

interface TailRow {
  tenant_id: string;
  device_id: string;
  time: bigint;
  payload: string;
  received: bigint;
}

/** Reads one tail whose writer is fenced and whose segments are complete, and writes what follows from it. Returns false if there is none. An aborted signal leaves it to the next process. */
export function readNextTail(
  { database, clock, snapshots, liveness }: TailReaders,
  signal?: AbortSignal,
): Promise<boolean> {
  return database.maintenance(async (tx) => {
    const { rows: tails } = await tx.query<{ writer_id: string; since: bigint; now: number }>(
      `SELECT writer_id, since, extract(epoch FROM clock_timestamp())::float8 * 1000 AS now
       FROM telemetry_tails JOIN telemetry_writers USING (writer_id)
       WHERE epoch > 0 AND NOT EXISTS (SELECT FROM telemetry_segments AS s
         WHERE s.writer_id = telemetry_writers.writer_id AND state = 'open')
       LIMIT 1 FOR UPDATE OF telemetry_tails SKIP LOCKED`,
    );
    const tail = tails[0];
    if (!tail) return false;
    // Signs of life are in this process's time.
    const ahead = clock.now() - tail.now;
    for await (const rows of rowsSince(tx, tail.writer_id, tail.since)) {
      signal?.throwIfAborted();
      await snapshots.room();
      snapshots.accept(rows.map(toPoint), 0);
      const sent = rows.filter(({ payload }) => !isMadeHere(payload));
      const last = new Map(sent.map((row) => [`${row.tenant_id}/${row.device_id}`, row]));
      for (const { tenant_id, device_id, received } of last.values()) {
        liveness.seen(tenant_id, device_id, Math.min(Number(received) + ahead, clock.now()), 'telemetry');
      }
    }
    await Promise.all([snapshots.writeAll(signal), liveness.writeAll(signal)]);
    signal?.throwIfAborted();
    await tx.query('DELETE FROM telemetry_tails WHERE writer_id = $1', [tail.writer_id]);
    return true;
  });
}

/** Yields the rows of a writer that were received at or after a time, in order of arrival. */
async function* rowsSince(tx: Transaction, writerId: string, since: bigint): AsyncGenerator<TailRow[]> {
  const { rows: segments } = await tx.query<{ segment_id: bigint }>(
    `SELECT segment_id FROM telemetry_segments
     WHERE writer_id = $1 AND state <> 'cold' AND extract(epoch FROM sealed_at) * 1000 >= $2 ORDER BY segment_id`,
    [writerId, since - clockErrorMilliseconds],
  );
  // A scan that joins another one in the middle of the table would not be in order of arrival.
  await tx.query('SET LOCAL synchronize_seqscans = off');
  for (const { segment_id: id } of segments) {
    const text = `SELECT tenant_id, device_id, time, payload, received, ${pieces.column}
      FROM telemetry_segment_${id} WHERE received >= ${since}`;
    yield* readCursor<TailRow>(tx, { name: 'tail', text }, pieces.count);
  }
}

function toPoint({ tenant_id, device_id, time, payload }: TailRow): MeasuredPoint {
  const { numeric_values, string_values } = JSON.parse(payload) as {
    numeric_values: Record<string, number>;
    string_values: Record<string, string>;
  };
  return {
    tenantId: tenant_id,
    deviceId: device_id,
    time,
    payload,
    numericValues: numeric_values,
    stringValues: string_values,
  };
}

/** Keeps the tails of a process short: records up to when everything is written. */
export class TailKeeper {
  private readonly readers: TailReaders;
  /** Ids of the process's writers. */
  private readonly writerIds: readonly string[];
  /** Positions after the signs of life of all points received before a time, oldest first. */
  private readonly marks: { readonly receivedBefore: number; readonly position: number }[] = [];
  private signsWrittenBefore = 0;
  private since = 0;

  constructor(readers: TailReaders, writerIds: readonly string[]) {
    this.readers = readers;
    this.writerIds = writerIds;
  }

  /** Shortens the tails to what is not written. To be called every few seconds. */
  async shorten(): Promise<void> {
    const { database, snapshots, liveness } = this.readers;
    this.marks.push({ receivedBefore: snapshots.received + 1, position: liveness.position });
    while (this.marks[0] && this.marks[0].position <= liveness.writtenPosition) {
      this.signsWrittenBefore = this.marks.shift()!.receivedBefore;
    }
    const since = Math.min(snapshots.writtenBefore, this.signsWrittenBefore);
    if (since <= this.since) return;
    await database.system((tx) =>
      tx.query('UPDATE telemetry_tails SET since = $2 WHERE writer_id = ANY($1::uuid[])', [this.writerIds, since]),
    );
    this.since = since;
  }

  /**
   * Writes everything and ends the tails; for a process whose writer has stopped. Returns false if that takes longer than
   * `milliseconds`: the next process reads the rest of the tails, as after a crash.
   */
  async end(milliseconds: number): Promise<boolean> {
    const { database, snapshots, liveness } = this.readers;
    const signal = AbortSignal.timeout(milliseconds);
    const written = await Promise.all([snapshots.stop(signal), liveness.writeAll(signal)]);
    if (written.includes(false)) {
      await this.shorten();
      return false;
    }
    await database.system((tx) =>
      tx.query('DELETE FROM telemetry_tails WHERE writer_id = ANY($1::uuid[])', [this.writerIds]),
    );
    return true;
  }
}

/** Returns the addresses of the processes that take points, those of dead ones included until their tails are read. */
export async function writerAddresses(database: Database): Promise<string[]> {
  const { rows } = await database.systemRead((tx) =>
    tx.query<{ address: string }>(`SELECT DISTINCT address FROM telemetry_tails WHERE address <> ''`),
  );
  return rows.map((row) => row.address);
}
