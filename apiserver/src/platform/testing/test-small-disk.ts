// A file system in memory that a test can fill, for what only a full disk shows.
import { spawnSync } from 'node:child_process';
import { closeSync, ftruncateSync, mkdtempSync, openSync, rmSync, writeSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

/** A mounted file system of limited size. */
export class SmallDisk {
  readonly folder: string;
  private readonly filler: number;

  private constructor(folder: string) {
    this.folder = folder;
    this.filler = openSync(join(folder, '_filler'), 'w');
  }

  /** Mounts a disk of so many KiB. Returns undefined, and says so, where this is not allowed: then a test has to be skipped. */
  static mount(kibibytes: number): SmallDisk | undefined {
    const folder = mkdtempSync(join(tmpdir(), 'kellet-disk-'));
    const { status, stderr } = spawnSync('mount', ['-t', 'tmpfs', '-o', `size=${kibibytes}k`, 'tmpfs', folder]);
    if (status === 0) return new SmallDisk(folder);
    rmSync(folder, { recursive: true });
    // eslint-disable-next-line no-console -- whoever reads the output of the tests must see it
    console.warn(
      `SKIPPED: the test of a full disk, because no file system can be mounted here: ${String(stderr).trim()}`,
    );
    return undefined;
  }

  /** Uses up what is left. */
  fill(): void {
    const part = Buffer.alloc(1024);
    try {
      for (let at = 0; ; at += part.length) writeSync(this.filler, part, 0, part.length, at);
    } catch (error) {
      if ((error as { code?: string }).code !== 'ENOSPC') throw error;
    }
  }

  /** Frees what `fill` has used. */
  free(): void {
    ftruncateSync(this.filler, 0);
  }

  unmount(): void {
    closeSync(this.filler);
    spawnSync('umount', ['-l', this.folder]);
    rmSync(this.folder, { recursive: true, force: true });
  }
}
