// Writes the bytes of staged artifacts: half a megabyte a transaction into the database, or an object of 2 MiB at a time into
// another store.
import { randomBytes } from 'node:crypto';
import { FairSlots } from '../../../platform/concurrency/fair-slots.ts';
import type { Database } from '../../../platform/database/database.ts';
import { KelletError, sqlState, unavailable } from '../../../platform/errors.ts';
import { type ObjectStore, StoreFullError } from '../../../platform/object-store/object-store.ts';
import {
  appendBytes,
  type ArtifactPlace,
  chunkBytes,
  findPart,
  inDatabase,
  partBytes,
  placeOf,
  recordPart,
} from './artifact-store.ts';
import type { ArtifactStores } from './artifact-stores.ts';

/** Bytes written by one transaction, and held in memory by a transfer. */
const bytesPerWrite = 8 * chunkBytes;

/** Maximum time until received bytes are written, so that a slow transfer is not mistaken for an abandoned one. */
const writeMilliseconds = 20_000;

/** PostgreSQL's SQLSTATE for a full disk. */
const diskFull = '53100';

/** Returns slots for writes, so that artifacts leave most connections to others. */
export const writePlaces = (): FairSlots => new FairSlots({ total: 4, perOwner: 2, waitingPerOwner: Infinity });

/** Where a staged artifact is appended to. */
interface Sink {
  /** Bytes of a write. Writes end at multiples of `alignment`. */
  readonly size: number;
  readonly alignment: number;
  /** Makes bytes durable that follow the `held` ones. Returns false if the artifact does not end there. */
  append(held: number, bytes: Buffer): Promise<boolean>;
}

/** What a writer needs besides the artifact. */
export interface WriterParts {
  readonly database: Database;
  readonly stores: ArtifactStores;
  readonly places: FairSlots;
}

/** Writes the bytes of a staged artifact. */
export class ArtifactWriter {
  /** Bytes that are durable. */
  held: number;
  private readonly parts: WriterParts;
  private readonly tenantId: string;
  private readonly key: Buffer;
  private sink: Sink | undefined;
  private pieces: Buffer[] = [];
  private length = 0;
  private flushedAt = performance.now();
  private hasFailed = false;

  /** `held` is how many bytes the artifact has. */
  constructor(parts: WriterParts, tenantId: string, key: Buffer, held: number) {
    this.parts = parts;
    this.tenantId = tenantId;
    this.key = key;
    this.held = held;
  }

  /** Writes bytes. Throws what `flush` throws. */
  async write(bytes: Buffer): Promise<void> {
    const { size, alignment } = (this.sink ??= await this.open());
    for (let at = 0; at < bytes.length;) {
      // Up to the end of a chunk or part, so that the next write begins with one.
      const room = size - (this.held % alignment) - this.length;
      const piece = bytes.subarray(at, at + room);
      this.pieces.push(piece);
      this.length += piece.length;
      at += piece.length;
      const isOld = performance.now() - this.flushedAt > writeMilliseconds;
      if (piece.length === room || isOld) await this.flush();
    }
  }

  /**
   * Makes written bytes durable. Throws ABORTED if another request has continued or removed the artifact, RESOURCE_EXHAUSTED if it
   * outgrows the tenant's quota, UNAVAILABLE if the store is full or cannot be reached; later writes are ignored.
   */
  async flush(): Promise<void> {
    this.flushedAt = performance.now();
    if (this.length === 0 || this.hasFailed) return;
    this.hasFailed = true;
    const leave = await this.parts.places.acquire(this.tenantId);
    const bytes = Buffer.concat(this.pieces);
    this.pieces = [];
    this.length = 0;
    const isInTime = await this.sink!.append(this.held, bytes).finally(leave);
    if (!isInTime) throw aborted();
    this.hasFailed = false;
    this.held += bytes.length;
  }

  private async open(): Promise<Sink> {
    const { database, stores } = this.parts;
    const place = await database.read(this.tenantId, (tx) => placeOf(tx, this.tenantId, this.key));
    if (!place) throw aborted();
    return place.store === inDatabase
      ? this.databaseSink()
      : new PartSink(database, stores.at(place.store), this.tenantId, this.key, place);
  }

  private databaseSink(): Sink {
    const { parts, tenantId, key } = this;
    return {
      size: bytesPerWrite,
      alignment: chunkBytes,
      append: (held, bytes) =>
        parts.database
          .tenant(tenantId, (tx) => appendBytes(tx, tenantId, key, held, bytes))
          .catch((error: unknown) => {
            throw sqlState(error) === diskFull ? full(error) : error;
          }),
    };
  }
}

/** Appends parts to an artifact outside of the database. A part that is not full is replaced by a longer one. */
class PartSink implements Sink {
  readonly size = partBytes;
  readonly alignment = partBytes;
  private readonly database: Database;
  private readonly store: ObjectStore;
  private readonly tenantId: string;
  private readonly key: Buffer;
  private readonly place: ArtifactPlace;
  /** The part that is not full and its bytes. */
  private last: { readonly name: string; readonly bytes: Buffer } | undefined;

  constructor(database: Database, store: ObjectStore, tenantId: string, key: Buffer, place: ArtifactPlace) {
    this.database = database;
    this.store = store;
    this.tenantId = tenantId;
    this.key = key;
    this.place = place;
  }

  async append(held: number, bytes: Buffer): Promise<boolean> {
    const { database, store, tenantId, key } = this;
    const begun = held % partBytes;
    const start = held - begun;
    const last = begun === 0 ? undefined : (this.last ?? (await this.readLast(start, begun)));
    if (begun > 0 && !last) return false;
    const content = last ? Buffer.concat([last.bytes, bytes]) : bytes;
    // A name of its own: another request may be writing the same part.
    const name = `${this.place.prefix}/${start}-${randomBytes(8).toString('hex')}`;
    const discard = (unused: string) => void store.remove(unused).catch(() => undefined);
    await store.put(name, content).catch(failWrite);
    const isInTime = await database
      .tenant(tenantId, (tx) => recordPart(tx, tenantId, key, held, { start, size: content.length, name }))
      .catch((error: unknown) => {
        // Whether the part was recorded may be unknown; it then stays until the artifact is removed.
        if (error instanceof KelletError && error.code === 'RESOURCE_EXHAUSTED') discard(name);
        throw error;
      });
    if (!isInTime) {
      discard(name);
      return false;
    }
    if (last) discard(last.name);
    this.last = content.length < partBytes ? { name, bytes: content } : undefined;
    return true;
  }

  /** Returns the part that begins at `start` and has `length` bytes, or undefined if there is no such part. */
  private async readLast(start: number, length: number): Promise<{ name: string; bytes: Buffer } | undefined> {
    const { database, store, tenantId, key } = this;
    const part = await database.read(tenantId, (tx) => findPart(tx, tenantId, key, start));
    if (part?.size !== length) return undefined;
    return { name: part.name, bytes: await store.read(part.name, 0, length).catch(failWrite) };
  }
}

const aborted = (): KelletError => new KelletError('ABORTED', 'the artifact is being received by another request');
const full = (error: unknown): KelletError => unavailable('there is no room left for artifacts', error);

function failWrite(error: unknown): never {
  throw error instanceof StoreFullError ? full(error) : unavailable('the store of artifacts cannot be written', error);
}
