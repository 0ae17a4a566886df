// The work of cold storage, done by one process at a time: turns segments cold, merges runs, moves files to where they belong and
// removes what is no longer named. Each step can be cut short at any moment; the next process continues from the catalogue.
import { repeatWhileFull } from '../../platform/background/repeat-while-full.ts';
import { sleep } from '../../platform/clock.ts';
import { forEachConcurrently } from '../../platform/concurrency/concurrent-work.ts';
import { coldLock } from '../../platform/database/advisory-locks.ts';
import type { Database, Transaction } from '../../platform/database/database.ts';
import { alone, type Wait, whenAlone } from '../../platform/database/session-lock.ts';
import { newId } from '../../platform/ids.ts';
import { MissingObjectError, type ObjectStore } from '../../platform/object-store/object-store.ts';
import type { Logger } from '../../platform/observability/logger.ts';
import { retentionStarts } from '../../policies/tenant-reader.ts';
import { recordBeforeCold } from '../write/open-batch-leaves.ts';
import {
  type ColdCandidate,
  coldCandidates,
  type ColdLimits,
  coldTables,
  dropColdTables,
  markCold,
  rowsOfSegments,
  type SegmentRow,
} from '../write/segments.ts';
import {
  addFiles,
  beginAttempt,
  endAttempt,
  filesToRemove,
  finishedAttempts,
  forgetAttempt,
  forgetFiles,
  hasExpiredFiles,
  holdAttempt,
  isAnyDateToCompact,
  type MisplacedFile,
  misplacedFiles,
  type NewFile,
  notePlace,
  scheduleCompaction,
} from './cold-file-store.ts';
import type { ColdFiles } from './cold-files.ts';
import { expireColdFiles } from './cold-retention.ts';
import { compactDates } from './compaction.ts';
import { type ColdRow, type NamedFile, nameOf, stagingOf, tenantFolders } from './file-layout.ts';
import { type Step, writeFiles } from './file-writer.ts';

/** What the work needs. */
export interface ColdWorkParts extends ColdLimits {
  readonly database: Database;
  readonly logger: Logger;
  readonly store: ObjectStore;
  readonly files: ColdFiles;
  /** Called with what was turned. */
  readonly turned?: (points: number, bytes: number) => void;
  /** Called between steps; for tests. */
  readonly checkpoint?: (step: Step) => void | Promise<void>;
}

/** Rows that are turned at once, unless a single segment has more. */
const rowsAtOnce = 2_000_000;
const filesAtOnce = 500;
/** Files that are moved or removed at a time. */
const storeCallsAtOnce = 8;
const dropAttempts = 40;
const longestWaitMilliseconds = 600_000;

/** Does all work that is due. Returns false if another process is doing it. */
export async function doColdWork(parts: ColdWorkParts, signal: AbortSignal): Promise<boolean> {
  const checkpoint = async (step: Step): Promise<void> => {
    await parts.checkpoint?.(step);
    if (signal.aborted) throw new Error('cold storage was stopped');
  };
  const work = new ColdWork(parts, checkpoint, signal);
  // The lock costs a connection of its own.
  if (!(await isDue(parts))) return true;
  return alone(parts.database, lock, async () => {
    await expireColdFiles(parts.database, signal);
    // Segments first: thousands of dates to merge, or of files to remove, do not keep the points of others hot.
    for (let isWorking = true; isWorking && !signal.aborted;) {
      const isTidy = await work.tidy();
      isWorking =
        (await work.turnSegments()) || (await compactDates(parts.database, { ...parts, checkpoint })) || !isTidy;
    }
  });
}

/** Reports whether any work is due, at the cost of a few reads in the pool. */
async function isDue({ database, ...limits }: ColdWorkParts): Promise<boolean> {
  const isFileDue = await database.systemRead(async (tx) => {
    const found = await Promise.all([
      misplacedFiles(tx, 1),
      finishedAttempts(tx),
      filesToRemove(tx, 1),
      isAnyDateToCompact(tx),
      hasExpiredFiles(tx),
      coldTables(tx),
    ]);
    return found.some((due) => (typeof due === 'boolean' ? due : due.length > 0));
  });
  return isFileDue || (await database.maintenance((tx) => coldCandidates(tx, limits))).length > 0;
}

