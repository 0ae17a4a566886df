// Merges the runs of a date, so that a read of a device looks into few files however often points of that date arrive.
import type { Database } from '../../platform/database/database.ts';
import { sqlState } from '../../platform/errors.ts';
import { newId } from '../../platform/ids.ts';
import { retentionStart } from '../../policies/tenant-reader.ts';
import {
  addFiles,
  beginAttempt,
  holdAttempt,
  nextDateToCompact,
  postponeCompaction,
  scheduleCompaction,
  supersedeFiles,
} from './cold-file-store.ts';
import type { ColdFile, ColdFiles } from './cold-files.ts';
import type { ColdRow } from './file-layout.ts';
import { FileWriter, type FileWriterParts } from './file-writer.ts';
import { manyRuns, runsToMerge } from './merge-decision.ts';

/** Merges runs of one date. Returns false if no date is due. */
export async function compactNextDate(
  database: Database,
  parts: Pick<FileWriterParts, 'store' | 'files' | 'checkpoint'>,
): Promise<boolean> {
  const due = await database.systemRead((tx) => nextDateToCompact(tx));
  if (!due) return false;
  const { tenantId, date } = due;
  const runs = new Map<string, ColdFile[]>();
  for (const file of due.files) runs.set(file.runId, [...(runs.get(file.runId) ?? []), file]);
  const sizes = [...runs].map(([runId, files]) => ({ runId, rows: files.reduce((sum, { rows }) => sum + rows, 0) }));
  const merged = runsToMerge(sizes, runs.size < manyRuns).map(({ runId }) => runs.get(runId)!);
  const attemptId = newId();
  try {
    await database.system((tx) => beginAttempt(tx, attemptId));
    const writer = new FileWriter({ ...parts, attemptId });
    const from = await database.systemRead((tx) => retentionStart(tx, tenantId));
    for await (const rows of mergedRows(parts.files, merged)) {
      await writer.add(
        tenantId,
        rows.filter(({ time }) => time >= from),
      );
    }
    await writer.end();
    await database.system(async (tx) => {
      await holdAttempt(tx, attemptId);
      await supersedeFiles(
        tx,
        merged.flat().map(({ fileId }) => fileId),
      );
      await addFiles(tx, writer.written);
      await scheduleCompaction(tx, [due]);
    });
    await parts.checkpoint('committed');
  } catch (error) {
    // Other dates go on; what the database refuses is tried again.
    if (sqlState(error) === undefined) await database.system((tx) => postponeCompaction(tx, tenantId, date));
    throw error;
  }
  return true;
}

const rowsAtOnce = 2000;

/** Yields the rows of runs in order. */
async function* mergedRows(files: ColdFiles, runs: readonly (readonly ColdFile[])[]): AsyncGenerator<ColdRow[]> {
  const cursors = await Promise.all(runs.map((run) => RowCursor.open(files, run)));
  let open = cursors.filter((cursor) => cursor.row !== undefined);
  let rows: ColdRow[] = [];
  while (open.length > 0) {
    let first = open[0]!;
    for (const cursor of open) if (compareRows(cursor.row!, first.row!) < 0) first = cursor;
    rows.push(first.row!);
    if (rows.length === rowsAtOnce) {
      yield rows;
      rows = [];
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
