// Objects in a bucket of S3. Reads fetch a block around what is asked for, and keep the last blocks: devices read an artifact in
// small pieces one after another, and many devices read the same one.
import { LRUCache } from 'lru-cache';
import { MissingObjectError, type ObjectStore } from './object-store.ts';
import { type S3Client, S3Error } from './s3-client.ts';
import type { S3Location } from './s3-location.ts';

const blockBytes = 256 * 1024;
/** 64 MiB. */
const maximumBlocks = 256;

/** Bytes of both objects that are in memory at once while a copy is compared. */
const comparedBytes = 4 * 1024 * 1024;

const pastTheEnd = (error: unknown): Buffer => {
  if (error instanceof S3Error && error.status === 416) return Buffer.alloc(0);
  throw error;
};

/** A bucket, or what is below a prefix in it. */
export class S3Store implements ObjectStore {
  private readonly client: S3Client;
  private readonly bucket: string;
  private readonly prefix: string;
  /** Blocks read or being read, by name and number. */
  private readonly blocks = new LRUCache<string, Promise<Buffer>>({ max: maximumBlocks });

  constructor(client: S3Client, { bucket, key }: S3Location) {
    this.client = client;
    this.bucket = bucket;
    const prefix = key.replace(/\/+$/, '');
    this.prefix = prefix === '' ? '' : `${prefix}/`;
  }

  put(name: string, bytes: Buffer): Promise<void> {
    return this.client.put(this.bucket, this.prefix + name, bytes);
  }

  async read(name: string, offset: number, length: number): Promise<Buffer> {
    const first = Math.floor(offset / blockBytes);
    const last = Math.floor((offset + length - 1) / blockBytes);
    const indexes = Array.from({ length: last - first + 1 }, (_, index) => first + index);
    const blocks = await Promise.all(indexes.map((index) => this.block(name, index)));
    const start = offset - first * blockBytes;
    const bytes = Buffer.concat(blocks).subarray(start, start + length);
    if (bytes.length !== length) throw new MissingObjectError(`${name}, bytes ${offset} to ${offset + length - 1}`);
    return bytes;
  }

  async move(from: string, to: string): Promise<void> {
    const [source, target] = [this.prefix + from, this.prefix + to];
    try {
      await this.client.copy(this.bucket, source, target);
    } catch (error) {
      if (!(error instanceof S3Error && error.code === 'NoSuchKey')) throw error;
      const found = await this.client.list(this.bucket, target);
      if (!found.includes(target)) throw new MissingObjectError(from, error);
      return;
    }
    // The copy is verified before the original is deleted.
    if (!(await this.areEqual(source, target))) throw new Error(`the S3 service made a different copy of ${from}`);
    await this.client.delete(this.bucket, source);
  }

  async remove(name: string): Promise<void> {
    const exact = this.prefix + name;
    await this.client.delete(this.bucket, exact);
    for (;;) {
      const keys = await this.client.list(this.bucket, `${exact}/`);
      if (keys.length === 0) return;
      for (const key of keys) await this.client.delete(this.bucket, key);
    }
  }

  async list(name: string, after: string): Promise<string[]> {
    const keys = await this.client.list(this.bucket, `${this.prefix}${name}/`, after === '' ? '' : this.prefix + after);
    return keys.map((key) => key.slice(this.prefix.length));
  }

  close(): void {
    this.client.close();
  }

  /** Reports whether two objects have the same bytes. */
  private async areEqual(one: string, other: string): Promise<boolean> {
    for (let offset = 0; ; offset += comparedBytes) {
      const [left, right] = await Promise.all(
        [one, other].map((key) => this.client.read(this.bucket, key, offset, comparedBytes).catch(pastTheEnd)),
      );
      if (!left!.equals(right!)) return false;
      if (left!.length < comparedBytes) return true;
    }
  }

  /** Returns a block of an object, shorter at its end. */
  private block(name: string, index: number): Promise<Buffer> {
    const id = `${index}/${name}`;
    const known = this.blocks.get(id);
    if (known) return known;
    const reading = this.client
      .read(this.bucket, this.prefix + name, index * blockBytes, blockBytes)
      .catch((error: unknown) => {
        if (this.blocks.get(id) === reading) this.blocks.delete(id);
        throw error instanceof S3Error && error.code === 'NoSuchKey' ? new MissingObjectError(name, error) : error;
      });
    this.blocks.set(id, reading);
    return reading;
  }
}
