// Exports a tenant: a snapshot of its rows in every table, its artifacts and its cold files (transfer-format.ts).
import { chunkBytes } from '../device-link/ota/artifacts/artifact-store.ts';
import type { ArtifactStores } from '../device-link/ota/artifacts/artifact-stores.ts';
import type { Database, Transaction } from '../platform/database/database.ts';
import { MissingObjectError, type ObjectStore } from '../platform/object-store/object-store.ts';
import { readCursor, sizedPieces } from '../platform/statements/cursor.ts';
import { prepareForTexts, textBytes } from '../platform/statements/row-texts.ts';
import { withoutColdWork } from '../telemetry/cold/cold-work.ts';
import { type NamedFile, nameOf, places } from '../telemetry/cold/file-layout.ts';
import { pointsOfTenant, segmentsOfTenant } from '../telemetry/write/tenant-segments.ts';
import { deletionOf } from '../tenants/tenant-store.ts';
import { secretsKey } from './reseal.ts';
import { ofTenant, type TenantTable, tenantTables } from './tenant-tables.ts';
import { conditions, exportedColumns, exportedTables, type Line, pointsTable, replaced } from './transfer-format.ts';

const rowsAtOnce = 200;
const pieceBytes = 1024 * 1024;

/** What an export reads from. */
export interface ExportParts {
  readonly database: Database;
  readonly artifacts: ArtifactStores;
  readonly coldStore: ObjectStore | undefined;
  readonly controlSecret: string;
  /** Writes a line; resolves when there is room for more. */
  readonly write: (line: Line) => Promise<void>;
  /** Called when a table is complete. */
  readonly exported?: (table: string, rows: number) => void;
  /** Called when another process turns points cold, which has to end first. */
  readonly waiting?: () => void;
}

/** Why a tenant is not exported or imported. */
export class TransferError extends Error {}

/**
 * Exports a tenant in one snapshot, and returns the number of rows. No points turn cold meanwhile. Throws TransferError if
 * there is no such tenant, or if its purge has begun, and ColdWorkError if another process keeps turning points cold.
 */
export async function exportTenant(parts: ExportParts, tenantId: string): Promise<number> {
  return withoutColdWork(
    parts.database,
    () => parts.waiting?.(),
    () =>
      parts.database.maintenance(async (tx) => {
        await tx.query('SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY');
        await tx.query('SET LOCAL statement_timeout = 0');
        await prepareForTexts(tx);
        return new Export(parts, tx, tenantId).run();
      }),
  );
}

/** Throws TransferError if there is no such tenant, or if its purge has begun. */
export const mustHaveData = (database: Database, tenantId: string): Promise<void> =>
  database.systemRead((tx) => refusePurged(tx, tenantId));

async function refusePurged(tx: Transaction, tenantId: string): Promise<void> {
  const tenant = await deletionOf(tx, tenantId);
  if (!tenant) throw new TransferError(`there is no tenant ${tenantId}`);
  if (tenant.purge_started_at) throw new TransferError(`the data of the tenant ${tenantId} is being purged or gone`);
}

/** A segment that may have points of the tenant. */
interface Segment {
  readonly id: bigint;
  /** Whether the tenant's usage includes them. */
  readonly counted: boolean;
  /** Their number, if it is known. */
  readonly points: number | undefined;
}

class Export {
  private readonly parts: ExportParts;
  private readonly tx: Transaction;
  private readonly tenantId: string;
  private rows = 0;

  constructor(parts: ExportParts, tx: Transaction, tenantId: string) {
    this.parts = parts;
    this.tx = tx;
    this.tenantId = tenantId;
  }

  async run(): Promise<number> {
    const { tx, tenantId, parts } = this;
    await refusePurged(tx, tenantId);
    await parts.write({
      ...{ format: 'kellet-tenant', version: 1, tenant_id: tenantId, exported_at: new Date().toISOString() },
      ...{ migrations: await migrationsOf(tx), secrets_key: secretsKey(parts.controlSecret) },
    });
    const segments = await this.segments();
    const { tables } = await tenantTables(tx, [...segments.keys()]);
    for (const table of exportedTables(tables)) {
      const before = this.rows;
      if (table.name === pointsTable) await this.exportPoints(tables, segments);
      else await this.exportTable(table);
      if (table.name === 'artifact_chunks') await this.exportParts(table);
      parts.exported?.(table.name, this.rows - before);
    }
    await this.exportColdFiles();
    await parts.write({ end: true, rows: this.rows });
    return this.rows;
  }

  private async exportTable(table: TenantTable): Promise<void> {
    const columns = exportedColumns(table);
    await this.parts.write({ table: table.name, columns });
    const values = columns.map((column) => replaced[table.name]?.[column] ?? `t.${column}`);
    const condition = conditions[table.name];
    await this.exportRows(table.name, {
      row: `ARRAY[${values.map((value) => `(${value})::text`).join(', ')}]`,
      from: `${table.name} t WHERE ${ofTenant(table, 't')} ${condition === undefined ? '' : `AND ${condition}`}`,
      order: table.identity === undefined ? '' : `ORDER BY t.${table.identity}`,
    });
  }

  /** Returns the segments that may have points of the tenant, by the names of their tables. */
  private async segments(): Promise<Map<string, Segment>> {
    const { tx, tenantId } = this;
    const { recorded, others } = await segmentsOfTenant(tx, tenantId);
    const { rows } = await tx.query<{ id: bigint; counted: boolean }>(
      `SELECT segment_id AS id, counted FROM telemetry_segments
       WHERE segment_id = ANY($1) AND state IN ('open', 'sealed', 'indexed') ORDER BY segment_id`,
      [[...recorded.map(({ id }) => id), ...others]],
    );
    const points = new Map(recorded.map((segment) => [segment.id, segment.points]));
    return new Map(rows.map(({ id, counted }) => [`telemetry_segment_${id}`, { id, counted, points: points.get(id) }]));
  }

