// Imports an exported tenant, all or nothing: its rows are written in one transaction, and cold files without rows are
// ignored.
import type { Database, Transaction } from '../platform/database/database.ts';
import { newId } from '../platform/ids.ts';
import type { ObjectStore } from '../platform/object-store/object-store.ts';
import { prepareForTexts } from '../platform/statements/row-texts.ts';
import { fileBytes } from '../telemetry/cold/file-layout.ts';
import { adoptOpenBatches, beginImport, closeWriter, openImportedSegment } from '../telemetry/write/writer-closing.ts';
import { deletionOf, notifyTenantChanged } from '../tenants/tenant-store.ts';
import { resealer, secretsKey } from './reseal.ts';
import { migrationsOf, TransferError } from './tenant-export.ts';
import { ofTenant, type TenantTable, tenantTables } from './tenant-tables.ts';
import {
  exportedTables,
  type FileLine,
  type Header,
  type Line,
  pointsTable,
  type TableLine,
} from './transfer-format.ts';

const rowsAtOnce = 500;
const charactersAtOnce = 8 * 1024 * 1024;
/** PostgreSQL's code for a row that refers to none. */
const foreignKeyViolation = '23503';

/** Maximum number of rows in a segment, as for writers. */
const segmentRows = 1_000_000;

/** Limit on a cold file, which is in memory until it is complete: a file ends at `fileBytes`, and its last rows and index follow. */
const mostFileBytes = 2 * fileBytes;

/** What an import writes to. */
export interface ImportParts {
  readonly database: Database;
  readonly coldStore: ObjectStore | undefined;
  readonly controlSecret: string;
  /** The control secret of the installation that the tenant comes from, if it is another one. */
  readonly sourceControlSecret: string | undefined;
  /** Called when a table is complete. */
  readonly imported?: (table: string, rows: number) => void;
}

/**
 * Imports a tenant from its lines, and returns its id and the number of rows. Throws TransferError, in which case no row was
 * written, if the database has the tenant or had it, if its schema is another one, or if the lines are not complete.
 */
export function importTenant(parts: ImportParts, tenantId: string, lines: AsyncIterable<Line>): Promise<number> {
  return parts.database.maintenance(async (tx) => {
    await tx.query('SET LOCAL statement_timeout = 0');
    await prepareForTexts(tx);
    return new Import(parts, tx, tenantId).run(lines);
  });
}

const isHeader = (line: Line | undefined): line is Header =>
  line !== undefined && 'format' in line && line.format === 'kellet-tenant' && line.version === 1;

class Import {
  private readonly parts: ImportParts;
  private readonly tx: Transaction;
  private readonly tenantId: string;
  private readonly tables = new Map<string, TenantTable>();
  /** Takes the place of the writers of open batches; closed at the end. */
  private readonly writerId = newId();
  private sourceSecret: string | undefined;
  private table: TableLine | undefined;
  private convert: (row: Readonly<Record<string, string | null>>) => Readonly<Record<string, string | null>> = (row) =>
    row;
  private isResealed = false;
  private pending: (string | null)[][] = [];
  private characters = 0;
  private rows = 0;
  private rowsOfTable = 0;
  private segment = { table: '', rows: segmentRows };
  /** The cold file whose pieces are being read. */
  private file: { readonly name: string; readonly pieces: Buffer[]; bytes: number } | undefined;

  constructor(parts: ImportParts, tx: Transaction, tenantId: string) {
    this.parts = parts;
    this.tx = tx;
    this.tenantId = tenantId;
  }

  async run(lines: AsyncIterable<Line>): Promise<number> {
    const { tx } = this;
    let header: Header | undefined;
    let expected: number | undefined;
    for await (const line of lines) {
      if (!header) {
        if (!isHeader(line)) throw new TransferError('this is not an exported tenant');
        await this.begin((header = line));
      } else if (Array.isArray(line)) await this.addRow(line as (string | null)[]);
      else if ('table' in line) await this.beginTable(line);
      else if ('file' in line) await this.addFile(line);
      else if ('end' in line) expected = line.rows;
    }
    await this.endTable();
    if (expected !== this.rows || this.file) throw new TransferError('the file is cut off');
    await closeWriter(tx, this.writerId);
    await notifyTenantChanged(tx, this.tenantId);
    return this.rows;
  }

