import { chmod, mkdir, realpath, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { expect } from 'chai';
import {
  cacheFolder,
  isSearchableByOthers,
  reachableFolder,
  removeReachableFolder,
  substituteFolder,
} from './paths.ts';
import { withFolder } from './testing/scratch.ts';

describe('stack: paths', () => {
  const cases: [Record<string, string>, string][] = [
    [{ KELLET_CACHE: '/cache', XDG_CACHE_HOME: '/xdg' }, '/cache'],
    [{ XDG_CACHE_HOME: '/xdg' }, '/xdg/kellet'],
  ];
  for (const [environment, want] of cases) {
    it(`keep the cache in ${want}`, () => expect(cacheFolder(environment)).to.equal(want));
  }

  it('detect a folder that another user cannot reach', async () => {
    await withFolder(async (folder) => {
      await chmod(folder, 0o755);
      await mkdir(join(folder, 'inner'));
      const path = join(folder, 'inner/data');
      expect(await isSearchableByOthers(path)).to.equal(true);
      await chmod(folder, 0o700);
      expect(await isSearchableByOthers(path)).to.equal(false);
    });
  });

  it('substitute an unreachable folder, and remove the substitute with it', async () => {
    await withFolder(async (folder) => {
      await chmod(folder, 0o700);
      const path = join(folder, 'postgres');
      const substitute = await reachableFolder(path);
      expect(substitute).to.equal(substituteFolder(path));
      expect(await isSearchableByOthers(join(substitute, 'data'))).to.equal(true);
      expect(await realpath(path)).to.equal(substitute);
      expect(await reachableFolder(path)).to.equal(substitute);
      await removeReachableFolder(path);
      for (const gone of [path, substitute]) {
        expect(await stat(gone).catch((error: NodeJS.ErrnoException) => error.code)).to.equal('ENOENT');
      }
    });
  });

  it('use a separate substitute for each unreachable folder', async () => {
    expect(substituteFolder('/root/a')).to.match(/^\/var\/tmp\/kellet-[0-9a-f]{16}$/);
    expect(substituteFolder('/root/a')).to.not.equal(substituteFolder('/root/b'));
    expect((await stat('/var/tmp')).isDirectory()).to.equal(true);
  });
});
