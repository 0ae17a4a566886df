// Moves of artifacts between all stores on real services, while they are read, and killed at any moment.
import { type ChildProcess, spawn } from 'node:child_process';
import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { pathToFileURL } from 'node:url';
import { expect } from 'chai';
import { insertTenant } from '../../../auth/testing/test-fixtures.ts';
import { newSigningKey } from '../../../auth/testing/test-platform.ts';
import { sleep } from '../../../platform/clock.ts';
import { createLogger } from '../../../platform/observability/logger.ts';
import { createTestDatabase, type TestDatabase } from '../../../platform/testing/test-database.ts';
import { TestS3 } from '../../../platform/testing/test-s3.ts';
import { putArtifact, testIntake } from '../testing/test-artifacts.ts';
import { ArtifactIntake } from './artifact-intake.ts';
import { ArtifactMove } from './artifact-move.ts';
import { ArtifactReader } from './artifact-reader.ts';
import { beginCopy, partBytes, removeArtifact, stageArtifact } from './artifact-store.ts';
import { ArtifactStores } from './artifact-stores.ts';
import { runArtifactsCommand } from './artifacts-command.ts';

const tenant = 'acme';
const logger = createLogger('silent');
const main = join(import.meta.dirname, '../../../main.ts');

describe('the move of artifacts', function () {
  this.timeout(120_000);
  let test: TestDatabase;
  let s3: TestS3;
  let folder: string;
  let folderUrl: string;
  const s3Url = 's3://artifacts/kellet';
  const opened: ArtifactStores[] = [];

  before(async () => {
    test = await createTestDatabase();
    s3 = await TestS3.start('artifacts');
    folder = await mkdtemp(join(tmpdir(), 'kellet-move-'));
    folderUrl = pathToFileURL(folder).href;
    await insertTenant(test.database, tenant);
  });
  afterEach(async () => {
    await test.database.system(async (tx) => {
      await tx.query('DELETE FROM artifacts');
      await tx.query('DELETE FROM artifact_remains');
    });
    for (const stores of opened.splice(0)) stores.close();
    await rm(join(folder, tenant), { recursive: true, force: true });
    await rm(join(s3.folder, 'artifacts/kellet'), { recursive: true, force: true });
  });
  after(async () => {
    await s3.stop();
    await rm(folder, { recursive: true, force: true });
    await test.drop();
  });

  const storesOf = (name: string): ArtifactStores => {
    const stores = new ArtifactStores(name, s3.settings);
    opened.push(stores);
    return stores;
  };
  const put = async (bytes: Buffer, store: string): Promise<Buffer> => {
    const sha256 = createHash('sha256').update(bytes).digest();
    const pieces = async function* () {
      for (let at = 0; at < bytes.length; at += 60_000) yield bytes.subarray(at, at + 60_000);
    };
    await putArtifact(test.database, tenant, { sha256, sizeBytes: bytes.length }, pieces(), storesOf(store));
    return sha256;
  };
  /** Runs the command in this process, with its own stores. */
  const run = async (...args: string[]): Promise<{ code: number; output: string }> => {
    const lines: string[] = [];
    const parts = { database: test.database, logger, stores: new ArtifactStores('postgres', s3.settings) };
    const code = await runArtifactsCommand(args, { ...parts, write: (line) => lines.push(line) });
    return { code, output: lines.join('\n') };
  };
  const count = async (table: string): Promise<number> => {
    const { rows } = await test.database.system((tx) => tx.query<{ count: bigint }>(`SELECT count(*) FROM ${table}`));
    return Number(rows[0]!.count);
  };
  /** Names of the files below a folder. */
  const files = async (below: string): Promise<string[]> => {
    const entries = await readdir(below, { recursive: true, withFileTypes: true }).catch(() => []);
    return entries.filter((entry) => entry.isFile()).map((entry) => entry.name);
  };
  /** How many objects, or chunks, each store holds. */
  const held = async () => ({
    postgres: await count('artifact_chunks'),
    folder: (await files(folder)).length,
    s3: (await files(join(s3.folder, 'artifacts/kellet'))).length,
  });
  const expectBytes = async (sha256: Buffer, bytes: Buffer) => {
    const reader = new ArtifactReader(test.database, storesOf('postgres'));
    expect((await reader.digest(tenant, sha256, bytes.length)).equals(sha256)).to.equal(true);
  };

  it('goes from each store to each other without an interruption for devices, and leaves nothing behind', async () => {
    const artifacts = [randomBytes(2 * partBytes + 12_345), randomBytes(100), randomBytes(partBytes), Buffer.alloc(0)];
    const keys: Buffer[] = [];
    for (const bytes of artifacts) keys.push(await put(bytes, 'postgres'));
    let isReading = true;
    let reads = 0;
    const reading = (async () => {
      // As another process, which sees only the rows.
      const reader = new ArtifactReader(test.database, storesOf('postgres'));
      for (; isReading; reads += 1) {
        const index = reads % 3;
        const bytes = artifacts[index]!;
        const offset = Math.floor(Math.random() * bytes.length);
        const length = Math.min(65_536, bytes.length - offset);
        const read = await reader.read(tenant, keys[index]!, offset, length);
        expect(read.equals(bytes.subarray(offset, offset + length)), `${index} at ${offset}`).to.equal(true);
      }
    })();
    // 2, 1 and 1 objects of 2 MiB, or so many chunks of 64 KiB.
    const all = { postgres: 65 + 1 + 32, objects: 3 + 1 + 1 };
    for (const [to, expected] of [
      [folderUrl, { postgres: 0, folder: all.objects, s3: 0 }],
      [s3Url, { postgres: 0, folder: 0, s3: all.objects }],
      ['postgres', { postgres: all.postgres, folder: 0, s3: 0 }],
      [s3Url, { postgres: 0, folder: 0, s3: all.objects }],
      [folderUrl, { postgres: 0, folder: all.objects, s3: 0 }],
      ['postgres', { postgres: all.postgres, folder: 0, s3: 0 }],
    ] as const) {
      const { code, output } = await run('move', '--to', to);
      expect(code, output).to.equal(0);
      expect(output).to.match(/4 moved, 0 failed/);
      expect(await held(), to).to.deep.equal(expected);
      const again = await run('move', `--to=${to}`);
      expect(again.output).to.match(/^moving 0 artifacts/);
    }
    isReading = false;
    await reading;
    expect(reads).to.be.above(50);
  });

  it('survives being killed at any moment, and continues where it stopped', async () => {
    const bytes = randomBytes(12 * 1024 * 1024 + 5);
    const sha256 = await put(bytes, 'postgres');
    const environment = {
      PATH: process.env['PATH'],
      NODE_COMPILE_CACHE: process.env['NODE_COMPILE_CACHE'],
      KELLET_DATABASE_URL: test.url,
      KELLET_NATS_URL: 'nats://127.0.0.1:1',
      KELLET_CONTROL_SECRET: 'control'.repeat(5),
      KELLET_JWT_PRIVATE_KEY: newSigningKey(),
      KELLET_CALLBACK_HMAC_SECRET: 'callback',
      KELLET_S3_ENDPOINT: s3.settings.endpoint,
      KELLET_S3_REGION: s3.settings.region,
      KELLET_S3_ACCESS_KEY: s3.settings.accessKey,
      KELLET_S3_SECRET_KEY: s3.settings.secretKey,
    };
    const begin = (to: string): ChildProcess =>
      spawn(process.execPath, [main, 'artifacts', 'move', '--to', to], {
        env: environment,
        stdio: ['ignore', 'pipe', 'inherit'],
      });
    const copied = async (): Promise<number> => {
      const { rows } = await test.database.system((tx) =>
        tx.query<{ received_bytes: bigint }>('SELECT received_bytes FROM artifacts WHERE copy_of IS NOT NULL'),
      );
      return Number(rows[0]?.received_bytes ?? 0);
    };
    for (const to of [folderUrl, s3Url, 'postgres']) {
      let before = 0;
      let kills = 0;
      for (let isDone = false; !isDone;) {
        const child = begin(to);
        const exited = once(child, 'exit');
        // Once it has copied some more, and a little later.
        while (child.exitCode === null && kills < 2 && (await copied()) <= before) await sleep(2);
        await sleep(Math.random() * 20);
        if (kills < 2) child.kill('SIGKILL');
        kills += 1;
        const [code] = (await exited) as [number | null];
        isDone = code === 0;
        if (isDone) break;
        const now = await copied();
        expect(now, 'what was copied stays').to.be.at.least(before);
        before = now;
        expect(kills).to.be.below(5);
        await expectBytes(sha256, bytes);
      }
      await expectBytes(sha256, bytes);
      expect(await count('artifacts WHERE copy_of IS NOT NULL')).to.equal(0);
      expect(await held(), to).to.deep.equal({
        postgres: to === 'postgres' ? 193 : 0,
        folder: to === folderUrl ? 7 : 0,
        s3: to === s3Url ? 7 : 0,
      });
    }
  });

  it('leaves an artifact as it is if its bytes do not have its checksum', async () => {
    const damaged = await put(randomBytes(200_000), 'postgres');
    const sound = await put(randomBytes(1000), 'postgres');
    await test.database.system((tx) =>
      tx.query(
        `UPDATE artifact_chunks SET data = set_byte(data, 7, get_byte(data, 7) # 1)
        WHERE sha256 = $1 AND chunk_index = 1`,
        [damaged],
      ),
    );
    const { code, output } = await run('move', '--to', folderUrl);
    expect(code).to.equal(1);
    expect(output).to.match(
      new RegExp(`not moved: ${damaged.toString('hex')} of acme: its bytes do not have its checksum`),
    );
    expect(output).to.match(/1 moved, 1 failed/);
    expect(await count(`artifacts WHERE store = '' AND NOT staged`)).to.equal(1);
    await expectBytes(sound, Buffer.alloc(1000));
  });

  it('keeps nothing of an artifact that is removed meanwhile', async () => {
    const bytes = randomBytes(3 * partBytes);
    const sha256 = await put(bytes, 'postgres');
    const move = new ArtifactMove(test.database, storesOf('postgres'), folderUrl);
    let removal: Promise<void> | undefined;
    const outcome = await move
      .move({ tenantId: tenant, sha256, sizeBytes: bytes.length }, (copied) => {
        if (copied > partBytes) removal ??= test.database.tenant(tenant, (tx) => removeArtifact(tx, tenant, sha256));
      })
      .catch((error: { code?: string }) => error.code);
    await removal;
    expect(['gone', 'UNAVAILABLE']).to.include(outcome);
    const intake = new ArtifactIntake(test.database, logger, testIntake({ stores: storesOf('postgres') }));
    await test.database.system((tx) => tx.query(`UPDATE artifacts SET touched_at = now() - interval '1 minute'`));
    await intake.sweep();
    await test.database.system((tx) => tx.query(`UPDATE artifact_remains SET remove_after = now()`));
    await intake.sweep();
    await intake.stop();
    expect(await held()).to.deep.equal({ postgres: 0, folder: 0, s3: 0 });
    expect(await count('artifacts')).to.equal(0);
  });

  it('does not count against the quota, and an abandoned copy is removed after a day', async () => {
    const bytes = randomBytes(300_000);
    const sha256 = await put(bytes, 'postgres');
    await test.database.system((tx) =>
      tx.query(`UPDATE tenants SET quotas = '{"storage_bytes": 500000}' WHERE tenant_id = $1`, [tenant]),
    );
    await test.database.tenant(tenant, (tx) => beginCopy(tx, tenant, sha256, folderUrl));
    await test.database.tenant(tenant, (tx) => stageArtifact(tx, tenant, 200_000, ''));
    const intake = new ArtifactIntake(test.database, logger, testIntake({ unusedSeconds: 1e6 }));
    for (const [age, copies] of [
      ['23 hours', 1],
      ['25 hours', 0],
    ] as const) {
      await test.database.system((tx) =>
        tx.query(`UPDATE artifacts SET touched_at = now() - $1::interval WHERE copy_of IS NOT NULL`, [age]),
      );
      await intake.sweep();
      expect(await count('artifacts WHERE copy_of IS NOT NULL'), age).to.equal(copies);
    }
    await intake.stop();
  });

  it('shows where artifacts are, and how it is used', async () => {
    await put(randomBytes(2048), 'postgres');
    await put(randomBytes(1024), folderUrl);
    expect((await run('status')).output).to.equal(
      [
        'new artifacts: postgres',
        'postgres: 1 artifacts, 2.0 KiB, 0 arriving',
        `${folderUrl}: 1 artifacts, 1.0 KiB, 0 arriving`,
      ].join('\n'),
    );
    for (const args of [[], ['move', '--to'], ['move', '--to', 'ftp://x'], ['status', 'x'], ['remove']]) {
      expect((await run(...args)).code, args.join(' ')).to.equal(2);
    }
  });

  it('has the help of the program in its output', async () => {
    const child = spawn(process.execPath, [main, '--help'], { stdio: ['ignore', 'pipe', 'inherit'] });
    expect(await text(child.stdout)).to.include('kellet-apiserver artifacts move');
  });
});