/** Another process works on cold storage for longer than others wait for it. */
export class ColdWorkError extends Error {}

/**
 * Runs work while no segment turns cold and no cold file is moved or removed. Calls `waiting` about once a second while
 * another process works on cold storage; throws ColdWorkError if that takes ten minutes, and another error if this process
 * lost the lock meanwhile.
 */
export function withoutColdWork<T>(database: Database, waiting: () => void, work: () => Promise<T>): Promise<T> {
  const deadline = Date.now() + longestWaitMilliseconds;
  const wait = (): void => {
    if (Date.now() > deadline) throw new ColdWorkError('another process has been turning points cold for ten minutes');
    waiting();
  };
  return whenAlone(database, lock, work, { waiting: wait, mustHold: true });
}

/**
 * Removes all files of a tenant, then runs `work`, which deletes its points and its rows of the catalogue: meanwhile nothing turns
 * cold. Waits while another process works on cold storage. Without a store only `work` runs.
 */
export function removeTenantFiles(
  parts: Omit<ColdWorkParts, 'store' | 'hotSeconds'> & { readonly store: ObjectStore | undefined },
  tenantId: string,
  work: () => Promise<void>,
  wait: Wait,
): Promise<void> {
  const { store } = parts;
  const removeAll = async (): Promise<void> => {
    if (store) {
      // After tidying, the files of the tenant are only in these folders.
      const coldWork = new ColdWork({ ...parts, store, hotSeconds: 0 }, () => Promise.resolve(), wait.signal);
      await coldWork.dropTables();
      await coldWork.tidy();
      for (const folder of tenantFolders(tenantId)) await store.remove(folder);
    }
    await work();
  };
  return whenAlone(parts.database, lock, removeAll, wait);
}

const lock = { key: coldLock, name: 'cold-storage' };

class ColdWork {
  private readonly parts: ColdWorkParts;
  private readonly checkpoint: (step: Step) => Promise<void>;
  private readonly signal: AbortSignal | undefined;

  constructor(parts: ColdWorkParts, checkpoint: (step: Step) => Promise<void>, signal?: AbortSignal) {
    this.parts = parts;
    this.checkpoint = checkpoint;
    this.signal = signal;
  }

  /** Turns the oldest segments that are due. Returns false if there are none. */
  async turnSegments(): Promise<boolean> {
    const { database, logger } = this.parts;
    const candidates = await database.maintenance((tx) => coldCandidates(tx, this.parts));
    const segments = firstOf(candidates);
    if (segments.length === 0) return false;
    const attemptId = newId();
    await database.system((tx) => beginAttempt(tx, attemptId));
    await this.checkpoint('begun');
    const writerParts = { ...this.parts, attemptId, checkpoint: this.checkpoint };
    const retained = await database.systemRead((tx) => retentionStarts(tx));
    const written = await database.maintenance(async (tx) => {
      // A slow store may take longer than a transaction usually idles.
      await tx.query('SET LOCAL idle_in_transaction_session_timeout = 0');
      return writeFiles(writerParts, async (add) => {
        for await (const rows of rowsOfSegments(tx, segments)) {
          for (let first = 0; first < rows.length;) {
            const { tenant_id: tenantId } = rows[first]!;
            let end = first + 1;
            while (end < rows.length && rows[end]!.tenant_id === tenantId) end += 1;
            const from = retained.get(tenantId) ?? 0n;
            const kept = rows.slice(first, end).filter(({ time }) => time >= from);
            await add(tenantId, kept.map(toColdRow));
            first = end;
          }
        }
      });
    });
    // Nothing is written to complete segments any more, so that no other batch can get points in them afterwards.
    for (const { segmentId } of segments) await recordBeforeCold(database, segmentId);
    await this.checkpoint('recorded');
    await this.commitTurn(attemptId, segments, written);
    await dropColdTables(database);
    const points = written.reduce((sum, { rows }) => sum + rows, 0);
    const bytes = written.reduce((sum, file) => sum + file.bytes, 0);
    this.parts.turned?.(points, bytes);
    logger.info({ segments: segments.length, files: written.length, points, bytes }, 'segments turned cold');
    await this.checkpoint('committed');
    return true;
  }

