// The format of an exported tenant: lines of JSON, compressed with zstd. First a header, then for each table a line with its columns
// and a line for each row, in PostgreSQL's text form; then the cold files in pieces; at the end a line that marks the file as
// complete.
import type { TenantTable } from './tenant-tables.ts';

/** The first line. */
export interface Header {
  readonly format: 'kellet-tenant';
  readonly version: 1;
  readonly tenant_id: string;
  readonly exported_at: string;
  /** The migrations of the database: the schema of the rows. */
  readonly migrations: readonly string[];
  /** Fingerprint of the key that seals secrets, see secretsKey. */
  readonly secrets_key: string;
}

/** The line before the rows of a table. */
export interface TableLine {
  readonly table: string;
  readonly columns: readonly string[];
  /** Of points: whether the tenant's usage includes them. */
  readonly counted?: boolean;
}

/** A piece of a cold file; the last one is marked. */
export interface FileLine {
  readonly file: string;
  readonly data: string;
  readonly last: boolean;
}

/** The last line. */
export interface EndLine {
  readonly end: true;
  readonly rows: number;
}

/** A row: a value or null for each column. */
export type RowLine = readonly (string | null)[];

/** Any line. */
export type Line = Header | TableLine | FileLine | EndLine | RowLine;

/** Tables of the tenant that are not exported, each with the reason. */
export const notExported: Readonly<Record<string, string>> = {
  applied_versions: 'versions of resources in the cluster of this installation',
  artifact_parts: 'exported as artifact_chunks, wherever the bytes are',
  artifact_remains: 'what this installation has yet to remove from its stores',
  login_failures: 'delays of sign-ins at this installation, also of other tenants',
  rate_windows: 'requests of the current minute',
  resource_intents: 'creations of resources in the cluster of this installation',
  telemetry_tenant_segments: 'segments of this installation; points get new ones',
};

/** Points and leaves are read from the tables that inherit from these, and written into new ones. */
export const pointsTable = 'telemetry_points';

/** Conditions that leave out rows that make no sense in another installation. */
export const conditions: Readonly<Record<string, string>> = {
  // An upload or copy in progress begins again.
  artifacts: 'NOT t.staged',
  artifact_chunks: `EXISTS (SELECT FROM artifacts a WHERE a.tenant_id = t.tenant_id AND a.sha256 = t.sha256 AND NOT a.staged)`,
  cold_files: `t.state = 'live'`,
  // Those of points in segments are recorded again, in the segments that they get; those of cold points only here.
  open_batch_leaves: `EXISTS (SELECT FROM anchor_batches b WHERE b.batch_id = t.batch_id AND b.status = 'open')`,
};

/** Columns that are exported with another value. */
export const replaced: Readonly<Record<string, Readonly<Record<string, string>>>> = {
  artifacts: { store: `''`, prefix: `''` },
  cold_files: { place: `'own'` },
  // Not the id of a segment of the other installation.
  open_batch_leaves: { segment_id: '-t.segment_id' },
  ota_packages: { staging_key: 'NULL' },
  tenants: {
    ...{ deleted_at: 'NULL', purge_at: 'NULL', purge_started_at: 'NULL', purged_at: 'NULL' },
    restored_resource_uid: `''`,
  },
};

/**
 * Returns the tables to export, in the order in which rows can be inserted: referenced ones and those whose triggers write into
 * others come first. The rows that triggers have made are replaced when the tables that they are in have their turn.
 */
export function exportedTables(tables: readonly TenantTable[]): TenantTable[] {
  const own = tables
    .toReversed()
    .filter(({ name, parent }) => parent === undefined && !Object.hasOwn(notExported, name));
  const isEarly = ({ name, hasTriggers }: TenantTable): boolean =>
    hasTriggers || own.some((other) => other.references.some(({ table }) => table === name));
  return [...own.filter(isEarly), ...own.filter((table) => !isEarly(table))];
}

/**
 * Columns that get their default again when they are imported. Points are counted after their import, and until then no deleted device
 * is forgotten (docs/decisions/0114). Whether a namespace is the tenant's is found out in each cluster.
 */
const renewedColumns: ReadonlySet<string> = new Set(['deleted_devices.forget_at', 'tenants.namespace_confirmed']);

/** Returns the columns that are exported: values that the database assigns are assigned again. */
export const exportedColumns = ({ name, columns, identity }: TenantTable): string[] =>
  columns.filter((column) => column !== identity && !renewedColumns.has(`${name}.${column}`));
