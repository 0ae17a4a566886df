// Writes rows to a Parquet file in memory.
import { createHash, type Hash } from 'node:crypto';
import { constants, zstdCompressSync } from 'node:zlib';
import { ByteWriter, ParquetWriter } from 'hyparquet-writer';
import { type ColdRow, fileBytes, fileRows, groupBytes, groupRows, pageBytes, schema } from './file-layout.ts';

/** Facts of a file for the catalogue. Times are nanoseconds since 1970. */
export interface FileFacts {
  readonly rows: number;
  readonly bytes: number;
  readonly leastDevice: string;
  readonly greatestDevice: string;
  readonly leastTime: bigint;
  readonly greatestTime: bigint;
  readonly leastReceived: bigint;
  readonly greatestReceived: bigint;
  /** Where the indexes of pages and the footer begin, and the SHA-256 of the file from there on. */
  readonly tailOffset: number;
  readonly tailSha256: Buffer;
}

/** A complete file. */
export interface EncodedFile extends FileFacts {
  readonly content: Buffer;
  /** Of its rows, see {@link RowDigest}. */
  readonly rowDigest: string;
}

/** A digest of rows in order, by which rows that were read back are compared with those that were written. */
export class RowDigest {
  private readonly hash: Hash = createHash('sha256');

  add({ deviceId, time, payload, dataHash, batchId, leafIndex, received }: ColdRow): void {
    this.hash.update(`${deviceId} ${time} ${batchId} ${leafIndex} ${received} ${payload.length}\n${payload}\n`);
    this.hash.update(dataHash);
  }

  end(): string {
    return this.hash.digest('hex');
  }
}

const compressors = {
  // With a checksum in each frame: a page that was changed cannot be read.
  ZSTD: (input: Uint8Array) =>
    zstdCompressSync(input, {
      params: { [constants.ZSTD_c_compressionLevel]: 3, [constants.ZSTD_c_checksumFlag]: 1 },
    }),
};

/** Encodes one file. Rows are added in the order of the file. */
export class FileEncoder {
  private readonly buffer = new ByteWriter();
  private readonly writer = new ParquetWriter({
    writer: this.buffer,
    schema,
    codec: 'ZSTD',
    compressors,
    // The length of a device id: row groups are selected by whole ids.
    statisticsTruncateLength: 36,
    createdBy: 'kellet',
  });
  private readonly digest = new RowDigest();
  private group: ColdRow[] = [];
  private payloadBytes = 0;
  private rows = 0;
  private leastDevice = '';
  private greatestDevice = '';
  private lastTime = 0n;
  private leastTime = 2n ** 63n - 1n;
  private greatestTime = 0n;
  private leastReceived = 2n ** 63n - 1n;
  private greatestReceived = 0n;

  /** Whether another file should begin. */
  get isFull(): boolean {
    return this.rows >= fileRows || this.buffer.offset + this.payloadBytes >= fileBytes;
  }

  /** Adds a row. Throws if it belongs before the last one: reads would not find it. */
  add(row: ColdRow): void {
    if (row.deviceId < this.greatestDevice || (row.deviceId === this.greatestDevice && row.time < this.lastTime))
      throw new Error('rows of a cold file are out of order');
    this.lastTime = row.time;
    if (this.rows === 0) this.leastDevice = row.deviceId;
    this.greatestDevice = row.deviceId;
    if (row.time < this.leastTime) this.leastTime = row.time;
    if (row.time > this.greatestTime) this.greatestTime = row.time;
    if (row.received < this.leastReceived) this.leastReceived = row.received;
    if (row.received > this.greatestReceived) this.greatestReceived = row.received;
    this.digest.add(row);
    this.group.push(row);
    this.rows += 1;
    this.payloadBytes += row.payload.length;
    if (this.group.length >= groupRows || this.payloadBytes >= groupBytes) this.endGroup();
  }

  /** Completes the file, which has at least one row. */
  end(): EncodedFile {
    if (this.group.length > 0) this.endGroup();
    const tailOffset = this.buffer.offset;
    void this.writer.finish();
    const content = Buffer.from(this.buffer.getBytes());
    return {
      content,
      rowDigest: this.digest.end(),
      rows: this.rows,
      bytes: content.length,
      leastDevice: this.leastDevice,
      greatestDevice: this.greatestDevice,
      leastTime: this.leastTime,
      greatestTime: this.greatestTime,
      leastReceived: this.leastReceived,
      greatestReceived: this.greatestReceived,
      tailOffset,
      tailSha256: sha256(content.subarray(tailOffset)),
    };
  }

  private endGroup(): void {
    const { group } = this;
    // What is only read with its row has no statistics; these would be most of the footer.
    const plain = { statistics: false } as const;
    void this.writer.write({
      columnData: [
        { name: 'device_id', data: group.map((row) => row.deviceId), encoding: 'RLE_DICTIONARY' },
        { name: 'time_ns', data: group.map((row) => row.time), encoding: 'DELTA_BINARY_PACKED' },
        { name: 'payload', data: group.map((row) => row.payload), ...plain },
        { name: 'data_hash', data: group.map((row) => row.dataHash), encoding: 'PLAIN', ...plain },
        { name: 'batch_id', data: group.map((row) => row.batchId), encoding: 'RLE_DICTIONARY', ...plain },
        { name: 'leaf_index', data: group.map((row) => row.leafIndex), encoding: 'DELTA_BINARY_PACKED', ...plain },
        { name: 'received_ns', data: group.map((row) => row.received), encoding: 'DELTA_BINARY_PACKED' },
      ],
      rowGroupSize: group.length,
      pageSize: pageBytes,
    });
    this.group = [];
    this.payloadBytes = 0;
  }
}

/** Returns bytes in the form in which hyparquet takes them. */
export const arrayBufferOf = (bytes: Uint8Array): ArrayBuffer => new Uint8Array(bytes).buffer;

/** Returns the SHA-256 of bytes. */
export const sha256 = (bytes: Uint8Array): Buffer => createHash('sha256').update(bytes).digest();