  /** Names the files instead of the segments in one transaction. */
  private commitTurn(attemptId: string, segments: readonly ColdCandidate[], written: readonly NewFile[]) {
    return this.parts.database.maintenance(async (tx) => {
      await holdAttempt(tx, attemptId);
      await addFiles(tx, written);
      await scheduleCompaction(tx, written);
      await markCold(
        tx,
        segments.map(({ segmentId }) => segmentId),
      );
    });
  }

  /** Waits until the tables of all cold segments are dropped. */
  async dropTables(): Promise<void> {
    for (let attempt = 1; !(await dropColdTables(this.parts.database)); attempt += 1) {
      if (attempt === dropAttempts) throw new Error('a reader holds a segment that has turned cold');
      await sleep(500, this.signal);
      this.signal?.throwIfAborted();
    }
  }

  /**
   * Drops tables of cold segments, moves files to where they belong, and removes what attempts have left, and some of
   * the files that were superseded an hour ago. Returns false if there may be more of these.
   */
  async tidy(): Promise<boolean> {
    const { database, store } = this.parts;
    await dropColdTables(database);
    await repeatWhileFull(filesAtOnce, this.signal, (limit) => this.moveFiles(limit));
    for (const attemptId of await database.systemRead((tx) => finishedAttempts(tx))) {
      await database.system((tx) => endAttempt(tx, attemptId));
      await store.remove(stagingOf(attemptId));
      await database.system((tx) => forgetAttempt(tx, attemptId));
    }
    const files = await database.systemRead((tx) => filesToRemove(tx, filesAtOnce));
    await this.forEach(files, 'removed', {
      change: (file) => store.remove(nameOf(file, 'superseded')),
      note: (tx, fileIds) => forgetFiles(tx, fileIds),
    });
    return files.length < filesAtOnce;
  }

  /** Moves up to `limit` files. Returns their number. */
  private async moveFiles(limit: number): Promise<number> {
    const { database, store, logger } = this.parts;
    const files = await database.systemRead((tx) => misplacedFiles(tx, limit));
    // Superseded files leave before those that take their place come.
    for (const [from, to] of [
      ['own', 'superseded'],
      ['staging', 'own'],
    ] as const) {
      const move = async (file: MisplacedFile): Promise<void> => {
        try {
          await store.move(nameOf(file, from), nameOf(file, to));
        } catch (error) {
          if (!(error instanceof MissingObjectError)) throw error;
          logger.error({ err: error, file: nameOf(file, from) }, 'a cold file is missing');
          // Not retried: reads that need the file report that it is missing.
        }
      };
      const some = files.filter(({ place }) => place === from);
      await this.forEach(some, 'moved', { change: move, note: (tx, fileIds) => notePlace(tx, fileIds, to) });
    }
    return files.length;
  }

  /** Changes files in the store, several at a time, and then notes all that were changed, also if one of them fails. */
  private async forEach<File extends NamedFile>(
    files: readonly File[],
    step: Step,
    work: { change: (file: File) => Promise<void>; note: (tx: Transaction, fileIds: string[]) => Promise<void> },
  ): Promise<void> {
    const changed: string[] = [];
    try {
      await forEachConcurrently(files, storeCallsAtOnce, async (file) => {
        await work.change(file);
        changed.push(file.fileId);
        await this.checkpoint(step);
      });
    } finally {
      if (changed.length > 0) await this.parts.database.system((tx) => work.note(tx, changed));
    }
  }
}

/** Returns the first segments that are turned together. */
function firstOf(candidates: readonly ColdCandidate[]): ColdCandidate[] {
  let rows = 0;
  return candidates.filter((candidate, index) => (rows += candidate.rows) <= rowsAtOnce || index === 0);
}

const toColdRow = (row: SegmentRow): ColdRow => ({
  deviceId: row.device_id,
  time: row.time,
  payload: row.payload,
  dataHash: row.data_hash,
  batchId: row.batch_id,
  leafIndex: row.leaf_index,
  received: row.received,
});
