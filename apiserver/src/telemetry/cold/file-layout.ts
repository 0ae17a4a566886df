// The layout of cold files: their names, columns and sizes (docs/cold-storage.md). Readers outside of Kellet rely on it.
import type { SchemaElement } from 'hyparquet';

/** A row of a cold file. Times are nanoseconds since 1970. */
export interface ColdRow {
  readonly deviceId: string;
  readonly time: bigint;
  /** RFC 8785 text of the values as accepted. */
  readonly payload: string;
  readonly dataHash: Uint8Array;
  readonly batchId: string;
  readonly leafIndex: number;
  readonly received: bigint;
}

const text = { type: 'BYTE_ARRAY', converted_type: 'UTF8', logical_type: { type: 'STRING' } } as const;

/** The columns, all required. */
export const schema: SchemaElement[] = [
  { name: 'root', num_children: 7 },
  { name: 'device_id', ...text, repetition_type: 'REQUIRED' },
  { name: 'time_ns', type: 'INT64', repetition_type: 'REQUIRED' },
  { name: 'payload', ...text, repetition_type: 'REQUIRED' },
  { name: 'data_hash', type: 'FIXED_LEN_BYTE_ARRAY', type_length: 32, repetition_type: 'REQUIRED' },
  { name: 'batch_id', ...text, repetition_type: 'REQUIRED' },
  { name: 'leaf_index', type: 'INT32', repetition_type: 'REQUIRED' },
  { name: 'received_ns', type: 'INT64', repetition_type: 'REQUIRED' },
];

/** Rows of a row group. A read of one device decodes the keys of whole row groups. */
export const groupRows = 10_000;
/** Bytes of payloads after which a row group ends earlier. */
export const groupBytes = 8 * 1024 * 1024;
/** Bytes of a page before compression: what a read of a few points decodes. */
export const pageBytes = 64 * 1024;
/** Rows and bytes after which a file ends; it is in memory while it is written. */
export const fileRows = 1_000_000;
export const fileBytes = 48 * 1024 * 1024;

const nanosecondsPerDay = 86_400_000_000_000n;

/** Returns the UTC date of a time, as in the names of files. */
export const dateOf = (time: bigint): string =>
  new Date(Number((time / nanosecondsPerDay) * 86_400_000n)).toISOString().slice(0, 10);

/** Where a file is or was. */
export type Place = 'staging' | 'own' | 'superseded';

/** What the name of a file is made of. */
export interface NamedFile {
  readonly fileId: string;
  readonly tenantId: string;
  /** UTC, YYYY-MM-DD. */
  readonly date: string;
  readonly attemptId: string;
}

/** Returns the folder of what an attempt writes. */
export const stagingOf = (attemptId: string): string => `_staging/${attemptId}`;

/** Returns the name of a file in a place. */
export function nameOf({ fileId, tenantId, date, attemptId }: NamedFile, place: Place): string {
  const name = `tenant_id=${tenantId}/date=${date}/${fileId}.parquet`;
  // Readers of folders in the style of Hive skip what begins with an underscore.
  if (place === 'staging') return `${stagingOf(attemptId)}/${name}`;
  return place === 'superseded' ? `_superseded/${name}` : name;
}

/** Returns the folders of a tenant's files, except those of attempts. */
export const tenantFolders = (tenantId: string): string[] => [
  `tenant_id=${tenantId}`,
  `_superseded/tenant_id=${tenantId}`,
];

/** The places in the order in which a file passes through them. */
export const places: readonly Place[] = ['staging', 'own', 'superseded'];
