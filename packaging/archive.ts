// Writes reproducible tar files: sorted, without times and owners.
import { execFileSync } from 'node:child_process';

/** Writes entries of a folder, and everything below them, as a tar file, compressed if `program` names a compressor. */
export function writeTar(folder: string, target: string, entries: readonly string[], program?: string): void {
  const reproducible = ['--sort=name', '--mtime=@0', '--owner=0', '--group=0', '--numeric-owner', '--format=gnu'];
  const compression = program === undefined ? [] : [`--use-compress-program=${program}`];
  execFileSync('tar', [...reproducible, ...compression, '-C', folder, '-cf', target, ...entries], {
    stdio: ['ignore', 'inherit', 'inherit'],
  });
}
