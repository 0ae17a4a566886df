// Reads cold files: the points of a device, or all rows. Keeps the ends of files and the keys of row groups in memory, within
// a bound. What a file says is checked: its end against the catalogue, each point against its data_hash.
import { zstdDecompressSync } from 'node:zlib';
import { type AsyncBuffer, type FileMetaData, parquetMetadata, parquetReadObjects } from 'hyparquet';
import { LRUCache } from 'lru-cache';
import { KelletError, unavailable } from '../../platform/errors.ts';
import { MissingObjectError, type ObjectStore } from '../../platform/object-store/object-store.ts';
import type { Logger } from '../../platform/observability/logger.ts';
import { type Counter, counter, readGauge, type Registry } from '../../platform/observability/metrics.ts';
import { leafHash } from '../points/leaf-hashes.ts';
import { arrayBufferOf, type FileFacts, sha256 } from './file-encoder.ts';
import { type ColdRow, type NamedFile, nameOf, type Place, places } from './file-layout.ts';
import { readTurns } from './slow-read.ts';

/** A file of the catalogue. */
export interface ColdFile extends NamedFile, FileFacts {
  readonly runId: string;
  readonly place: Place;
}

/** A file is not what the catalogue says. */
export class DamagedFileError extends Error {}

/** Points of a device to read. Times are nanoseconds since 1970; `to` is exclusive. */
export interface ColdRange {
  readonly deviceId: string;
  readonly from: bigint;
  readonly to: bigint;
  readonly descending: boolean;
  /** Number of rows to read at once; fewer where they are large. */
  readonly pieceRows: number;
}

interface Tail {
  /** The file from an offset on. */
  readonly bytes: Buffer;
  readonly offset: number;
  readonly metadata: FileMetaData;
  /** Index of the first row of each row group. */
  readonly firstRows: readonly number[];
}

/** The keys of a row group, which is sorted by them. */
interface GroupKeys {
  /** Each device and the index of its first row in the group. */
  readonly devices: readonly string[];
  readonly starts: readonly number[];
  readonly times: BigInt64Array;
}

/** Default bound on the memory for ends of files and keys. */
const cacheBytes = 64 * 1024 * 1024;
/** Bytes of parsed metadata for each byte of a footer, roughly. */
const metadataFactor = 12;

/** Bytes of a file that is read at once if all of its rows are: its columns one by one would take a read each. */
const smallBytes = 256 * 1024;

/** Bytes of payloads that are decoded at once, roughly: a row group has few rows if these are large. */
const pieceBytes = 2 * 1024 * 1024;

const pointColumns = ['payload', 'data_hash', 'batch_id', 'leaf_index', 'received_ns'];

/** The cold files of a process. */
export class ColdFiles {
  /** Reads that hold rows at once, up to some ten megabytes each; tenants take turns. */
  readonly turns = readTurns(4);
  private readonly store: ObjectStore | undefined;
  private readonly logger: Logger;
  private readonly failures: Counter<'cause'>;
  private readonly cache: LRUCache<string, Tail | GroupKeys>;

  /** Without a store, reads that need a file fail. */
  constructor(
    store: ObjectStore | undefined,
    { logger, metrics }: { logger: Logger; metrics: Registry },
    maximumCacheBytes = cacheBytes,
  ) {
    this.store = store;
    this.logger = logger;
    this.cache = new LRUCache({ maxSize: maximumCacheBytes });
    this.failures = counter(
      metrics,
      'kellet_cold_read_failures_total',
      'Reads of cold files that failed, by cause: damaged or missing files, or the store.',
      ['cause'],
    );
    readGauge({ metrics, logger }, 'kellet_cold_cache_bytes', 'Memory for the indexes of cold files.', () =>
      Math.max(0, this.cache.calculatedSize),
    );
  }

  /**
   * Yields the rows of a range from one file, in order. Throws INTERNAL if the file is damaged or missing, and UNAVAILABLE if the
   * store cannot be reached.
   */
  async *rows(file: ColdFile, range: ColdRange): AsyncGenerator<ColdRow[]> {
    try {
      yield* this.rowsOf(file, range);
    } catch (error) {
      throw this.failed(file, error);
    }
  }

