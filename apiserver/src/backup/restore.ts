// Restores a backup into an empty database and the configured stores.
import { createHash } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { relocateArtifacts } from '../device-link/ota/artifacts/artifact-store.ts';
import type { ArtifactStores } from '../device-link/ota/artifacts/artifact-stores.ts';
import type { Database, Transaction } from '../platform/database/database.ts';
import { appliedMigrations, migrate, pendingMigrations } from '../platform/database/migrate.ts';
import { MissingObjectError, type ObjectStore } from '../platform/object-store/object-store.ts';
import type { Logger } from '../platform/observability/logger.ts';
import { prepareForTexts } from '../platform/statements/row-texts.ts';
import { forgetSuperseded } from '../telemetry/cold/cold-file-store.ts';
import { indexRestoredSegments, recreateSegmentTable } from '../telemetry/write/segments.ts';
import { type Manifest, readLines, readManifest, type StoredObject, type StoredTable } from './folder.ts';
import { disableTriggers, enableTriggers, insertRows, listTables, setSequence, tableWithRows } from './tables.ts';

/** What a backup is restored into. */
export interface RestoreTarget {
  readonly database: Database;
  /** Undefined: there is no cold storage. */
  readonly cold: ObjectStore | undefined;
  readonly artifacts: ArtifactStores;
  readonly logger: Logger;
  readonly note: (line: string) => void;
}

/**
 * Restores a backup. Throws, having changed no table, if the database is not empty, the backup is damaged or of another
 * version, or a store holds other objects of the same names.
 */
export async function restore(target: RestoreTarget, folder: string): Promise<void> {
  const { database, logger, note } = target;
  const manifest = await readManifest(folder);
  await refuseRows(database);
  await migrate(database, logger);
  await refuseOtherVersion(database, manifest);
  // Objects first: rows must not refer to missing objects. An interrupted restore can be repeated.
  const objects = await putObjects(target, folder, manifest);
  await database.maintenance(async (tx) => {
    await prepareForTexts(tx);
    const full = await tableWithRows(tx, await listTables(tx));
    if (full !== undefined) throw new Error(`the database is not empty: ${full} has rows`);
    await restoreTables(tx, folder, manifest.tables, note);
    for (const position of manifest.sequences) await setSequence(tx, position);
    await indexRestoredSegments(tx);
    await forgetSuperseded(tx);
    if (objects.artifacts > 0) await relocateArtifacts(tx, target.artifacts.current);
  });
  note(`${manifest.tables.length} tables and ${manifest.objects.rows} objects are restored`);
}

/** Throws if a table of Kellet has rows, before the database is migrated. */
async function refuseRows(database: Database): Promise<void> {
  if (!(await hasSchema(database))) return;
  const full = await database.maintenance(async (tx) => tableWithRows(tx, await listTables(tx)));
  if (full !== undefined) throw new Error(`the database is not empty: ${full} has rows`);
}

async function hasSchema(database: Database): Promise<boolean> {
  const { rows } = await database.systemRead((tx) =>
    tx.query<{ exists: boolean }>(`SELECT to_regclass('schema_migrations') IS NOT NULL AS exists`),
  );
  return rows[0]!.exists;
}

async function refuseOtherVersion(database: Database, { migrations }: Manifest): Promise<void> {
  const pending = await pendingMigrations(database);
  const applied = await database.systemRead((tx) => appliedMigrations(tx));
  if (pending.length === 0 && applied.join() === migrations.join()) return;
  const last = (migrations.at(-1) ?? '').split(' ')[0]!;
  throw new Error(
    `the backup has the schema of another version, up to ${last}: restore it with that version into an empty database, then upgrade`,
  );
}

async function restoreTables(
  tx: Transaction,
  folder: string,
  tables: readonly StoredTable[],
  note: (line: string) => void,
): Promise<void> {
  // The manifest may have been tampered with: only existing tables and columns, or those of segments, are accepted.
  for (const { name, parent, columns } of tables) {
    if (parent !== null) await recreateSegmentTable(tx, name, columns);
  }
  const known = new Map((await listTables(tx)).map(({ name, columns }) => [name, columns.join()]));
  for (const table of tables) {
    if (known.get(table.name) !== table.columns.join()) {
      throw new Error(`the table ${table.name} has other columns than in the backup`);
    }
    await disableTriggers(tx, table.name);
    for await (const rows of readLines(join(folder, 'tables', `${table.name}.gz`), table)) {
      await insertRows(tx, table, rows);
    }
    await enableTriggers(tx, table.name);
    if (table.rows > 0) note(`${table.name}: ${table.rows} rows`);
  }
}

/** Writes the objects into the configured stores and returns their numbers. */
async function putObjects(
  target: RestoreTarget,
  folder: string,
  { objects }: Manifest,
): Promise<{ artifacts: number }> {
  let artifacts = 0;
  for await (const lines of readLines(join(folder, 'objects.gz'), objects)) {
    for (const line of lines) {
      const object = JSON.parse(line) as StoredObject;
      if (!/^\d+$/.test(object.file)) throw new Error('the backup is damaged: an object has no number');
      const bytes = await readFile(join(folder, 'objects', object.file));
      if (createHash('sha256').update(bytes).digest('hex') !== object.sha256) {
        throw new Error(`${join(folder, 'objects', object.file)} is damaged`);
      }
      if (!objectName.test(object.name)) throw new Error(`${object.name} is not the name of an object`);
      await putObject(storeOf(target, object), object.name, bytes);
      if (object.kind === 'artifact') artifacts += 1;
    }
  }
  return { artifacts };
}

function storeOf({ cold, artifacts }: RestoreTarget, { kind }: StoredObject): ObjectStore {
  if (kind === 'cold') {
    if (!cold) throw new Error('the backup has cold files: set KELLET_COLD_URL');
    return cold;
  }
  if (artifacts.current === '') {
    throw new Error(
      'the backup has artifacts outside of the database: set KELLET_ARTIFACT_STORE to a folder or bucket',
    );
  }
  return artifacts.at(artifacts.current);
}

/** The form of object names, none of which leads out of a store. */
const objectName = /^(?!\.)[a-z0-9_=.-]+(\/(?!\.)[a-z0-9_=.-]+)*$/;

/** Writes an object. Throws if the store has another of that name. */
async function putObject(store: ObjectStore, name: string, bytes: Buffer): Promise<void> {
  const refuse = () => new Error(`the store is not empty: it has another object ${name}`);
  try {
    if ((await store.read(name, 0, bytes.length)).equals(bytes)) return;
    throw refuse();
  } catch (error) {
    if (!(error instanceof MissingObjectError)) throw error;
  }
  await store.put(name, bytes);
}
