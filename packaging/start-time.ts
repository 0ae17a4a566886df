// Measures how long a program of the image takes to start, inside the image's root file system and as its user.
import { execFileSync } from 'node:child_process';
import { existsSync, mkdirSync } from 'node:fs';
import { join } from 'node:path';
import { user } from './debian-base.ts';

const chroot = '/usr/sbin/chroot';

/**
 * Returns the shortest of five times, in milliseconds, in which kellet-apiserver loads all its modules and prints its help.
 * Returns undefined where the root cannot be changed. The layers are linked into `work`, on the same file system.
 */
export function startMilliseconds(layers: readonly string[], work: string): number | undefined {
  if (process.getuid?.() !== 0 || !existsSync(chroot)) return undefined;
  const folder = join(work, 'root');
  mkdirSync(folder);
  for (const layer of layers) execFileSync('cp', ['-al', `${layer}/.`, folder]);
  const times = Array.from({ length: 5 }, () => {
    const started = performance.now();
    const command = [`--userspec=${user}:${user}`, folder, '/usr/local/bin/kellet-apiserver', '--help'];
    execFileSync(chroot, command, { env: { NODE_ENV: 'production' }, stdio: ['ignore', 'ignore', 'inherit'] });
    return performance.now() - started;
  });
  return Math.min(...times);
}