  private async begin(header: Header): Promise<void> {
    const { tx, tenantId, parts } = this;
    if (header.tenant_id !== tenantId) throw new TransferError(`this is an export of the tenant ${header.tenant_id}`);
    const known = new Set(await migrationsOf(tx));
    const foreign = header.migrations.filter((name) => !known.delete(name));
    if (foreign.length > 0 || known.size > 0) {
      throw new TransferError(
        `the tenant was exported by another release (${[...foreign, ...known].join(', ')}): export it with this one`,
      );
    }
    if (await deletionOf(tx, tenantId)) throw new TransferError(`this installation has or had a tenant ${tenantId}`);
    if (header.secrets_key !== secretsKey(parts.controlSecret)) {
      this.isResealed = true;
      this.sourceSecret = parts.sourceControlSecret;
      if (this.sourceSecret !== undefined && header.secrets_key !== secretsKey(this.sourceSecret)) {
        throw new TransferError('KELLET_SOURCE_CONTROL_SECRET is not the control secret of the exporting installation');
      }
    }
    for (const table of exportedTables((await tenantTables(tx)).tables)) this.tables.set(table.name, table);
    await beginImport(tx, this.writerId);
  }

  private async beginTable(line: TableLine): Promise<void> {
    await this.endTable();
    const table = this.tables.get(line.table);
    const types = table && this.typesOf(line.table);
    if (
      !table ||
      !line.columns.every((column) => types!.has(column) || (line.table === pointsTable && column === 'received'))
    ) {
      throw new TransferError(`the table ${line.table} of the export is unknown here`);
    }
    // Rows without it would be the platform's, such as its administrators.
    if (typeof table.owner === 'string' && !line.columns.includes(table.owner)) {
      throw new TransferError(`the rows of ${line.table} do not say whose they are`);
    }
    this.table = line;
    this.convert = this.isResealed ? resealer(line.table, this.sourceSecret, this.parts.controlSecret) : (row) => row;
    this.segment = { table: '', rows: segmentRows };
    // Rows that triggers added when rows of other tables were inserted.
    if (line.table !== pointsTable && line.table !== 'tenants') {
      await this.tx.query(`DELETE FROM ONLY ${line.table} t WHERE ${ofTenant(table, 't')}`, [this.tenantId]);
    }
  }

  private async addRow(row: (string | null)[]): Promise<void> {
    if (!this.table || row.length !== this.table.columns.length) throw new TransferError('the file is damaged');
    const { columns, table } = this.table;
    const named = this.convert(Object.fromEntries(columns.map((column, index) => [column, row[index]!])));
    const owner = named['tenant_id'];
    if (owner !== undefined && owner !== this.tenantId)
      throw new TransferError(`a row of ${table} belongs to another tenant`);
    this.pending.push(columns.map((column) => named[column] ?? null));
    this.characters += row.reduce((sum, value) => sum + (value?.length ?? 0), 0);
    if (this.pending.length >= rowsAtOnce || this.characters >= charactersAtOnce) await this.flush();
  }

