// Point-in-time recovery by the commands in docs/operations.md, run as they are on the page: an installation loses its database
// and recovers it as it was at a moment, which fsck finds clean, and goes on with it.
import { cp, readFile, rename } from 'node:fs/promises';
import path from 'node:path';
import { expect } from 'chai';
import { readConfig } from '../config/config.ts';
import { addUpChanges } from '../device-registry/devices/device-counts.ts';
import { runFsckCommand } from '../fsck/fsck-command.ts';
import { TestInstallation } from '../fsck/testing/test-installation.ts';
import { newId } from '../platform/ids.ts';
import { createLogger } from '../platform/observability/logger.ts';
import { eventually } from '../platform/testing/eventually.ts';
import { TestPostgresArchive } from '../platform/testing/test-postgres-archive.ts';

const page = path.join(import.meta.dirname, '../../../docs/operations.md');

interface Report {
  readonly clean: boolean;
  readonly checked: Record<string, number>;
  readonly broken: { kind: string; message: string }[];
}

/** Returns the blocks of commands of a section. */
async function blocksOf(heading: string): Promise<string[]> {
  const section = (await readFile(page, 'utf8')).split(/^#+ /m).find((text) => text.startsWith(`${heading}\n`))!;
  return [...section.matchAll(/^```\n([^]*?)^```$/gm)].map(([, block]) => block!);
}

/** Replaces text that must be there. */
function replaced(text: string, from: string, to: string): string {
  expect(text).to.include(from);
  return text.replace(from, to);
}

describe('point-in-time recovery', function () {
  this.timeout(300_000);
  let postgres: TestPostgresArchive;
  let installation: TestInstallation;
  let [settings, takeBaseBackup, recover] = ['', '', ''];
  let targetTime: string;
  let atTarget: Report;

  async function fsck(): Promise<Report> {
    const lines: string[] = [];
    const code = await runFsckCommand(['--json'], {
      readConfig: () => readConfig(installation.settings, []),
      ...{ logger: createLogger('silent'), write: (line) => lines.push(line), note: (line) => lines.push(line) },
      recheck: { rounds: 3, milliseconds: 1000 },
    });
    expect(code, lines.join('\n')).to.be.oneOf([0, 1]);
    return JSON.parse(lines.at(-1)!) as Report;
  }
  const pointsOf = ({ checked }: Report) => checked['points']! + checked['cold_points']!;
  const addDevice = (name: string) =>
    installation.database.system(async (tx) => {
      await tx.query(
        `INSERT INTO devices (tenant_id, device_id, name, hardware_id, profile_id)
         SELECT tenant_id, $1, $2, $2, profile_id FROM devices LIMIT 1`,
        [newId(), name],
      );
      await addUpChanges(tx);
    });
  const addPackage = async () =>
    installation.addPackage(await installation.putArtifact(installation.settings['KELLET_ARTIFACT_STORE']!, 1_000_000));
  const names = async () => {
    const { rows } = await installation.database.system((tx) =>
      tx.query<{ name: string }>(`SELECT name FROM devices WHERE name NOT LIKE 'device %' ORDER BY name`),
    );
    return rows.map(({ name }) => name);
  };
  /** Exchanges a folder with the copy that was made of it. */
  async function exchange(folder: string): Promise<void> {
    await rename(folder, `${folder}.other`);
    await rename(`${folder}.copy`, folder);
    await rename(`${folder}.other`, `${folder}.copy`);
  }

  before(async function () {
    [settings, takeBaseBackup, recover] = (await blocksOf('Point-in-time recovery')) as [string, string, string];
    const started = await TestPostgresArchive.start(settings);
    if (!started) return this.skip();
    postgres = started;
    const shared = process.env['KELLET_TEST_DATABASE_URL'];
    process.env['KELLET_TEST_DATABASE_URL'] = postgres.url;
    try {
      installation = await TestInstallation.start();
    } finally {
      process.env['KELLET_TEST_DATABASE_URL'] = shared;
    }
    await installation.sendPoints(60);
    await installation.addAuditEvents(3);
    await installation.confirmAll();
    await installation.turnCold();
    await installation.putArtifact('postgres', 150_000);
    await addPackage();
    for (const folder of [installation.coldFolder, installation.artifactFolder])
      await cp(folder, `${folder}.copy`, { recursive: true });
  });
  after(async () => {
    await installation?.stop();
    await postgres?.stop();
  });

  it('takes a base backup while points arrive', async () => {
    let isDone = false;
    const load = (async () => {
      while (!isDone) await installation.sendPoints(20);
    })();
    try {
      await postgres.shell(replaced(takeBaseBackup, 'postgres://postgres@postgres:5432', postgres.url));
    } finally {
      isDone = true;
      await load;
    }
  });

  it('recovers what was committed at the target time, and nothing later', async () => {
    await installation.turnCold();
    await installation.sendPoints(40);
    await addPackage();
    await addDevice('earlier');
    atTarget = await fsck();
    expect(atTarget.broken).to.deep.equal([]);
    targetTime = String((await postgres.run('SELECT clock_timestamp()::text AS now'))[0]!['now']);

    await addDevice('later');
    await installation.sendPoints(50);
    await installation.turnCold();
    await addPackage();
    const later = await fsck();
    expect(pointsOf(later)).to.be.at.least(pointsOf(atTarget) + 50);
    expect(await names()).to.deep.equal(['earlier', 'later']);
    await postgres.archiveAll();

    await postgres.loseData();
    await postgres.shell(`mkdir -m 700 /data\n${replaced(recover, '2026-11-23 08:00:00+00', targetTime)}`);
    await postgres.startServer();
    // Connections that were cut off are replaced.
    await eventually(() =>
      installation.database.ping().then(
        () => true,
        () => false,
      ),
    );
    expect(await names()).to.deep.equal(['earlier']);
    // The stores are those of later: they have files that the database does not name.
    const { broken, checked } = await fsck();
    expect(broken).to.deep.equal([]);
    expect(pointsOf({ broken, checked, clean: true })).to.equal(pointsOf(atTarget));
    for (const what of ['artifacts', 'artifact_bytes', 'packages', 'cold_files', 'cold_points'])
      expect(checked[what], what).to.equal(atTarget.checked[what]);
  });

  it('has fsck name what is missing from stores that are older than the target time', async () => {
    for (const folder of [installation.coldFolder, installation.artifactFolder]) await exchange(folder);
    const { broken } = await fsck();
    for (const folder of [installation.coldFolder, installation.artifactFolder]) await exchange(folder);
    expect(new Set(broken.map(({ kind }) => kind))).to.deep.equal(new Set(['artifact', 'cold_file']));
    expect(broken.map(({ message }) => message)).to.include('it has 0 of its 1000000 bytes');
    expect((await fsck()).broken).to.deep.equal([]);
  });

  it('goes on: points are taken, anchored and turn cold', async () => {
    await installation.sendPoints(40);
    await installation.confirmAll();
    await installation.turnCold();
    const report = await fsck();
    expect(report.broken).to.deep.equal([]);
    expect(pointsOf(report)).to.be.at.least(pointsOf(atTarget) + 40);
    expect(report.checked['cold_files']).to.be.above(atTarget.checked['cold_files']!);
  });
});
