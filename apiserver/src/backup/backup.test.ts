// A backup taken under load, restored into an empty installation, which fsck finds clean.
import { createHash } from 'node:crypto';
import { mkdtemp, readdir, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { gunzipSync, gzipSync } from 'node:zlib';
import { expect } from 'chai';
import pg from 'pg';
import { readConfig } from '../config/config.ts';
import { runFsckCommand } from '../fsck/fsck-command.ts';
import { TestInstallation } from '../fsck/testing/test-installation.ts';
import { sleep } from '../platform/clock.ts';
import { Database } from '../platform/database/database.ts';
import { migrate } from '../platform/database/migrate.ts';
import { newId } from '../platform/ids.ts';
import { createLogger } from '../platform/observability/logger.ts';
import { runBackupCommand, runRestoreCommand } from './backup-command.ts';
import type { Manifest, StoredObject } from './folder.ts';
import { listTables } from './tables.ts';

const logger = createLogger('silent');

describe('kellet-apiserver backup and restore', function () {
  this.timeout(240_000);
  let installation: TestInstallation;
  let folder: string;
  let backup: string;
  let url: string;
  let name: string;

  type Command = typeof runBackupCommand;
  async function run(command: Command, args: string[], environment: Record<string, string> = {}) {
    const notes: string[] = [];
    const code = await command(args, {
      readConfig: () => readConfig({ ...installation.settings, ...environment }, []),
      logger,
      write: (line) => notes.push(line),
      note: (line) => notes.push(line),
    });
    return { code, notes: notes.join('\n') };
  }
  const elsewhere = () => ({
    KELLET_DATABASE_URL: url,
    KELLET_COLD_URL: pathToFileURL(join(folder, 'cold')).href,
    KELLET_ARTIFACT_STORE: pathToFileURL(join(folder, 'artifacts')).href,
  });
  async function onServer(statement: string): Promise<void> {
    const admin = new pg.Client({ connectionString: process.env['KELLET_TEST_DATABASE_URL'] });
    await admin.connect();
    await admin.query(statement).finally(() => admin.end());
  }
  async function newDatabase(): Promise<void> {
    name = `test_${newId().replaceAll('-', '')}`;
    await onServer(`CREATE DATABASE ${name} OWNER kellet_test`);
    const parsed = new URL(installation.settings['KELLET_DATABASE_URL']!);
    parsed.pathname = `/${name}`;
    url = parsed.href;
  }
  const fsck = async (environment: Record<string, string> = {}) => {
    const lines: string[] = [];
    const code = await runFsckCommand(['--json'], {
      readConfig: () => readConfig({ ...installation.settings, ...environment }, []),
      // Notes of progress come only when it takes long.
      ...{ logger, write: (line) => lines.push(line), note: () => undefined },
      recheck: { rounds: 2, milliseconds: 500 },
    });
    return { code, output: lines.join('\n') };
  };

  before(async () => {
    folder = await mkdtemp(join(tmpdir(), 'kellet-backup-'));
    backup = join(folder, 'backup');
    installation = await TestInstallation.start();
    await installation.sendPoints(60);
    await installation.addAuditEvents(3);
    await installation.confirmAll();
    await installation.turnCold();
    await installation.sendPoints(60);
    await installation.putArtifact('postgres', 150_000);
    await installation.addPackage(
      await installation.putArtifact(installation.settings['KELLET_ARTIFACT_STORE']!, 3_000_000),
    );
    await newDatabase();
  });
  after(async () => {
    await onServer(`DROP DATABASE IF EXISTS ${name} WITH (FORCE)`);
    await installation.stop();
    await rm(folder, { recursive: true, force: true });
  });

  it('takes a backup while points arrive, batches are anchored and points turn cold', async () => {
    let isDone = false;
    const load = (async () => {
      while (!isDone) {
        await installation.sendPoints(20);
        await installation.anchoring.devchain.control('mine', { count: 1 });
        await sleep(200);
      }
    })();
    try {
      const { code, notes } = await run(runBackupCommand, [backup]);
      expect(code, notes).to.equal(0);
    } finally {
      isDone = true;
      await load;
    }
    expect((await stat(backup)).mode & 0o077).to.equal(0);
    const files = await readdir(backup, { recursive: true });
    expect(files).to.include.members(['manifest.json', 'objects.gz', 'tables/anchor_batches.gz']);
    for (const file of files) expect((await stat(join(backup, file))).mode & 0o077, file).to.equal(0);
  });

  it('refuses a folder that is not empty', async () => {
    const { code, notes } = await run(runBackupCommand, [backup]);
    expect([code, notes]).to.deep.equal([1, `kellet-apiserver: ${backup} is not empty`]);
  });

  it('refuses a damaged or incomplete backup and leaves the database empty', async () => {
    for (const file of ['tables/anchor_batches.gz', 'objects/1', 'manifest.json']) {
      const path = join(backup, file);
      const bytes = await readFile(path);
      const damaged = Buffer.from(bytes);
      if (file === 'manifest.json') await rm(path);
      else await writeFile(path, damaged.fill(0, damaged.length >> 1, (damaged.length >> 1) + 20));
      const { code, notes } = await run(runRestoreCommand, [backup], elsewhere());
      await writeFile(path, bytes, { mode: 0o600 });
      expect(code, `${file}: ${notes}`).to.equal(1);
    }
  });

  it('restores it into an empty installation, which then equals the first one', async () => {
    const { code, notes } = await run(runRestoreCommand, [backup], elsewhere());
    expect(code, notes).to.equal(0);
    const { code: clean, output } = await fsck(elsewhere());
    expect(clean, output).to.equal(0);
    const { checked } = JSON.parse(output) as { checked: Record<string, number> };
    // What has just arrived is not in the latest values yet.
    const { latest_values: _, ...others } = checked;
    for (const [what, count] of Object.entries(others)) expect(count, what).to.be.above(0);
    const database = new Database(url, logger);
    try {
      const originals = await installation.database.system((tx) => listTables(tx));
      const restored = await database.system((tx) => listTables(tx));
      const fixed = (tables: typeof originals) => tables.filter(({ parent }) => parent === null);
      expect(fixed(restored)).to.deep.equal(fixed(originals));
      // What never changes is the same to the letter.
      const read = (from: Database) =>
        from.system((tx) => tx.query('SELECT * FROM block_headers WHERE height < 5 ORDER BY height'));
      expect((await read(database)).rows).to.deep.equal((await read(installation.database)).rows);
      const triggers = async (from: Database) =>
        (
          await from.system((tx) =>
            tx.query<{ n: number }>(
              `SELECT count(*)::int4 AS n FROM pg_trigger WHERE NOT tgisinternal AND tgenabled = 'O'`,
            ),
          )
        ).rows;
      expect(await triggers(database)).to.deep.equal(await triggers(installation.database));
      // A process can go on: a new segment takes the next number.
      await database.system((tx) => tx.query(`SELECT telemetry_open_hot_segment(gen_random_uuid())`));
    } finally {
      await database.close();
    }
  });

  it('refuses a database with rows', async () => {
    const { code, notes } = await run(runRestoreCommand, [backup], elsewhere());
    expect(code).to.equal(1);
    expect(notes).to.contain('the database is not empty');
  });

  it('refuses stores with other objects of the same names, or without a setting', async () => {
    await onServer(`DROP DATABASE ${name} WITH (FORCE)`);
    await newDatabase();
    const file = (await readdir(join(folder, 'cold'), { recursive: true })).find((one) => one.endsWith('.parquet'))!;
    await writeFile(join(folder, 'cold', file), Buffer.alloc((await stat(join(folder, 'cold', file))).size));
    for (const [environment, why] of [
      [{}, 'the store is not empty'],
      [{ KELLET_COLD_URL: '' }, 'set KELLET_COLD_URL'],
    ] as const) {
      const { code, notes } = await run(runRestoreCommand, [backup], { ...elsewhere(), ...environment });
      expect(code).to.equal(1);
      expect(notes).to.contain(why);
    }
  });

  it('refuses names outside of a store or of the schema', async () => {
    const manifest = join(backup, 'manifest.json');
    const objects = join(backup, 'objects.gz');
    const [originalManifest, originalObjects] = [await readFile(manifest, 'utf8'), await readFile(objects)];
    const parsed = JSON.parse(originalManifest) as Manifest;
    try {
      const lines = gunzipSync(originalObjects).toString('utf8').split('\n');
      const first = JSON.parse(JSON.parse(lines[0]!) as string) as StoredObject;
      lines[0] = JSON.stringify(JSON.stringify({ ...first, name: '../outside' }));
      await writeFile(objects, gzipSync(lines.join('\n')));
      const sha256 = createHash('sha256').update(lines.join('\n')).digest('hex');
      await writeFile(manifest, JSON.stringify({ ...parsed, objects: { ...parsed.objects, sha256 } }));
      const { code, notes } = await run(runRestoreCommand, [backup], {
        ...elsewhere(),
        KELLET_COLD_URL: pathToFileURL(join(folder, 'new/cold')).href,
        KELLET_ARTIFACT_STORE: pathToFileURL(join(folder, 'new/artifacts')).href,
      });
      expect(code).to.equal(1);
      expect(notes).to.contain('not the name of an object');
      await writeFile(objects, originalObjects);
      const tables = parsed.tables.map((table) =>
        table.name.startsWith('leaf_index_') ? { ...table, columns: [...table.columns, 'x" int); --'] } : table,
      );
      await writeFile(manifest, JSON.stringify({ ...parsed, tables }));
      const refused = await run(runRestoreCommand, [backup], {
        ...elsewhere(),
        KELLET_COLD_URL: pathToFileURL(join(folder, 'newer/cold')).href,
      });
      expect(refused.code).to.equal(1);
      expect(refused.notes).to.contain('other columns');
    } finally {
      await writeFile(objects, originalObjects);
      await writeFile(manifest, originalManifest);
    }
  });

  it('refuses a backup of another version', async () => {
    const database = new Database(url, logger);
    await migrate(database, logger);
    await database.system((tx) => tx.query(`INSERT INTO schema_migrations (name, checksum) VALUES ('9999', '')`));
    await database.close();
    const { code, notes } = await run(runRestoreCommand, [backup], elsewhere());
    expect(code).to.equal(1);
    expect(notes).to.contain('another version');
  });

  for (const args of [[], ['a', 'b'], ['--json']]) {
    it(`returns 2 for ${JSON.stringify(args)}`, async () => {
      for (const command of [runBackupCommand, runRestoreCommand]) {
        expect((await run(command, args)).code).to.equal(2);
      }
    });
  }
});
