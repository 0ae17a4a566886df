// Chunks of artifacts in memory, which all devices that download the same artifact share. They never change, because an artifact is
// named by its checksum; whether a device may have one is decided elsewhere, for each request.
import { LRUCache } from 'lru-cache';
import { unavailable } from '../../../platform/errors.ts';
import type { ArtifactReader } from './artifact-reader.ts';
import { chunkBytes } from './artifact-store.ts';

/** An artifact that is complete. */
export interface CompleteArtifact {
  readonly tenantId: string;
  readonly sha256: Buffer;
  readonly sizeBytes: number;
}

/** Caches the chunks that were read last. */
export class ChunkCache {
  private readonly reader: Pick<ArtifactReader, 'read'>;
  private readonly chunks: LRUCache<string, Buffer>;
  private readonly reading = new Map<string, Promise<Buffer>>();

  /** `maximumBytes` limits the chunks in memory, apart from those that are being sent. */
  constructor(reader: Pick<ArtifactReader, 'read'>, maximumBytes: number) {
    this.reader = reader;
    this.chunks = new LRUCache({ maxSize: Math.max(maximumBytes, 1), sizeCalculation: (chunk) => chunk.length });
  }

  /**
   * Returns a range that lies within the artifact. The bytes are shared and must not be changed. Throws UNAVAILABLE if the artifact
   * is not stored, as after its package was deleted and created again, or its store cannot be reached.
   */
  async range(artifact: CompleteArtifact, offset: number, length: number): Promise<Buffer> {
    const end = offset + length;
    const pieces: Buffer[] = [];
    for (let start = offset - (offset % chunkBytes); start < end; start += chunkBytes) {
      const chunk = await this.chunk(artifact, start);
      pieces.push(chunk.subarray(Math.max(offset - start, 0), end - start));
    }
    return pieces.length === 1 ? pieces[0]! : Buffer.concat(pieces);
  }

  /** Returns the chunk that begins at this byte. Concurrent requests share one read. */
  private chunk(artifact: CompleteArtifact, start: number): Buffer | Promise<Buffer> {
    const key = `${artifact.tenantId}/${artifact.sha256.toString('latin1')}/${start}`;
    const cached = this.chunks.get(key);
    if (cached) return cached;
    let read = this.reading.get(key);
    if (!read) {
      read = this.read(artifact, key, start).finally(() => this.reading.delete(key));
      this.reading.set(key, read);
    }
    return read;
  }

  private async read({ tenantId, sha256, sizeBytes }: CompleteArtifact, key: string, start: number): Promise<Buffer> {
    const length = Math.min(chunkBytes, sizeBytes - start);
    const chunk = await this.reader.read(tenantId, sha256, start, length);
    if (chunk.length < length) throw unavailable('the artifact is not there yet');
    this.chunks.set(key, chunk);
    return chunk;
  }
}
