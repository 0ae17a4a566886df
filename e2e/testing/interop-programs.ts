// Other people's programs, installed into the user's cache without changing the machine.
import { execFile } from 'node:child_process';
import { existsSync } from 'node:fs';
import { mkdir, readdir, rename, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { cacheFolder } from '../../dev/stack/paths.ts';

const run = promisify(execFile);

/** Fills a folder of the cache once; a folder that is there is complete. */
async function installed(name: string, fill: (folder: string) => Promise<void>): Promise<string> {
  const folder = join(cacheFolder(), name);
  if (existsSync(folder)) return folder;
  const partial = `${folder}.partial`;
  await rm(partial, { recursive: true, force: true });
  await mkdir(partial, { recursive: true });
  await fill(partial);
  await rename(partial, folder);
  return folder;
}

/**
 * Returns the environment in which mosquitto's clients are on PATH: the machine's, or unpacked Debian packages. Throws if
 * neither can be had.
 */
export async function mosquittoClients(): Promise<NodeJS.ProcessEnv> {
  const isThere = await run('mosquitto_pub', ['--help']).then(
    () => true,
    (error: { code?: unknown }) => error.code !== 'ENOENT',
  );
  if (isThere) return process.env;
  const folder = await installed('interop-mosquitto', async (partial) => {
    await run('apt-get', ['download', 'mosquitto-clients', 'libmosquitto1', 'libcjson1'], { cwd: partial });
    for (const file of await readdir(partial)) await run('dpkg-deb', ['-x', join(partial, file), partial]);
  });
  const libraries = await readdir(join(folder, 'usr/lib'));
  return {
    ...process.env,
    PATH: `${join(folder, 'usr/bin')}:${process.env['PATH']}`,
    LD_LIBRARY_PATH: libraries.map((name) => join(folder, 'usr/lib', name)).join(':'),
  };
}

/** Returns the path of promtool: the machine's, or that of the unpacked Debian package. Throws if neither can be had. */
export async function promtool(): Promise<string> {
  const isThere = await run('promtool', ['--version']).then(
    () => true,
    () => false,
  );
  if (isThere) return 'promtool';
  const folder = await installed('interop-prometheus', async (partial) => {
    await run('apt-get', ['download', 'prometheus'], { cwd: partial });
    for (const file of await readdir(partial)) await run('dpkg-deb', ['-x', join(partial, file), partial]);
  });
  return join(folder, 'usr/bin/promtool');
}

/** Returns a Python with paho. Throws if it cannot be had. */
export const pythonWithPaho = (): Promise<string> => pythonWith('paho-mqtt', '2.1.0');

/** Returns a Python with Apache Spark, which needs Java. Throws if either cannot be had. */
export async function pythonWithSpark(): Promise<string> {
  await run('java', ['-version']);
  return pythonWith('pyspark', '3.5.6');
}

async function pythonWith(name: string, version: string): Promise<string> {
  const folder = join(cacheFolder(), `interop-${name}-${version}`);
  const python = join(folder, 'bin/python');
  if (existsSync(join(folder, 'complete'))) return python;
  await rm(folder, { recursive: true, force: true });
  // Environments of Python cannot be moved.
  await run('python3', ['-m', 'venv', folder]);
  await run(join(folder, 'bin/pip'), ['install', '--quiet', '--disable-pip-version-check', `${name}==${version}`]);
  await mkdir(join(folder, 'complete'));
  return python;
}