  /** Exports points with the time of their arrival, and apart those that the usage does not include yet. */
  private async exportPoints(tables: readonly TenantTable[], segments: ReadonlyMap<string, Segment>): Promise<void> {
    const parent = tables.find(({ name }) => name === pointsTable)!;
    for (const counted of [true, false]) {
      const sources = [
        ...(counted ? [parent] : []),
        ...tables.filter(({ name }) => segments.get(name)?.counted === counted),
      ];
      if (sources.length === 0) continue;
      const columns = [...parent.columns, 'received'];
      await this.parts.write({ table: pointsTable, columns, counted });
      for (const source of sources) {
        const values = columns.map((column) => (source.columns.includes(column) ? `t.${column}::text` : 'NULL'));
        const segment = segments.get(source.name);
        const condition = segment ? await pointsOfTenant(this.tx, this.tenantId, segment) : 'tenant_id = $1';
        await this.exportRows(source.name, {
          ...{ row: `ARRAY[${values.join(', ')}]`, from: `ONLY ${source.name} t WHERE ${condition}`, order: '' },
        });
      }
    }
  }

  /** Exports rows of a table `t`, a few at a time where they are large: tenants may have many of megabytes. */
  private async exportRows(
    table: string,
    { row, from, order }: { readonly row: string; readonly from: string; readonly order: string },
  ): Promise<void> {
    const pieces = sizedPieces(rowsAtOnce, await textBytes(this.tx, table), order);
    // As JSON, which is read many times faster than an array.
    const text = `SELECT to_json(${row}) AS row, ${pieces.column} FROM ${from} ${order}`;
    const query = { name: 'exported', text, values: [this.tenantId] };
    for await (const rows of readCursor<{ row: (string | null)[] }>(this.tx, query, pieces.count)) {
      for (const { row: line } of rows) await this.parts.write(line);
      this.rows += rows.length;
    }
  }

  /** Exports artifacts of other stores as if they were in the database. Follows the rows of artifact_chunks. */
  private async exportParts(chunks: TenantTable): Promise<void> {
    const { rows } = await this.tx.query<{
      sha256: string;
      store: string;
      size: number;
      starts: number[];
      names: string[];
      sizes: number[];
    }>(
      `SELECT '\\x' || encode(p.sha256, 'hex') AS sha256, a.store, a.size_bytes::float8 AS size,
         array_agg(p.start_byte::float8 ORDER BY p.start_byte) AS starts, array_agg(p.name ORDER BY p.start_byte) AS names,
         array_agg(p.size_bytes ORDER BY p.start_byte) AS sizes
       FROM artifact_parts p JOIN artifacts a USING (tenant_id, sha256)
       WHERE p.tenant_id = $1 AND NOT a.staged AND a.store <> '' GROUP BY p.sha256, a.store, a.size_bytes`,
      [this.tenantId],
    );
    for (const { sha256, store, starts, names, sizes } of rows) {
      for (const [index, name] of names.entries()) {
        const bytes = await this.parts.artifacts.at(store).read(name, 0, sizes[index]!);
        for (let at = 0; at < bytes.length; at += chunkBytes) {
          const known: Record<string, string> = {
            ...{ tenant_id: this.tenantId, sha256, chunk_index: String((starts[index]! + at) / chunkBytes) },
            data: `\\x${bytes.subarray(at, at + chunkBytes).toString('hex')}`,
          };
          await this.parts.write(exportedColumns(chunks).map((column) => known[column] ?? null));
          this.rows += 1;
        }
      }
    }
  }

  private async exportColdFiles(): Promise<void> {
    const { rows } = await this.tx.query<NamedFile & { bytes: number } & Record<string, unknown>>(
      `SELECT file_id AS "fileId", tenant_id AS "tenantId", date::text AS date, attempt_id AS "attemptId", bytes::float8 AS bytes
       FROM cold_files WHERE tenant_id = $1 AND state = 'live'`,
      [this.tenantId],
    );
    if (rows.length > 0 && !this.parts.coldStore) {
      throw new TransferError('KELLET_COLD_URL is not set, but points of the tenant are in cold storage');
    }
    for (const file of rows) {
      for (let at = 0; at < file.bytes; at += pieceBytes) {
        const length = Math.min(pieceBytes, file.bytes - at);
        const data = await this.readFile(file, at, length);
        const last = at + length === file.bytes;
        await this.parts.write({ file: nameOf(file, 'own'), data: data.toString('base64'), last });
      }
    }
  }

  /** Reads a piece of a file, which may be on its way to its folder. */
  private async readFile(file: NamedFile, offset: number, length: number): Promise<Buffer> {
    for (const place of [...places, 'own'] as const) {
      try {
        return await this.parts.coldStore!.read(nameOf(file, place), offset, length);
      } catch (error) {
        if (!(error instanceof MissingObjectError)) throw error;
      }
    }
    throw new TransferError(`the cold file ${nameOf(file, 'own')} is missing`);
  }
}

/** Returns the names of the migrations of a database. */
export async function migrationsOf(tx: Transaction): Promise<string[]> {
  const { rows } = await tx.query<{ name: string }>('SELECT name FROM schema_migrations ORDER BY name');
  return rows.map((row) => row.name);
}
