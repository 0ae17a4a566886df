// Images of the servers that the chart brings for trials, from the packages that the local stack uses: for clusters that
// cannot pull the official ones. They take the same arguments and variables.
import { execFile } from 'node:child_process';
import { chmod, cp, mkdir, mkdtemp, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { promisify } from 'node:util';
import { ownArchitecture } from '../../packaging/architecture.ts';
import { readManifest } from '../../packaging/compile.ts';
import { unpackBase, user } from '../../packaging/debian-base.ts';
import { type ImageSettings, writeImage } from '../../packaging/oci-image.ts';
import { natsServerProgram } from '../stack/programs/binaries.ts';
import { fileExists, type Report } from '../stack/programs/go-build.ts';
import { postgresPrograms } from '../stack/services/postgres.ts';

const execute = promisify(execFile);
const { version } = readManifest('apiserver');
const postgresFolder = '/usr/local/postgresql';

/** References of the images, without and with their tag. */
export const trialImages = {
  postgresql: `localhost/kellet-trial-postgresql:${version}`,
  nats: `localhost/kellet-trial-nats:${version}`,
} as const;

/** Initialises a new data folder as the official image does, and becomes the server. */
const startScript = `#!/bin/sh
set -eu
if [ ! -s "$PGDATA/PG_VERSION" ]; then
  umask 077
  printf '%s' "$POSTGRES_PASSWORD" >/tmp/password
  initdb --pgdata="$PGDATA" --username="$POSTGRES_USER" --pwfile=/tmp/password --auth=scram-sha-256 \\
    --encoding=UTF8 --locale=C --locale-provider=builtin --builtin-locale=C.UTF-8
  : >/tmp/password
  echo 'host all all all scram-sha-256' >>"$PGDATA/pg_hba.conf"
  printf 'CREATE DATABASE "%s";\\n' "$POSTGRES_DB" | postgres --single -D "$PGDATA" postgres
fi
exec postgres -D "$PGDATA" -c listen_addresses='*' -c unix_socket_directories=/tmp "$@"
`;

const settings = (name: string, fields: Partial<ImageSettings>): ImageSettings => ({
  User: `${user}:${user}`,
  WorkingDir: '/tmp',
  Env: [],
  Labels: { 'org.opencontainers.image.title': name, 'org.opencontainers.image.version': version },
  ...fields,
});

async function writePostgres(work: string, file: string): Promise<void> {
  const [base, programs] = [join(work, 'base'), join(work, 'programs')];
  await mkdir(base, { recursive: true });
  // initdb starts the server through a shell.
  unpackBase(ownArchitecture, base, join(work, 'debian'), ['dash']);
  if (!(await fileExists(join(base, 'bin/sh')))) await symlink('dash', join(base, 'bin/sh'));
  const { folder } = await postgresPrograms();
  await mkdir(join(programs, dirname(postgresFolder)), { recursive: true });
  await cp(dirname(folder), join(programs, postgresFolder), { recursive: true, verbatimSymlinks: true });
  // The user of the image, who is not that of the files, reads and runs all of them.
  await execute('chmod', ['--recursive', 'a+rX', programs]);
  await mkdir(join(programs, 'usr/local/bin'), { recursive: true });
  const script = join(programs, 'usr/local/bin/start-postgresql');
  await writeFile(script, startScript);
  await chmod(script, 0o755);
  const image = settings('kellet-trial-postgresql', {
    Env: [`PATH=${postgresFolder}/bin:/usr/local/bin:/usr/bin:/bin`, 'PGDATA=/var/lib/postgresql/data'],
    Entrypoint: ['start-postgresql'],
  });
  await finish(trialImages.postgresql, [base, programs], image, work, file);
}

async function writeNats(work: string, file: string, report: Report): Promise<void> {
  const layer = join(work, 'layer');
  await mkdir(layer, { recursive: true });
  await cp(await natsServerProgram(report), join(layer, 'nats-server'));
  await finish(trialImages.nats, [layer], settings('kellet-trial-nats', { Entrypoint: ['/nats-server'] }), work, file);
}

async function finish(name: string, layers: string[], image: ImageSettings, work: string, file: string): Promise<void> {
  const layout = join(work, 'layout');
  await mkdir(layout);
  const platform = { architecture: ownArchitecture, layers, settings: image };
  await writeImage(name, [platform], new Date(0).toISOString(), layout, file);
}

/** Writes the images into a folder, for this machine's architecture. Returns their files. */
export async function writeTrialImages(folder: string, report: Report): Promise<string[]> {
  const work = await mkdtemp(join(tmpdir(), 'kellet-trial-'));
  await mkdir(folder, { recursive: true });
  try {
    const files = ['postgresql', 'nats'].map((name) => join(folder, `kellet-trial-${name}.tar`)) as [string, string];
    await writePostgres(join(work, 'postgresql'), files[0]);
    await writeNats(join(work, 'nats'), files[1], report);
    return files;
  } finally {
    await rm(work, { recursive: true, force: true });
  }
}
