// The code of an earlier commit, in a folder of its own, which runs with the packages that are installed here.
import { execFileSync } from 'node:child_process';
import { mkdirSync, readdirSync, statSync, symlinkSync } from 'node:fs';
import { join } from 'node:path';
import { checkout } from '../../../dev/stack/paths.ts';

const git = (...args: string[]): string => execFileSync('git', args, { cwd: checkout, encoding: 'utf8' }).trim();

/**
 * Returns the commit to compare with: `KELLET_TEST_PREVIOUS_RELEASE`, or the one before the last that added a migration.
 * Throws where the checkout has no history.
 */
export function previousRelease(): string {
  const named = process.env['KELLET_TEST_PREVIOUS_RELEASE'];
  if (named) return git('rev-parse', '--verify', `${named}^{commit}`);
  const added = git('log', '-1', '--format=%H', '--diff-filter=A', '--', 'apiserver/migrations');
  return git('rev-parse', '--verify', `${added}^1`);
}

/** Writes the files of a commit into `folder`, and links the installed packages. */
export function checkOut(commit: string, folder: string): void {
  mkdirSync(folder, { recursive: true });
  execFileSync('sh', ['-c', 'git archive --format=tar "$1" | tar -x -C "$2"', 'sh', commit, folder], { cwd: checkout });
  const installed = join(checkout, 'node_modules');
  mkdirSync(join(folder, 'node_modules/@kellet'), { recursive: true });
  for (const name of readdirSync(installed)) {
    if (name !== '@kellet') symlinkSync(join(installed, name), join(folder, 'node_modules', name));
  }
  // The workspaces are those of the commit.
  for (const name of readdirSync(folder)) {
    if (!statSync(join(folder, name)).isDirectory() || name === 'node_modules') continue;
    symlinkSync(join(folder, name), join(folder, 'node_modules/@kellet', name));
  }
}
