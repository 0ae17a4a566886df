// Moves artifacts into another store while devices download them: an artifact is copied, the copy is read back and compared with
// the checksum, and one transaction then replaces the old bytes, which are removed afterwards. A move that was killed
// continues where it stopped.
import type { Database } from '../../../platform/database/database.ts';
import { ArtifactReader } from './artifact-reader.ts';
import { type ArtifactCopy, beginCopy, inDatabase, partNames, removeArtifact, takeCopy } from './artifact-store.ts';
import type { ArtifactStores } from './artifact-stores.ts';
import { ArtifactWriter, writePlaces } from './artifact-writer.ts';

/** The result for one artifact: `gone` if it was removed or moved by another process meanwhile. */
export type MoveOutcome = 'moved' | 'gone' | 'damaged';

/** An artifact that is moved. */
export interface MovedArtifact {
  readonly tenantId: string;
  readonly sha256: Buffer;
  readonly sizeBytes: number;
}

/** Moves artifacts into one store. */
export class ArtifactMove {
  private readonly database: Database;
  private readonly stores: ArtifactStores;
  private readonly target: string;
  private readonly reader: ArtifactReader;
  private readonly places = writePlaces();

  /** `target` is the store as rows name it (see parseStoreName). */
  constructor(database: Database, stores: ArtifactStores, target: string) {
    this.database = database;
    this.stores = stores;
    this.target = target;
    this.reader = new ArtifactReader(database, stores);
  }

  /**
   * Moves an artifact. `progress` is called with the bytes that have been copied. Returns `damaged`, and leaves everything as it
   * is, if what is read does not have the artifact's checksum. Throws ABORTED if another process is moving it, UNAVAILABLE if a
   * store fails.
   */
  async move(artifact: MovedArtifact, progress: (bytes: number) => void): Promise<MoveOutcome> {
    const { database, reader, target } = this;
    const { tenantId, sha256, sizeBytes } = artifact;
    const copy = await database.tenant(tenantId, (tx) => beginCopy(tx, tenantId, sha256, target));
    if (!copy) return 'gone';
    const parts = { database, stores: this.stores, places: this.places };
    const writer = new ArtifactWriter(parts, tenantId, copy.key, copy.held);
    progress(copy.held);
    for await (const piece of reader.pieces(tenantId, sha256, sizeBytes, copy.held)) {
      await writer.write(piece);
      progress(writer.held);
    }
    await writer.flush();
    await this.tidy(tenantId, copy);
    if (!(await reader.digest(tenantId, copy.key, sizeBytes)).equals(sha256)) {
      await database.tenant(tenantId, (tx) => removeArtifact(tx, tenantId, copy.key));
      return 'damaged';
    }
    const isTaken = await database.tenant(tenantId, (tx) => takeCopy(tx, tenantId, sha256, copy.key));
    return isTaken ? 'moved' : 'gone';
  }

  /** Removes objects that a killed process wrote and did not record. */
  private async tidy(tenantId: string, { key, store, prefix }: ArtifactCopy): Promise<void> {
    if (store === inDatabase) return;
    const known = await this.database.read(tenantId, (tx) => partNames(tx, tenantId, key));
    const objects = this.stores.at(store);
    for (let after = ''; ;) {
      const names = await objects.list(prefix, after);
      for (const name of names) if (!known.has(name)) await objects.remove(name);
      if (names.length === 0) return;
      after = names.at(-1)!;
    }
  }
}