  /** Yields all rows of a file, in order. Throws DamagedFileError, MissingObjectError or what the store threw. */
  async *allRows(file: ColdFile): AsyncGenerator<ColdRow[]> {
    const tail = await this.readTail(file, file.bytes <= smallBytes ? 0 : file.tailOffset);
    for (let group = 0; group < tail.firstRows.length; group += 1) {
      const first = tail.firstRows[group]!;
      yield await this.wholeRows(file, tail, first, tail.firstRows[group + 1] ?? file.rows);
    }
  }

  private async *rowsOf(file: ColdFile, { deviceId, from, to, descending, pieceRows }: ColdRange) {
    const tail = await this.tail(file);
    const groups = tail.metadata.row_groups.flatMap((group, index) => {
      const [devices, times] = group.columns.map((column) => column.meta_data?.statistics);
      const has =
        String(devices?.min_value) <= deviceId &&
        String(devices?.max_value) >= deviceId &&
        (times?.min_value as bigint) < to &&
        (times?.max_value as bigint) >= from;
      return has ? [index] : [];
    });
    for (const group of descending ? groups.reverse() : groups) {
      const most = Math.min(pieceRows, rowsOfPiece(tail, group));
      const [first, end] = rangeOf(await this.keys(file, tail, group), deviceId, from, to);
      const base = tail.firstRows[group]!;
      for (let done = 0; done < end - first; done += most) {
        const count = Math.min(most, end - first - done);
        const start = base + (descending ? end - done - count : first + done);
        const rows = await this.wholeRows(file, tail, start, start + count);
        if (rows.some((row) => row.deviceId !== deviceId)) throw new DamagedFileError('rows of another device');
        yield descending ? rows.reverse() : rows;
      }
    }
  }

  /** Reads and checks the rows from one index to another. */
  private async wholeRows(file: ColdFile, tail: Tail, rowStart: number, rowEnd: number): Promise<ColdRow[]> {
    const columns = ['device_id', 'time_ns', ...pointColumns];
    const found = await this.decode(file, tail, columns, rowStart, rowEnd);
    if (found.length !== rowEnd - rowStart) throw new DamagedFileError('missing rows');
    return found.map((values) => {
      const row: ColdRow = {
        deviceId: values['device_id'] as string,
        time: values['time_ns'] as bigint,
        payload: values['payload'] as string,
        dataHash: values['data_hash'] as Uint8Array,
        batchId: values['batch_id'] as string,
        leafIndex: values['leaf_index'] as number,
        received: values['received_ns'] as bigint,
      };
      const hash = leafHash(file.tenantId, row.deviceId, Number(row.time / 1_000_000_000n), row.payload);
      if (hash !== Buffer.from(row.dataHash).toString('latin1'))
        throw new DamagedFileError('a point with another hash');
      return row;
    });
  }

  private async decode(
    file: ColdFile,
    tail: Tail,
    columns: string[],
    rowStart: number,
    rowEnd: number,
  ): Promise<Record<string, unknown>[]> {
    const { metadata } = tail;
    const read = { columns, rowStart, rowEnd, compressors: { ZSTD: decompress }, useOffsetIndex: true };
    const store: { failure?: Error } = {};
    // Decoders fail in their own ways: what the store threw must remain visible.
    const source = this.source(file, tail, (error) => (store.failure = error as Error));
    try {
      return await parquetReadObjects({ file: source, metadata, ...read });
    } catch (error) {
      throw store.failure ?? new DamagedFileError(`cannot be decoded: ${(error as Error).message}`);
    }
  }

  private source(file: ColdFile, tail: Tail, failed: (error: unknown) => void): AsyncBuffer {
    return {
      byteLength: file.bytes,
      slice: async (start, end = file.bytes) => {
        if (start >= tail.offset) return arrayBufferOf(tail.bytes.subarray(start - tail.offset, end - tail.offset));
        try {
          return arrayBufferOf(await this.read(file, start, end - start));
        } catch (error) {
          failed(error);
          throw error;
        }
      },
    };
  }

  private async tail(file: ColdFile): Promise<Tail> {
    const key = file.fileId;
    const known = this.cache.get(key) as Tail | undefined;
    if (known) return known;
    const tail = await this.readTail(file, file.tailOffset);
    this.cache.set(key, tail, { size: tail.bytes.length + tail.metadata.metadata_length * metadataFactor });
    return tail;
  }

