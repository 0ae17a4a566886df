// Whether what a populated installation has stored is sound.
import { runCommand } from './processes.ts';
import type { Sizes } from './sizes.ts';

/** Runs fsck for two of the tenants, one with old points and one with new ones. Returns whether nothing is broken. */
export async function checkSample(
  settings: Readonly<Record<string, string>>,
  { tenants }: Sizes,
  report: (line: string) => void,
): Promise<boolean> {
  let areSound = true;
  for (const tenant of ['tenant-2', `tenant-${tenants}`]) {
    const started = performance.now();
    const check = () => runCommand(settings, 'fsck', '--tenant', tenant);
    const first = await check();
    // After the fill the disk may be busy for a while.
    const { output, isDone } = first.output.includes('cannot tell') ? await check() : first;
    const seconds = ((performance.now() - started) / 1000).toFixed(1);
    report(`fsck of ${tenant}, ${seconds} s: ${isDone ? output.trim().split('\n').at(-1) : output}`);
    areSound &&= isDone;
  }
  return areSound;
}
