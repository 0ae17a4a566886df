// Merges the runs of a date, so that a read of a device looks into few files however often points of that date arrive.
import type { Database } from '../../platform/database/database.ts';
import { sqlState } from '../../platform/errors.ts';
import { newId } from '../../platform/ids.ts';
import { retentionStarts } from '../../policies/tenant-reader.ts';
import {
  addFiles,
  beginAttempt,
  datesToCompact,
  type DueDate,
  holdAttempt,
  postponeCompaction,
  scheduleCompaction,
  supersedeFiles,
} from './cold-file-store.ts';
import type { ColdFile, ColdFiles } from './cold-files.ts';
import type { ColdRow } from './file-layout.ts';
import { type FileWriterParts, writeFiles } from './file-writer.ts';
import { manyRuns, runsToMerge } from './merge-decision.ts';

/** Dates that are merged together, unless they have many rows: each attempt has its costs. */
const datesAtOnce = 100;
const rowsTogether = 200_000;

type CompactionParts = Pick<FileWriterParts, 'store' | 'files' | 'checkpoint'>;

/** Merges runs of some dates. Returns false if none is due. */
export async function compactDates(database: Database, parts: CompactionParts): Promise<boolean> {
  const due = firstOf(await database.systemRead((tx) => datesToCompact(tx, datesAtOnce)));
  if (due.length === 0) return false;
  if (due.length > 1) {
    try {
      await compact(database, parts, due);
      return true;
    } catch {
      // One by one it turns out which of them fails, and how.
    }
  }
  for (const date of due) {
    try {
      await compact(database, parts, [date]);
    } catch (error) {
      // Other dates go on; what the database refuses is tried again.
      if (sqlState(error) === undefined)
        await database.system((tx) => postponeCompaction(tx, date.tenantId, date.date));
      throw error;
    }
  }
  return true;
}

/** Returns the first dates that are merged together. */
function firstOf(due: readonly DueDate[]): DueDate[] {
  let rows = 0;
  return due.filter((date, index) => (rows += rowsOf(date.files)) <= rowsTogether || index === 0);
}

const rowsOf = (files: readonly ColdFile[]): number => files.reduce((sum, { rows }) => sum + rows, 0);

/** Merges runs of dates in one attempt. */
async function compact(database: Database, parts: CompactionParts, due: readonly DueDate[]): Promise<void> {
  const merged = due.map(({ tenantId, files }) => ({ tenantId, runs: runsOf(files) }));
  const attemptId = newId();
  await database.system((tx) => beginAttempt(tx, attemptId));
  const retained = await database.systemRead((tx) => retentionStarts(tx));
  const written = await writeFiles({ ...parts, attemptId }, async (add) => {
    for (const { tenantId, runs } of merged) {
      const from = retained.get(tenantId) ?? 0n;
      for await (const rows of mergedRows(parts.files, runs)) {
        await add(
          tenantId,
          rows.filter(({ time }) => time >= from),
        );
      }
    }
  });
  await database.system(async (tx) => {
    await holdAttempt(tx, attemptId);
    await supersedeFiles(
      tx,
      merged.flatMap(({ runs }) => runs.flat().map(({ fileId }) => fileId)),
    );
    await addFiles(tx, written);
    await scheduleCompaction(tx, due);
  });
  await parts.checkpoint('committed');
}

/** Returns the runs of a date that are merged, given all its files. */
function runsOf(files: readonly ColdFile[]): (readonly ColdFile[])[] {
  const runs = Map.groupBy(files, ({ runId }) => runId);
  const sizes = [...runs].map(([runId, some]) => ({ runId, rows: rowsOf(some) }));
  return runsToMerge(sizes, runs.size < manyRuns).map(({ runId }) => runs.get(runId)!);
}

const rowsAtOnce = 2000;
const charactersAtOnce = 8 * 1024 * 1024;

/** Yields the rows of runs in order. */
async function* mergedRows(files: ColdFiles, runs: readonly (readonly ColdFile[])[]): AsyncGenerator<ColdRow[]> {
  const cursors = await Promise.all(runs.map((run) => RowCursor.open(files, run)));
  let open = cursors.filter((cursor) => cursor.row !== undefined);
  let rows: ColdRow[] = [];
  let characters = 0;
  while (open.length > 0) {
    let first = open[0]!;
    for (const cursor of open) if (compareRows(cursor.row!, first.row!) < 0) first = cursor;
    rows.push(first.row!);
    characters += first.row!.payload.length;
    if (rows.length === rowsAtOnce || characters > charactersAtOnce) {
      yield rows;
      rows = [];
      characters = 0;
    }
    if (first.isPieceRead) await first.readPiece();
    else first.next();
    if (first.row === undefined) open = open.filter((cursor) => cursor !== first);
  }
  if (rows.length > 0) yield rows;
}

/** A position in the rows of a run. */
class RowCursor {
  private readonly pieces: AsyncGenerator<ColdRow[]>;
  private piece: readonly ColdRow[] = [];
  private index = 0;

  private constructor(pieces: AsyncGenerator<ColdRow[]>) {
    this.pieces = pieces;
  }

  static async open(files: ColdFiles, run: readonly ColdFile[]): Promise<RowCursor> {
    const cursor = new RowCursor(
      (async function* () {
        for (const file of run) yield* files.allRows(file);
      })(),
    );
    await cursor.readPiece();
    return cursor;
  }

  get row(): ColdRow | undefined {
    return this.piece[this.index];
  }

  get isPieceRead(): boolean {
    return this.index + 1 >= this.piece.length;
  }

  next(): void {
    this.index += 1;
  }

  async readPiece(): Promise<void> {
    const next = await this.pieces.next();
    this.piece = next.done ? [] : next.value;
    this.index = 0;
  }
}

/** Compares rows in the order of files. */
function compareRows(a: ColdRow, b: ColdRow): number {
  if (a.deviceId !== b.deviceId) return a.deviceId < b.deviceId ? -1 : 1;
  if (a.time !== b.time) return a.time < b.time ? -1 : 1;
  return Buffer.compare(a.dataHash, b.dataHash) || (a.batchId < b.batchId ? -1 : 1);
}
