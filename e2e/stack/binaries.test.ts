import { chmod, mkdir, readFile, readdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { expect } from 'chai';
import { findOnPath, isAtLeast, stagingReplacements, statedReplacements } from './binaries.ts';
import type { GoProgram } from './go-build.ts';
import { buildPrograms, cachedProgram } from './go-build.ts';
import { withFolder } from './testing.ts';

describe('stack: programs', () => {
  it('replaces the staging modules of Kubernetes by the published ones and nothing else', () => {
    const goMod = `
require k8s.io/api v0.0.0
replace (
\tk8s.io/api => ./staging/src/k8s.io/api
\tk8s.io/cli-runtime => ./staging/src/k8s.io/cli-runtime
\tgithub.com/other/module => ../elsewhere
)`;
    expect(stagingReplacements(goMod)).to.deep.equal([
      'k8s.io/api=k8s.io/api@v0.35.4',
      'k8s.io/cli-runtime=k8s.io/cli-runtime@v0.35.4',
    ]);
  });

  it('takes over the replacements of a module that name a version, and no folders', () => {
    const goMod = `
replace github.com/one => github.com/other v1.2.3
replace (
\tk8s.io/api => k8s.io/api v0.34.0
\tgithub.com/two v1.0.0 => github.com/two v1.0.1
\tgithub.com/three => ./three
)
require github.com/four v1.0.0
`;
    expect(statedReplacements(goMod)).to.deep.equal([
      'github.com/one=github.com/other@v1.2.3',
      'k8s.io/api=k8s.io/api@v0.34.0',
      'github.com/two@v1.0.0=github.com/two@v1.0.1',
    ]);
  });

  for (const [found, least, want] of [
    [[1, 34], [1, 34], true],
    [[1, 33], [1, 34], false],
    [[2, 0], [1, 34], true],
    [[0, 99], [1, 0], false],
  ] as const) {
    it(`${found.join('.')} ${want ? 'is' : 'is not'} at least ${least.join('.')}`, () =>
      expect(isAtLeast(found, least)).to.equal(want));
  }

  it('are found in the first folder of PATH that has them', async () => {
    await withFolder(async (folder) => {
      const [one, two] = [join(folder, 'one'), join(folder, 'two')];
      for (const path of [one, two]) await mkdir(path);
      await writeFile(join(two, 'tool'), '');
      expect(await findOnPath('tool', `${one}:${two}`)).to.equal(join(two, 'tool'));
      expect(await findOnPath('other', `${one}:${two}`)).to.equal(undefined);
    });
  });
});

describe('stack: builds', () => {
  const program: GoProgram = {
    name: 'tool',
    version: 'v1.0.0',
    module: 'example.test/tool',
    package: 'example.test/tool',
  };
  const path = process.env.PATH;
  afterEach(() => (process.env.PATH = path));

  /** Puts a `go` on PATH that is this shell script, with the usual commands behind it. */
  async function useGo(folder: string, body: string): Promise<void> {
    await mkdir(join(folder, 'go-bin'));
    await writeFile(join(folder, 'go-bin/go'), `#!/bin/sh\n${body}\n`);
    await chmod(join(folder, 'go-bin/go'), 0o755);
    process.env.PATH = `${join(folder, 'go-bin')}:/usr/bin:/bin`;
  }

  /** Logs each call; \`build\` writes the file named after -o, after long enough to be overtaken. */
  const fakeGo = `
echo "$1" >> "$(dirname "$0")/calls"
[ "$1" = build ] || exit 0
while [ "$1" != -o ]; do shift; done
sleep 0.3
echo program > "$2"`;

  it('happen once, also when two ask at the same time, and leave nothing half-made', async () => {
    await withFolder(async (folder) => {
      await useGo(folder, fakeGo);
      const cache = join(folder, 'cache');
      const options = { cache, report: () => undefined };
      const paths = await Promise.all([buildPrograms([program], options), buildPrograms([program], options)]);
      await buildPrograms([program], options);
      const calls = (await readFile(join(folder, 'go-bin/calls'), 'utf8')).split('\n');
      expect(calls.filter((call) => call === 'build')).to.have.length(1);
      expect(paths[0].tool).to.equal(cachedProgram(cache, program));
      expect(await readdir(join(cache, 'bin'))).to.deep.equal(['tool-v1.0.0']);
    });
  });

  it('that fail quote the compiler and leave no program', async () => {
    await withFolder(async (folder) => {
      await useGo(folder, `[ "$1" = build ] || exit 0\necho 'main.go:1: syntax error' >&2; exit 1`);
      const cache = join(folder, 'cache');
      const error = await buildPrograms([program], { cache, report: () => undefined }).then(
        () => undefined,
        (reason: Error) => reason.message,
      );
      expect(error).to.include('main.go:1: syntax error');
      expect(await readdir(join(cache, 'bin'))).to.deep.equal([]);
    });
  });

  it('without Go say what to install', async () => {
    await withFolder(async (folder) => {
      process.env.PATH = folder;
      const error = await buildPrograms([program], { cache: folder, report: () => undefined }).then(
        () => undefined,
        (reason: Error) => reason.message,
      );
      expect(error).to.include('tool v1.0.0').and.to.include('Install Go');
    });
  });
});
