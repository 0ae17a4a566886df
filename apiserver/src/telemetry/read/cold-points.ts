// Reads points of a device from cold files in order of time, from all files of a date as one.
import { setImmediate } from 'node:timers/promises';
import type { Database } from '../../platform/database/database.ts';
import { type ColdRange, filesByArrival, filesOfRange } from '../cold/cold-file-store.ts';
import type { ColdFile, ColdFiles, ColdRange as ColdPieces } from '../cold/cold-files.ts';
import type { ColdRow } from '../cold/file-layout.ts';

/** Dates whose files are looked up at once. */
const datesAtOnce = 16;

/** Rows of all runs of a date that are read at once: they are decoded without a pause. */
const greatestPiece = 5000;
const leastPiece = 100;

/** How to read. */
export interface ColdRead {
  readonly descending: boolean;
  /** Rows that are wanted, of which some are read at once. */
  readonly rows: number;
  /** When to stop waiting for a turn, on the clock of `performance`. */
  readonly deadline: number;
}

/** Returns how points are ordered: by time, then by hash. */
export function comparePoints(
  a: { readonly time: bigint; readonly dataHash: Uint8Array },
  b: { readonly time: bigint; readonly dataHash: Uint8Array },
): number {
  if (a.time !== b.time) return a.time < b.time ? -1 : 1;
  return Buffer.compare(a.dataHash, b.dataHash);
}

/**
 * Yields the rows of a range in order, each as often as it is stored. Takes a turn for the files of each date. Throws
 * SlowReadError if none comes in time.
 */
export async function* coldPoints(
  database: Database,
  files: ColdFiles,
  range: ColdRange,
  { descending, rows, deadline }: ColdRead,
): AsyncGenerator<ColdRow> {
  let { from, to } = range;
  while (from < to) {
    const found = await database.read(range.tenantId, (tx) =>
      filesOfRange(tx, { ...range, from, to }, descending, datesAtOnce),
    );
    if (found.length === 0) return;
    const dates = [...new Set(found.map(({ date }) => date))];
    for (const date of dates) {
      const ofDate = found.filter((file) => file.date === date);
      const runs = [...Map.groupBy(ofDate, ({ runId }) => runId).values()];
      const most = Math.min(rows, Math.ceil(greatestPiece / runs.length));
      const pieces = { deviceId: range.deviceId, from, to, descending, pieceRows: Math.max(most, leastPiece) };
      const leave = await files.turns.acquire(range.tenantId, { milliseconds: untilDeadline(deadline) });
      try {
        yield* merged(
          runs.map((run) => rowsOfRun(files, run, pieces)),
          descending,
        );
      } finally {
        leave();
      }
    }
    if (dates.length < datesAtOnce) return;
    // What comes after the last of these dates, in either direction.
    const last = BigInt(Date.parse(dates.at(-1)!)) * 1_000_000n;
    if (descending) to = last;
    else from = last + 86_400_000_000_000n;
  }
}

/** Yields the rows of a run, whose files are given in order: there may be many of them, each with megabytes to read at once. */
async function* rowsOfRun(files: ColdFiles, run: readonly ColdFile[], pieces: ColdPieces): AsyncGenerator<ColdRow[]> {
  for (const file of run) {
    for await (const rows of files.rows(file, pieces)) {
      yield rows;
      // Others have their turn between two pieces.
      await setImmediate();
    }
  }
}

const untilDeadline = (deadline: number): number => Math.max(0, deadline - performance.now());

/** Merges rows that come in order. */
async function* merged(sources: AsyncGenerator<ColdRow[]>[], descending: boolean): AsyncGenerator<ColdRow> {
  const heads = await Promise.all(
    sources.map(async (source) => ({ source, piece: (await nextPiece(source)) ?? [], index: 0 })),
  );
  let open = heads.filter(({ piece }) => piece.length > 0);
  while (open.length > 0) {
    let first = open[0]!;
    for (const head of open) {
      const order = comparePoints(head.piece[head.index]!, first.piece[first.index]!);
      if (descending ? order > 0 : order < 0) first = head;
    }
    yield first.piece[first.index]!;
    first.index += 1;
    if (first.index < first.piece.length) continue;
    first.piece = (await nextPiece(first.source)) ?? [];
    first.index = 0;
    if (first.piece.length === 0) open = open.filter((head) => head !== first);
  }
}

async function nextPiece(source: AsyncGenerator<ColdRow[]>): Promise<ColdRow[] | undefined> {
  for (;;) {
    const next = await source.next();
    if (next.done) return undefined;
    if (next.value.length > 0) return next.value;
  }
}

/** A point to find: its hash, and when it arrived. Times are nanoseconds since 1970. */
export interface SoughtPoint extends ColdRange {
  readonly batchId: string;
  readonly dataHash: Uint8Array;
  /** Later than the point's own time. */
  readonly before: bigint;
}

/** How long a search waits for its turn at each file. */
const turnMilliseconds = 5000;

/** Returns a point by its hash and batch, or undefined. Throws SlowReadError if its turn does not come in time. */
export async function findColdPoint(
  database: Database,
  files: ColdFiles,
  { batchId, dataHash, before, ...arrival }: SoughtPoint,
): Promise<ColdRow | undefined> {
  const found = await database.read(arrival.tenantId, (tx) => filesByArrival(tx, arrival));
  for (const file of found) {
    const leave = await files.turns.acquire(arrival.tenantId, { milliseconds: turnMilliseconds });
    try {
      const row = await findInFile(files, file, arrival.deviceId, before, (candidate) => {
        return candidate.batchId === batchId && Buffer.compare(candidate.dataHash, dataHash) === 0;
      });
      if (row) return row;
    } finally {
      leave();
    }
  }
  return undefined;
}

async function findInFile(
  files: ColdFiles,
  file: ColdFile,
  deviceId: string,
  before: bigint,
  isSought: (row: ColdRow) => boolean,
): Promise<ColdRow | undefined> {
  // Newest first: most points are anchored soon after their time.
  const range = { deviceId, from: 0n, to: before, descending: true, pieceRows: greatestPiece };
  for await (const rows of files.rows(file, range)) {
    const row = rows.find(isSought);
    if (row) return row;
    // Others have their turn between two pieces.
    await setImmediate();
  }
  return undefined;
}
