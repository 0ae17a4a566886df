import { spawn } from 'node:child_process';
import { chmod, mkdir, readdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { expect } from 'chai';
import { script, waitGone, withFolder } from '../testing/scratch.ts';
import { waitUntil } from '../wait.ts';
import { findOnPath, isAtLeast, stagingReplacements, statedReplacements } from './binaries.ts';
import { buildPrograms, cachedProgram, expectedSeconds, fileExists, type GoProgram, roughly } from './go-build.ts';

describe('stack: programs', () => {
  it('replaces only the staging modules of Kubernetes with the published ones', () => {
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

  it('copies a module’s replacements by version, but not those by folder', () => {
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
    seconds: 60,
  };
  const path = process.env.PATH;
  afterEach(() => (process.env.PATH = path));

  /** Puts this shell script on PATH as `go`, followed by the usual commands. */
  async function useGo(folder: string, body: string): Promise<void> {
    await mkdir(join(folder, 'go-bin'));
    await writeFile(join(folder, 'go-bin/go'), `#!/bin/sh\n${body}\n`);
    await chmod(join(folder, 'go-bin/go'), 0o755);
    process.env.PATH = `${join(folder, 'go-bin')}:/usr/bin:/bin`;
  }

  /**
   * Logs the start and end of each call with its time; `build` writes the programs into the folder after -o, after a
   * delay long enough to be overtaken. It prints each package, as -v does.
   */
  const fakeGo = `
log() { echo "$1 $(date +%s%N) $(basename "$PWD")" >> "$(dirname "$0")/calls"; }
verb=$1
log "$verb"
case "$verb" in
get) sleep 0.3 ;;
build)
  while [ "$1" != -o ]; do shift; done
  folder=$2; shift 2
  for package; do echo "$package" >&2; done
  sleep 0.3
  for package; do echo program > "$folder/$(basename "$package")"; done ;;
esac
log "$verb-end"`;
  const callsOf = async (folder: string) =>
    (await readFile(join(folder, 'go-bin/calls'), 'utf8'))
      .trim()
      .split('\n')
      .map((line) => line.split(' ') as [string, string, string]);
  const another = (name: string): GoProgram => ({ ...program, name, package: `example.test/${name}` });

  it('happen once, also for concurrent requests, and leave nothing partial', async () => {
    await withFolder(async (folder) => {
      await useGo(folder, fakeGo);
      const cache = join(folder, 'cache');
      const options = { cache, report: () => undefined };
      const paths = await Promise.all([buildPrograms([program], options), buildPrograms([program], options)]);
      await buildPrograms([program], options);
      expect((await callsOf(folder)).filter(([call]) => call === 'build')).to.have.length(1);
      expect(paths[0].tool).to.equal(cachedProgram(cache, program));
      expect(await readdir(join(cache, 'bin'))).to.deep.equal(['tool-v1.0.0']);
      expect(await readdir(join(cache, 'partial'))).to.deep.equal([]);
    });
  });

  it('fetch the modules of one program while another is compiled, with separate locks', async () => {
    await withFolder(async (folder) => {
      // Long enough that a busy machine starts the other one meanwhile.
      await useGo(folder, fakeGo.replaceAll('sleep 0.3', 'sleep 1.5'));
      const cache = join(folder, 'cache');
      const lines: string[] = [];
      const options = { cache, report: (line: string) => void lines.push(line) };
      const one = buildPrograms([program], options);
      await new Promise((resolve) => setTimeout(resolve, 200));
      await Promise.all([one, buildPrograms([another('other')], options)]);
      const at = Object.fromEntries(
        (await callsOf(folder)).map(([call, time, where]) => [`${where} ${call}`, Number(time)]),
      );
      expect(at['other-v1.0.0 get']).to.be.lessThan(at['tool-v1.0.0 build-end']!);
      expect(at['tool-v1.0.0 build']).to.be.lessThan(at['other-v1.0.0 get-end']!);
      expect(lines.join('\n')).not.to.include('waiting for another build in its folder');
      expect(lines[0]).to.match(/^tool v1\.0\.0: to be built once, about \d+ (s|min) on an idle machine/);
    });
  });

  it('of one family share a folder and a build', async () => {
    await withFolder(async (folder) => {
      await useGo(folder, fakeGo);
      const cache = join(folder, 'cache');
      const family = { name: 'both', packages: ['example.test/a', 'example.test/b'] };
      const [a, b] = [another('a'), another('b')].map((each) => ({ ...each, family }));
      await buildPrograms([a!, b!], { cache, report: () => undefined });
      const builds = (await callsOf(folder)).filter(([call]) => call === 'build');
      expect(builds.map(([, , where]) => where)).to.deep.equal(['both-v1.0.0']);
      expect((await readdir(join(cache, 'bin'))).sort()).to.deep.equal(['a-v1.0.0', 'b-v1.0.0']);
    });
  });

  for (const signal of ['SIGINT', 'SIGKILL'] as const) {
    it(`interrupted by ${signal} leave no program and no lock`, async () => {
      await withFolder(async (folder) => {
        await useGo(
          folder,
          `[ "$1" = build ] || exit 0\nwhile [ "$1" != -o ]; do shift; done\necho half > "$2/tool"\nexec sleep 60`,
        );
        const cache = join(folder, 'cache');
        const code = `
import { buildPrograms } from ${JSON.stringify(join(import.meta.dirname, 'go-build.ts'))};
await buildPrograms([${JSON.stringify(program)}], { cache: ${JSON.stringify(cache)}, report: () => undefined });`;
        const { command, args } = await script(folder, 'build', code);
        // A separate process group, as a terminal creates it: Ctrl-C reaches the compiler too.
        const child = spawn(command, args, { stdio: 'ignore', detached: true });
        const half = join(cache, 'partial/tool-v1.0.0/tool');
        await waitUntil(() => fileExists(half), { what: 'a build under way', timeoutMilliseconds: 10_000 });
        process.kill(signal === 'SIGINT' ? -child.pid! : child.pid!, signal);
        await waitGone(child.pid!);
        expect(await readdir(join(cache, 'bin'))).to.deep.equal([]);
        process.env.PATH = path;
        await useGo(join(folder, 'cache'), fakeGo);
        const built = await buildPrograms([program], { cache, report: () => undefined });
        expect(await readFile(built.tool!, 'utf8')).to.equal('program\n');
        if (signal === 'SIGKILL') process.kill(-child.pid!, 'SIGKILL');
      });
    });
  }

  it('that fail report the compiler’s output and leave no program', async () => {
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

  for (const [cores, seconds, want] of [
    [2, [35, 5], '40'],
    [1, [35, 5], '80'],
    [4, [200], '100'],
    [64, [200], '50'],
  ] as const) {
    it(`of ${seconds.join(' and ')} s on two cores take ${want} s on ${cores}`, () =>
      expect(
        String(
          expectedSeconds(
            seconds.map((each) => ({ ...program, seconds: each })),
            cores,
          ),
        ),
      ).to.equal(want));
  }
  for (const [seconds, want] of [
    [3, 'about 10 s'],
    [44, 'about 40 s'],
    [89, 'about 90 s'],
    [390, 'about 7 min'],
  ] as const) {
    it(`of ${seconds} s take ${want}`, () => expect(roughly(seconds)).to.equal(want));
  }

  it('without Go report what to install', async () => {
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
