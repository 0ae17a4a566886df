// Writes rows to files in staging: encodes them, puts them into the store, reads them back and compares.
import { setImmediate as nextTurn } from 'node:timers/promises';
import { ConcurrentWork } from '../../platform/concurrency/concurrent-work.ts';
import { newId } from '../../platform/ids.ts';
import type { ObjectStore } from '../../platform/object-store/object-store.ts';
import type { NewFile } from './cold-file-store.ts';
import { type ColdFiles, DamagedFileError } from './cold-files.ts';
import { FileEncoder, RowDigest } from './file-encoder.ts';
import { type ColdRow, dateOf, nameOf } from './file-layout.ts';

/** Where an attempt writes. */
export interface FileWriterParts {
  readonly store: ObjectStore;
  readonly files: ColdFiles;
  readonly attemptId: string;
  /** Called between steps; throws to stop. Files that are written at a time pass their steps independently. */
  readonly checkpoint: (step: Step) => void | Promise<void>;
}

/** Steps of an attempt, at each of which the process may be killed. */
export type Step = 'begun' | 'written' | 'verified' | 'recorded' | 'committed' | 'moved' | 'removed';

/** Adds rows of a tenant. Rows must come ordered by tenant, date, device and time. */
export type AddRows = (tenantId: string, rows: readonly ColdRow[]) => Promise<void>;

/**
 * Files that are put and read back at a time: a store takes its time for each, however small, and points may be of thousands of dates.
 * After a file of more bytes than that, none begins until it is stored.
 */
const limits = { pieces: 8, bytes: 16 * 1024 * 1024 };

/**
 * Writes the files of one attempt, a run for each tenant and date, with the rows that `give` adds. Returns them in the order of their
 * rows: they are in staging and were read back. When it throws, nothing is being written any more.
 */
export async function writeFiles(
  parts: FileWriterParts,
  give: (add: AddRows) => Promise<void>,
): Promise<readonly NewFile[]> {
  const writer = new FileWriter(parts);
  try {
    await give((tenantId, rows) => writer.add(tenantId, rows));
    return await writer.end();
  } finally {
    await writer.settle();
  }
}

class FileWriter {
  private readonly parts: FileWriterParts;
  private readonly files: NewFile[] = [];
  private readonly storing = new ConcurrentWork(limits);
  private open: { readonly tenantId: string; readonly date: string; readonly runId: string } | undefined;
  private encoder = new FileEncoder();
  private hasRows = false;

  constructor(parts: FileWriterParts) {
    this.parts = parts;
  }

  async add(tenantId: string, rows: readonly ColdRow[]): Promise<void> {
    for (const row of rows) {
      const date = dateOf(row.time);
      if (this.open?.tenantId !== tenantId || this.open.date !== date) {
        await this.endFile();
        this.open = { tenantId, date, runId: newId() };
      } else if (this.encoder.isFull) await this.endFile();
      this.encoder.add(row);
      this.hasRows = true;
    }
    // Requests are served in between.
    await nextTurn();
  }

  /** Completes the last file and returns all. */
  async end(): Promise<readonly NewFile[]> {
    await this.endFile();
    await this.storing.end();
    return this.files;
  }

  /** Returns once no file is being written. */
  settle(): Promise<void> {
    return this.storing.settle();
  }

  private async endFile(): Promise<void> {
    if (!this.hasRows) return;
    const { content, rowDigest, ...facts } = this.encoder.end();
    const file: NewFile = { fileId: newId(), attemptId: this.parts.attemptId, ...this.open!, ...facts };
    this.encoder = new FileEncoder();
    this.hasRows = false;
    this.files.push(file);
    await this.storing.begin(() => this.store(file, content, rowDigest), content.length);
  }

  private async store(file: NewFile, content: Buffer, rowDigest: string): Promise<void> {
    const { store, checkpoint } = this.parts;
    await store.put(nameOf(file, 'staging'), content);
    await checkpoint('written');
    await this.verify(file, rowDigest);
    await checkpoint('verified');
  }

  /** Reads a file back, computes the hash of each point again, and compares all rows with those written. */
  private async verify(file: NewFile, rowDigest: string): Promise<void> {
    const digest = new RowDigest();
    for await (const rows of this.parts.files.allRows({ ...file, place: 'staging' })) {
      for (const row of rows) digest.add(row);
      await nextTurn();
    }
    if (digest.end() !== rowDigest)
      throw new DamagedFileError(`${nameOf(file, 'staging')} has other rows than written`);
  }
}