  /** Reads a file from an offset on, at least its tail. */
  private async readTail(file: ColdFile, offset: number): Promise<Tail> {
    const bytes = await this.read(file, offset, file.bytes - offset);
    const tail = bytes.subarray(file.tailOffset - offset);
    if (!sha256(tail).equals(file.tailSha256)) throw new DamagedFileError('its end has another hash');
    const metadata = parquetMetadata(arrayBufferOf(tail));
    let next = 0;
    const firstRows = metadata.row_groups.map((group) => {
      const first = next;
      next += Number(group.num_rows);
      return first;
    });
    if (next !== file.rows) throw new DamagedFileError('another number of rows');
    return { bytes, offset, metadata, firstRows };
  }

  private async keys(file: ColdFile, tail: Tail, group: number): Promise<GroupKeys> {
    const key = `${file.fileId}/${group}`;
    const known = this.cache.get(key) as GroupKeys | undefined;
    if (known) return known;
    const first = tail.firstRows[group]!;
    const rows = await this.decode(file, tail, ['device_id', 'time_ns'], first, tail.firstRows[group + 1] ?? file.rows);
    const devices: string[] = [];
    const starts: number[] = [];
    rows.forEach(({ device_id: device }, index) => {
      if (device === devices.at(-1)) return;
      devices.push(device as string);
      starts.push(index);
    });
    const keys = { devices, starts, times: BigInt64Array.from(rows, (row) => row['time_ns'] as bigint) };
    this.cache.set(key, keys, { size: keys.times.byteLength + devices.length * 80 + 200 });
    return keys;
  }

  /** Reads bytes of a file wherever it is: it may have been moved since the catalogue was read. */
  private async read(file: ColdFile, offset: number, length: number): Promise<Buffer> {
    if (!this.store) throw new MissingObjectError('KELLET_COLD_URL is not set');
    let missing: MissingObjectError | undefined;
    for (const place of new Set([file.place, ...places])) {
      try {
        return await this.store.read(nameOf(file, place), offset, length);
      } catch (error) {
        if (!(error instanceof MissingObjectError)) throw error;
        missing ??= error;
      }
    }
    throw missing ?? new MissingObjectError(file.fileId);
  }

  private failed(file: ColdFile, error: unknown): KelletError {
    const isMissing = error instanceof MissingObjectError;
    const cause = isMissing ? 'missing' : error instanceof DamagedFileError ? 'damaged' : 'store';
    this.failures.inc({ cause });
    this.logger.error({ err: error, file: nameOf(file, file.place), cause }, 'failed to read a cold file');
    if (cause === 'store') return unavailable('cold storage cannot be read at the moment', error);
    return new KelletError('INTERNAL', 'stored points cannot be read', { cause: error });
  }
}

/** Returns how many rows of a row group are decoded at once. */
function rowsOfPiece({ metadata }: Tail, group: number): number {
  const { num_rows: rows, columns } = metadata.row_groups[group]!;
  const payloads = columns.find(({ meta_data: column }) => column?.path_in_schema[0] === 'payload')?.meta_data;
  return Math.max(1, Math.floor((pieceBytes * Number(rows)) / Number(payloads?.total_uncompressed_size ?? rows)));
}

const decompress = (input: Uint8Array, outputLength: number): Uint8Array =>
  zstdDecompressSync(input, { maxOutputLength: Math.max(1, outputLength) });

/** Returns the rows of a device in a group within a range of time: the first, and the one after the last. */
function rangeOf({ devices, starts, times }: GroupKeys, deviceId: string, from: bigint, to: bigint): [number, number] {
  const device = firstWhere(0, devices.length, (index) => devices[index]! >= deviceId);
  if (devices[device] !== deviceId) return [0, 0];
  const end = starts[device + 1] ?? times.length;
  const first = firstWhere(starts[device]!, end, (index) => times[index]! >= from);
  return [first, firstWhere(first, end, (index) => times[index]! >= to)];
}

/** Returns the first index for which a condition that stays true becomes true, or `end`. */
function firstWhere(start: number, end: number, condition: (index: number) => boolean): number {
  while (start < end) {
    const middle = (start + end) >> 1;
    if (condition(middle)) end = middle;
    else start = middle + 1;
  }
  return start;
}
