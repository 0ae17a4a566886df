import { spawn } from 'node:child_process';
import { join } from 'node:path';
import { expect } from 'chai';
import { script, waitGone, withFolder } from '../testing/scratch.ts';
import { lock, tryLock } from './file-lock.ts';

/** Takes the lock in another process, prints `held`, and keeps it. */
const holder = (path: string) => `
import { tryLock } from ${JSON.stringify(join(import.meta.dirname, 'file-lock.ts'))};
globalThis.release = tryLock(${JSON.stringify(path)});
console.log('held');
setInterval(() => undefined, 1000);
`;

describe('stack: file lock', () => {
  it('is held by one process at a time, and released when its holder is killed', async () => {
    await withFolder(async (folder) => {
      const path = join(folder, 'lock');
      const { command, args } = await script(folder, 'holder', holder(path));
      const other = spawn(command, args, { stdio: ['ignore', 'pipe', 'inherit'] });
      await new Promise((resolve) => other.stdout.once('data', resolve));
      expect(tryLock(path)).to.equal(undefined);
      other.kill('SIGKILL');
      await waitGone(other.pid!);
      const release = tryLock(path);
      expect(release).to.be.a('function');
      release!();
    });
  });

  it('can be acquired again once released', async () => {
    await withFolder(async (folder) => {
      const path = join(folder, 'lock');
      const release = tryLock(path)!;
      const waits: number[] = [];
      const second = lock(path, (seconds) => {
        waits.push(seconds);
        release();
      });
      (await second)();
      expect(waits[0]).to.equal(0);
    });
  });
});
