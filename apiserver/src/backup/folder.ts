// The folder of a backup: files of rows (gzip of one JSON text a line), the objects of stores, and a manifest, which is
// written last: without it the backup is not complete.
import { createHash } from 'node:crypto';
import { mkdir, open, readdir, readFile, rename } from 'node:fs/promises';
import { join } from 'node:path';
import { createGunzip, createGzip } from 'node:zlib';
import { DamagedFile, readCompressedLines, writeCompressedLines } from '../platform/compressed-lines.ts';
import type { SequencePosition, Table } from './tables.ts';

/** A table and its file, `tables/NAME.gz`. */
export interface StoredTable extends Table {
  readonly rows: number;
  /** Of its lines, hex. */
  readonly sha256: string;
}

/** An object of a store, in the file `objects/FILE`. */
export interface StoredObject {
  readonly kind: 'cold' | 'artifact';
  readonly file: string;
  /** Its name in the store. */
  readonly name: string;
  readonly bytes: number;
  readonly sha256: string;
}

/** What a backup consists of. */
export interface Manifest {
  readonly format: 1;
  readonly created_at: string;
  /** Of the schema; a backup is restored into the same. */
  readonly migrations: readonly string[];
  readonly tables: readonly StoredTable[];
  readonly sequences: readonly SequencePosition[];
  /** The lines of `objects.gz`. */
  readonly objects: { readonly rows: number; readonly sha256: string };
}

const manifestName = 'manifest.json';
/** Backups contain personal data and hashes of credentials. */
const folderMode = 0o700;
const fileMode = 0o600;

/** Creates the folder of a new backup. Throws if it is not empty. */
export async function createFolder(folder: string): Promise<void> {
  await mkdir(folder, { recursive: true, mode: folderMode });
  if ((await readdir(folder)).length > 0) throw new Error(`${folder} is not empty`);
  for (const name of ['tables', 'objects']) await mkdir(join(folder, name), { mode: folderMode });
}

/** Writes lines to a compressed file, durably. Returns their number and SHA-256. */
export async function writeLines(
  path: string,
  pieces: AsyncIterable<readonly string[]>,
): Promise<{ rows: number; sha256: string }> {
  const hash = createHash('sha256');
  let rows = 0;
  await writeCompressedLines(path, createGzip({ level: 1 }), async (write) => {
    for await (const piece of pieces) {
      const text = piece.map((line) => `${JSON.stringify(line)}\n`).join('');
      rows += piece.length;
      hash.update(text);
      await write(text);
    }
  });
  return { rows, sha256: hash.digest('hex') };
}

/** Lines that are yielded at once: so many, or fewer if they have so many characters. */
const mostLines = 1000;
const mostCharacters = 4 * 1024 * 1024;

/** Yields the lines of a file. Throws at its end if it does not match the manifest. */
export async function* readLines(
  path: string,
  expected: { readonly rows: number; readonly sha256: string },
): AsyncGenerator<string[]> {
  const hash = createHash('sha256');
  let [rows, characters] = [0, 0];
  let piece: string[] = [];
  for await (const text of readCompressedLines(path, createGunzip())) {
    hash.update(`${text}\n`);
    piece.push(parseLine(path, text));
    rows += 1;
    characters += text.length;
    if (piece.length < mostLines && characters < mostCharacters) continue;
    yield piece;
    [piece, characters] = [[], 0];
  }
  if (piece.length > 0) yield piece;
  if (rows !== expected.rows || hash.digest('hex') !== expected.sha256) throw new DamagedFile(path);
}

function parseLine(path: string, text: string): string {
  try {
    return JSON.parse(text) as string;
  } catch {
    // The error would quote the line.
    throw new DamagedFile(path);
  }
}

/** Writes a file durably. */
export async function writeDurably(path: string, bytes: Buffer | string): Promise<void> {
  const file = await open(path, 'wx', fileMode);
  try {
    await file.writeFile(bytes);
    await file.sync();
  } finally {
    await file.close();
  }
}

/** Writes the manifest, which completes the backup. */
export async function writeManifest(folder: string, manifest: Manifest): Promise<void> {
  const path = join(folder, manifestName);
  await writeDurably(`${path}.partial`, `${JSON.stringify(manifest, undefined, 2)}\n`);
  await rename(`${path}.partial`, path);
  for (const name of ['tables', 'objects', '.']) {
    const directory = await open(join(folder, name));
    await directory.sync().finally(() => directory.close());
  }
}

/** Reads the manifest. Throws if the backup is not complete, or of another format. */
export async function readManifest(folder: string): Promise<Manifest> {
  const text = await readFile(join(folder, manifestName), 'utf8').catch((error: unknown) => {
    throw new Error(`${folder} is not a complete backup: it has no ${manifestName}`, { cause: error });
  });
  const manifest = JSON.parse(text) as Manifest;
  if ((manifest.format as number) !== 1) throw new Error(`${folder} is a backup of another format`);
  return manifest;
}
