// Writes rows to files in staging: encodes them, puts them into the store, reads them back and compares.
import { setImmediate as nextTurn } from 'node:timers/promises';
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
  /** Called between steps; throws to stop. */
  readonly checkpoint: (step: Step) => void | Promise<void>;
}

/** Steps of an attempt, at each of which the process may be killed. */
export type Step = 'begun' | 'written' | 'verified' | 'recorded' | 'committed' | 'moved' | 'removed';

/** Writes the files of one attempt: a run for each tenant and date. */
export class FileWriter {
  /** Files that are in staging and were read back. */
  readonly written: NewFile[] = [];
  private readonly parts: FileWriterParts;
  private open: { readonly tenantId: string; readonly date: string; readonly runId: string } | undefined;
  private encoder = new FileEncoder();
  private hasRows = false;

  constructor(parts: FileWriterParts) {
    this.parts = parts;
  }

  /** Adds rows of a tenant. Rows must come ordered by tenant, date, device and time. */
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

  /** Completes the last file. */
  async end(): Promise<void> {
    await this.endFile();
  }

  private async endFile(): Promise<void> {
    if (!this.hasRows) return;
    const { content, rowDigest, ...facts } = this.encoder.end();
    const { store, attemptId, checkpoint } = this.parts;
    const file: NewFile = { fileId: newId(), attemptId, ...this.open!, ...facts };
    this.encoder = new FileEncoder();
    this.hasRows = false;
    await store.put(nameOf(file, 'staging'), content);
    await checkpoint('written');
    await this.verify(file, rowDigest);
    this.written.push(file);
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
