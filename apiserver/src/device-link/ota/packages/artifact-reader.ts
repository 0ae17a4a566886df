// Reads artifacts from whichever store they are in.
import { createHash } from 'node:crypto';
import type { Database, Transaction } from '../../../platform/database/database.ts';
import { resourceExhausted, unavailable } from '../../../platform/errors.ts';
import { FairSlots, NoSlotError } from '../../../platform/fair-slots.ts';
import { MissingObjectError } from '../../../platform/object-store/object-store.ts';
import { chunkBytes, locateRange, type Located } from './artifact-store.ts';
import type { ArtifactStores } from './artifact-stores.ts';

/** Bytes that are read at once to hash or copy an artifact. */
const bytesPerRead = 8 * chunkBytes;

/**
 * Requests for chunks that a process serves at a time, in all and for a device. Devices take turns, so one that asks for a
 * thousand tiny pieces at once waits for itself alone.
 */
const chunkSlots = { total: 128, perOwner: 4, waitingPerOwner: 64 };

/** How often an artifact is looked up that is not where it should be. */
const searches = 3;

/** Reads artifacts. */
export class ArtifactReader {
  readonly database: Database;
  private readonly stores: ArtifactStores;
  private readonly slots = new FairSlots(chunkSlots);

  constructor(database: Database, stores: ArtifactStores) {
    this.database = database;
    this.stores = stores;
  }

  /** Runs the request of a device when it is its turn. Throws RESOURCE_EXHAUSTED if too many of its requests are waiting. */
  async inTurn<T>(deviceId: string, work: () => Promise<T>): Promise<T> {
    const leave = await this.slots.acquire(deviceId).catch((error: unknown) => {
      throw error instanceof NoSlotError ? resourceExhausted('the device asks for too many chunks at once', 1) : error;
    });
    try {
      return await work();
    } finally {
      leave();
    }
  }

  /**
   * Returns the bytes of a range that was found in a transaction, which has ended. `findAgain` finds it once more, if the artifact
   * has been moved in between. Throws UNAVAILABLE if its store cannot be reached.
   */
  async bytesOf(located: Located, findAgain: () => Promise<Located>): Promise<Buffer> {
    for (let [place, attempt] = [located, 1]; ; attempt += 1) {
      try {
        return await this.fetch(place);
      } catch (error) {
        if (!(error instanceof MissingObjectError) || attempt === searches) {
          throw unavailable('the store of artifacts cannot be read', error);
        }
      }
      place = await findAgain();
    }
  }

  /** Returns a range of an artifact, staged or not, shorter at its end. Throws UNAVAILABLE if its store cannot be reached. */
  async read(tenantId: string, key: Buffer, offset: number, length: number): Promise<Buffer> {
    const find = () =>
      this.database.read(tenantId, (tx: Transaction) => locateRange(tx, tenantId, key, offset, length));
    return this.bytesOf(await find(), find);
  }

  /** Yields the bytes of an artifact from `offset` to its end in pieces. */
  async *pieces(tenantId: string, key: Buffer, sizeBytes: number, offset = 0): AsyncGenerator<Buffer, void> {
    for (let at = offset; at < sizeBytes;) {
      const bytes = await this.read(tenantId, key, at, Math.min(bytesPerRead, sizeBytes - at));
      if (bytes.length === 0) throw unavailable('the artifact has been removed');
      yield bytes;
      at += bytes.length;
    }
  }

  /** Returns the SHA-256 of an artifact, staged or not, which is read in pieces. */
  async digest(tenantId: string, key: Buffer, sizeBytes: number): Promise<Buffer> {
    const hash = createHash('sha256');
    for await (const piece of this.pieces(tenantId, key, sizeBytes)) hash.update(piece);
    return hash.digest();
  }

  private async fetch(located: Located): Promise<Buffer> {
    if ('bytes' in located) return located.bytes;
    const store = this.stores.at(located.store);
    const pieces: Buffer[] = [];
    for (const { name, offset, length } of located.pieces) pieces.push(await store.read(name, offset, length));
    return Buffer.concat(pieces);
  }
}
