// Reads artifacts from whichever store they are in.
import { createHash } from 'node:crypto';
import type { Database } from '../../../platform/database/database.ts';
import { unavailable } from '../../../platform/errors.ts';
import { MissingObjectError } from '../../../platform/object-store/object-store.ts';
import { chunkBytes, type Located, locateRange } from './artifact-store.ts';
import type { ArtifactStores } from './artifact-stores.ts';

/** Bytes that are read at once to hash or copy an artifact. */
const bytesPerRead = 8 * chunkBytes;

/** How often an artifact is looked up that is not where it should be. */
const searches = 3;

/** Reads artifacts. */
export class ArtifactReader {
  private readonly database: Database;
  private readonly stores: ArtifactStores;

  constructor(database: Database, stores: ArtifactStores) {
    this.database = database;
    this.stores = stores;
  }

  /** Returns a range of an artifact, staged or not, shorter at its end. Throws UNAVAILABLE if its store cannot be reached. */
  async read(tenantId: string, key: Buffer, offset: number, length: number): Promise<Buffer> {
    for (let attempt = 1; ; attempt += 1) {
      const place = await this.database.read(tenantId, (tx) => locateRange(tx, tenantId, key, offset, length));
      try {
        return await this.fetch(place);
      } catch (error) {
        // It may have been moved in between.
        if (!(error instanceof MissingObjectError) || attempt === searches) {
          throw unavailable('the store of artifacts cannot be read', error);
        }
      }
    }
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
