// Takes a backup: all tables in one snapshot, and the objects of stores that it names.
import { createHash } from 'node:crypto';
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { listAllParts } from '../device-link/ota/artifacts/artifact-store.ts';
import type { ArtifactStores } from '../device-link/ota/artifacts/artifact-stores.ts';
import type { Database, Transaction } from '../platform/database/database.ts';
import { appliedMigrations } from '../platform/database/migrate.ts';
import { sqlState } from '../platform/errors.ts';
import { nilId } from '../platform/ids.ts';
import { MissingObjectError, type ObjectStore } from '../platform/object-store/object-store.ts';
import { prepareForTexts } from '../platform/statements/row-texts.ts';
import { listLiveFiles, liveFile } from '../telemetry/cold/cold-file-store.ts';
import { withoutColdWork } from '../telemetry/cold/cold-work.ts';
import { nameOf, places } from '../telemetry/cold/file-layout.ts';
import {
  createFolder,
  readLines,
  type StoredObject,
  type StoredTable,
  writeDurably,
  writeLines,
  writeManifest,
} from './folder.ts';
import { holdTables, listTables, rowTexts, sequencePositions, type Table } from './tables.ts';

/** What a backup is taken from. */
export interface BackupSource {
  readonly database: Database;
  /** Undefined: points stay in the database. */
  readonly cold: ObjectStore | undefined;
  readonly artifacts: ArtifactStores;
  readonly note: (line: string) => void;
}

/** An object that the snapshot refers to, with the names that it may have. */
interface NamedObject {
  readonly kind: StoredObject['kind'];
  /** Of artifacts, the store. */
  readonly store: string;
  readonly names: readonly string[];
  readonly bytes: number;
}

const attempts = 5;
const pageObjects = 500;
const undefinedTable = '42P01';

/** Takes a backup into a folder that does not exist or is empty. */
export async function backUp(source: BackupSource, folder: string): Promise<void> {
  await createFolder(folder);
  const waiting = (): void => source.note('waiting for another process that turns points cold');
  const contents = await withoutColdWork(source.database, waiting, async () => {
    const { named, ...database } = await copyDatabase(source, folder);
    const objects = await writeLines(join(folder, 'objects.gz'), copyObjects(source, folder, named));
    await rm(join(folder, namedFile));
    return { ...database, objects };
  });
  await writeManifest(folder, { format: 1, created_at: new Date().toISOString(), ...contents });
  source.note(`${contents.tables.length} tables and ${contents.objects.rows} objects are in ${folder}`);
}

/** The file with the names of the objects in the snapshot; deleted when they are copied. */
const namedFile = 'named.gz';

/** Copies all tables in one snapshot, and the names of the objects that it refers to. */
async function copyDatabase({ database, note }: BackupSource, folder: string) {
  for (let attempt = 1; attempt <= attempts; attempt += 1) {
    const before = await database.maintenance((tx) => listTables(tx));
    const contents = await database
      .maintenance(async (tx) => {
        await tx.query('SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY');
        await prepareForTexts(tx);
        const tables = await listTables(tx);
        // Tables of the snapshot are listed before it and locked after it: all of them exist until the end.
        if (namesOf(tables) !== namesOf(before)) return undefined;
        await holdTables(tx, tables);
        const stored: StoredTable[] = [];
        for (const table of tables) {
          const facts = await writeLines(join(folder, 'tables', `${table.name}.gz`), rowTexts(tx, table.name));
          stored.push({ ...table, ...facts });
          if (facts.rows > 0) note(`${table.name}: ${facts.rows} rows`);
        }
        const named = await writeLines(join(folder, namedFile), namedObjects(tx));
        return {
          tables: stored,
          named,
          migrations: await appliedMigrations(tx),
          sequences: await sequencePositions(tx),
        };
      })
      .catch((error: unknown) => {
        // Dropped between the snapshot and the lock, before anything was written.
        if (sqlState(error) !== undefinedTable) throw error;
        return undefined;
      });
    if (contents) return contents;
  }
  throw new Error('tables are created and dropped faster than they can be locked: try again');
}

const namesOf = (tables: readonly Table[]): string => tables.map(({ name }) => name).join();

async function* namedObjects(tx: Transaction): AsyncGenerator<string[]> {
  for (let after = nilId; ;) {
    const ids = await listLiveFiles(tx, undefined, after, pageObjects);
    const files = await Promise.all(ids.map((id) => liveFile(tx, id)));
    yield files.flatMap((file): string[] => {
      if (!file) return [];
      const names = [file.place, ...places].map((place) => nameOf(file, place));
      return [JSON.stringify({ kind: 'cold', store: '', names, bytes: file.bytes } satisfies NamedObject)];
    });
    if (ids.length < pageObjects) break;
    after = ids.at(-1)!;
  }
  for (let after = ''; ;) {
    const parts = await listAllParts(tx, after, pageObjects);
    yield parts.map(({ store, name, size }) =>
      JSON.stringify({ kind: 'artifact', store, names: [name], bytes: size } satisfies NamedObject),
    );
    if (parts.length < pageObjects) return;
    after = parts.at(-1)!.name;
  }
}

/** Copies objects and yields what was copied. */
async function* copyObjects(
  source: BackupSource,
  folder: string,
  named: { readonly rows: number; readonly sha256: string },
): AsyncGenerator<string[]> {
  let number = 0;
  for await (const lines of readLines(join(folder, namedFile), named)) {
    for (const line of lines) {
      const object = JSON.parse(line) as NamedObject;
      const bytes = await readObject(source, object);
      number += 1;
      const file = String(number);
      await writeDurably(join(folder, 'objects', file), bytes);
      const sha256 = createHash('sha256').update(bytes).digest('hex');
      const [name] = object.names;
      yield [
        JSON.stringify({ kind: object.kind, file, name: name!, bytes: bytes.length, sha256 } satisfies StoredObject),
      ];
    }
  }
}

/** Reads an object into memory: the sizes of parts of artifacts and of cold files are bounded. */
async function readObject(
  { cold, artifacts }: BackupSource,
  { kind, store, names, bytes }: NamedObject,
): Promise<Buffer> {
  if (kind === 'cold' && !cold) throw new Error('KELLET_COLD_URL is not set, but there are cold files');
  const from = kind === 'cold' ? cold! : artifacts.at(store);
  for (const name of new Set(names)) {
    try {
      return await from.read(name, 0, bytes);
    } catch (error) {
      if (!(error instanceof MissingObjectError)) throw error;
    }
  }
  throw new Error(`${names[0]!} is missing: if it was removed meanwhile, take the backup again; otherwise run fsck`);
}