  private async flush(): Promise<void> {
    if (!this.table || this.pending.length === 0) return;
    const { table, columns } = this.table;
    const types = this.typesOf(table);
    const values = columns.map((column, index) => `(v->>${index})::${types.get(column) ?? 'int8'}`);
    const target = table === pointsTable ? await this.openSegment() : table;
    try {
      await this.tx.query(
        `INSERT INTO ${target} (${columns.join(', ')}) SELECT ${values.join(', ')}
         FROM json_array_elements($1::json) WITH ORDINALITY AS rows (v, n) ORDER BY n`,
        [JSON.stringify(this.pending)],
      );
    } catch (error) {
      const isForeign = (error as { code?: unknown }).code === foreignKeyViolation;
      throw isForeign ? new TransferError(`rows of ${table} refer to rows that the tenant does not have`) : error;
    }
    this.rows += this.pending.length;
    this.rowsOfTable += this.pending.length;
    this.segment.rows += this.pending.length;
    this.pending = [];
    this.characters = 0;
  }

  /** Returns the table of the segment that takes the next points. */
  private async openSegment(): Promise<string> {
    if (this.segment.rows >= segmentRows) {
      const table = await openImportedSegment(this.tx, this.writerId, this.table!.counted ?? false);
      this.segment = { table, rows: 0 };
    }
    return this.segment.table;
  }

  private async endTable(): Promise<void> {
    if (!this.table) return;
    await this.flush();
    const { table } = this.table;
    if (table === 'anchor_batches') await adoptOpenBatches(this.tx, this.writerId, this.tenantId);
    await this.checkOwner(table);
    this.parts.imported?.(table, this.rowsOfTable);
    this.rowsOfTable = 0;
    this.table = undefined;
  }

  /**
   * Throws TransferError if rows of a table without a tenant_id belong to another tenant, or if rows refer to those of
   * another tenant: an imported session of another tenant's user would sign in as that user.
   */
  private async checkOwner(name: string): Promise<void> {
    const table = this.tables.get(name)!;
    const { tx, tenantId } = this;
    if (typeof table.owner !== 'string') {
      const { rows } = await tx.query<{ rows: bigint }>(
        `SELECT count(*) AS rows FROM ${name} t WHERE ${ofTenant(table, 't')}`,
        [tenantId],
      );
      if (rows[0]!.rows !== BigInt(this.rowsOfTable))
        throw new TransferError(`rows of ${name} belong to another tenant`);
    }
    for (const { table: other, columns, referencedColumns } of table.references) {
      if (this.tables.get(other)?.owner !== 'tenant_id' || referencedColumns.includes('tenant_id')) continue;
      const matches = columns.map((column, index) => `o.${referencedColumns[index]} = t.${column}`);
      const { rowCount } = await tx.query(
        `SELECT FROM ${name} t JOIN ${other} o ON ${matches.join(' AND ')}
         WHERE ${ofTenant(table, 't')} AND o.tenant_id IS DISTINCT FROM $1 LIMIT 1`,
        [tenantId],
      );
      if (rowCount !== 0) throw new TransferError(`rows of ${name} refer to rows of another tenant`);
    }
  }

  private async addFile({ file, data, last }: FileLine): Promise<void> {
    await this.endTable();
    const { coldStore } = this.parts;
    if (!coldStore) throw new TransferError('the tenant has points in cold storage: set KELLET_COLD_URL');
    const isName = new RegExp(`^tenant_id=${this.tenantId}/date=\\d{4}-\\d\\d-\\d\\d/[-0-9a-f]{36}\\.parquet$`);
    if (!isName.test(file)) throw new TransferError('the name of a cold file is damaged');
    this.file ??= { name: file, pieces: [], bytes: 0 };
    const piece = Buffer.from(data, 'base64');
    this.file.pieces.push(piece);
    this.file.bytes += piece.length;
    if (this.file.name !== file) throw new TransferError(`the cold file ${this.file.name} is cut off`);
    if (this.file.bytes > mostFileBytes) throw new TransferError(`the cold file ${file} is larger than any`);
    if (!last) return;
    await coldStore.put(file, Buffer.concat(this.file.pieces));
    this.file = undefined;
  }

  /** Returns the types of a table's columns. */
  private typesOf(name: string): Map<string, string> {
    const { columns, types } = this.tables.get(name)!;
    return new Map(columns.map((column, index) => [column, types[index]!]));
  }
}
