// Builds a program from a published Go module into the cache, once for all checkouts of this user.
import { execFile, spawn } from 'node:child_process';
import { access, mkdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { availableParallelism, getPriority, setPriority } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { promisify } from 'node:util';
import { lock, type Release } from '../processes/file-lock.ts';

const execute = promisify(execFile);

/** How a program is built. */
export interface GoProgram {
  name: string;
  /** The module's version, as in `v1.35.4`; part of the file name in the cache. */
  version: string;
  module: string;
  /** The main package. */
  package: string;
  /** A main package of our own that is built instead of `package`, which then only has to be in the module. */
  source?: string;
  /** Seconds of the first build on two idle cores, including the download of its modules. */
  seconds: number;
  /** Variables set at link time: import path and name to value. */
  variables?: Readonly<Record<string, string>>;
  /** Main packages built in one folder with this one: programs of one module. Only this one if absent. */
  family?: { name: string; packages: readonly string[] };
  /** Returns the `-replace` edits for the go.mod used here, from the text of the module's own go.mod. */
  replacements?: (goMod: string) => string[];
}

/** Receives one human-readable line. */
export type Report = (line: string) => void;

/** The cache, the receiver of progress, and the signal that aborts the build. */
export interface BuildOptions {
  cache: string;
  report: Report;
  signal?: AbortSignal | undefined;
}

/** The module in which programs are built. */
const buildModule = 'kellet.dev/build';

/** Returns the path of a program in the cache. */
export function cachedProgram(cache: string, { name, version }: GoProgram): string {
  return join(cache, 'bin', `${name}-${version}`);
}

/** Reports whether a file exists. */
export async function fileExists(path: string): Promise<boolean> {
  return access(path).then(
    () => true,
    () => false,
  );
}

/** Go settings that take precedence over the user's where the result would differ. */
function goEnvironment(): NodeJS.ProcessEnv {
  return { ...process.env, CGO_ENABLED: '0', GOWORK: 'off', GOFLAGS: `${process.env.GOFLAGS ?? ''} -mod=mod`.trim() };
}

/** Downloads the files of a module, as in `name@v1.2.3`, once for all checkouts of this user. Returns their folder. */
export async function moduleFiles(module: string): Promise<string> {
  const { stdout } = await execute('go', ['mod', 'download', '-json', module], {
    cwd: '/',
    env: goEnvironment(),
    maxBuffer: 1 << 24,
  });
  return (JSON.parse(stdout) as { Dir: string }).Dir;
}

/** Runs go in a folder, calling `onLine` for each line of output; rejects with its last lines. */
async function go(
  folder: string,
  args: string[],
  { signal, onLine = () => undefined }: { signal?: AbortSignal | undefined; onLine?: (line: string) => void } = {},
): Promise<void> {
  const child = spawn('go', args, {
    cwd: folder,
    env: goEnvironment(),
    stdio: ['ignore', 'ignore', 'pipe'],
    ...(signal ? { signal } : {}),
  });
  try {
    // A build of minutes must leave the machine usable. An even lower priority set by the user stays.
    if (child.pid) setPriority(child.pid, Math.max(10, getPriority()));
  } catch {
    // Not permitted: build at the current priority.
  }
  const last: string[] = [];
  createInterface(child.stderr).on('line', (line) => {
    last.push(line);
    if (last.length > 15) last.shift();
    onLine(line);
  });
  await new Promise<void>((resolve, reject) => {
    child.once('error', reject);
    child.once('close', (code) => {
      if (code === 0) resolve();
      else reject(new Error(`go ${args.slice(0, 3).join(' ')} … failed:\n${last.join('\n')}`));
    });
  });
}

const folderName = ({ family, name, version }: GoProgram): string => `${family?.name ?? name}-${version}`;

/** Returns the folder of a Go module that requires the program's module at its version, creating it on first use. */
async function moduleFolder({ cache, signal }: BuildOptions, program: GoProgram): Promise<string> {
  const folder = join(cache, 'modules', folderName(program));
  if (await fileExists(join(folder, 'ready'))) return folder;
  await rm(folder, { recursive: true, force: true });
  await mkdir(folder, { recursive: true });
  await go(folder, ['mod', 'init', buildModule], { signal });
  if (program.replacements) {
    const reference = `${program.module}@${program.version}`;
    const { stdout } = await execute('go', ['mod', 'download', '-json', reference], {
      cwd: folder,
      env: goEnvironment(),
      maxBuffer: 1 << 24,
      ...(signal ? { signal } : {}),
    });
    const { GoMod } = JSON.parse(stdout) as { GoMod: string };
    const edits = program.replacements(await readFile(GoMod, 'utf8')).map((replacement) => `-replace=${replacement}`);
    await go(folder, ['mod', 'edit', `-require=${reference}`, ...edits], { signal });
  }
  if (program.source) await writeFile(join(folder, 'main.go'), program.source);
  // As tools, so that Go fetches only what the programs need and not what the tests of their dependencies need.
  const packages = program.family?.packages ?? [program.package];
  const kind = program.source ? [] : ['-tool'];
  await go(folder, ['get', ...kind, ...packages.map((path) => `${path}@${program.version}`)], { signal });
  await writeFile(join(folder, 'ready'), '');
  return folder;
}

/** Reports whether `go` can be run. */
async function hasGo(): Promise<boolean> {
  return execute('go', ['version']).then(
    () => true,
    () => false,
  );
}

/**
 * Returns the seconds that these builds take on an idle machine. More than two cores help only while there are packages
 * to compile concurrently: linking is serial.
 */
export function expectedSeconds(programs: readonly GoProgram[], cores = availableParallelism()): number {
  const onTwo = programs.reduce((sum, { seconds }) => sum + seconds, 0);
  return Math.round(onTwo * Math.min(2, Math.max(0.25, 2 / cores)));
}

/** Returns `about 40 s`, or `about 7 min`. */
export const roughly = (seconds: number): string =>
  seconds < 90 ? `about ${Math.max(10, Math.round(seconds / 10) * 10)} s` : `about ${Math.round(seconds / 60)} min`;

/**
 * Compilations of this process, first come, first served: one per two cores, because one keeps two busy, and two
 * concurrent ones on two cores would only compile twice what they share.
 */
const compilations = { free: Math.max(1, Math.floor(availableParallelism() / 2)), waiting: [] as (() => void)[] };

/** Waits for a turn to compile. Returns a function that ends the turn, which may be called twice. */
async function turnToCompile(signal: AbortSignal | undefined): Promise<Release> {
  if (compilations.free > 0) compilations.free -= 1;
  else await new Promise<void>((resolve) => compilations.waiting.push(resolve));
  let mine = true;
  const release = (): void => {
    if (!mine) return;
    mine = false;
    const next = compilations.waiting.shift();
    if (next) next();
    else compilations.free += 1;
  };
  if (signal?.aborted) {
    release();
    signal.throwIfAborted();
  }
  return release;
}

/**
 * Builds every program that is not in the cache yet and returns their paths by name. Programs of one family are built
 * together; of several families one fetches modules while another compiles. Only one process of this user builds a
 * program at a time; a finished one appears under its name atomically. Reports the expected time, what it waits for,
 * and progress every few seconds.
 */
export async function buildPrograms(
  programs: readonly GoProgram[],
  options: BuildOptions,
): Promise<Record<string, string>> {
  const { cache } = options;
  const missing = await missingPrograms(programs, cache);
  if (missing.length > 0) {
    if (!(await hasGo())) {
      const names = missing.map(({ name, version }) => `${name} ${version}`).join(', ');
      throw new Error(
        `${names}: neither found nor to be built, because there is no Go (1.25 or later) on PATH. ` +
          'Install Go, or a container engine with kind, or set KUBEBUILDER_ASSETS (and NATS_URL).',
      );
    }
    const groups = Map.groupBy(missing, folderName);
    const outcomes = await Promise.allSettled([...groups.values()].map((group) => buildGroup(group, options)));
    const failure = outcomes.find((outcome) => outcome.status === 'rejected');
    if (failure) throw failure.reason;
  }
  return Object.fromEntries(programs.map((program) => [program.name, cachedProgram(cache, program)]));
}

async function missingPrograms(programs: readonly GoProgram[], cache: string): Promise<GoProgram[]> {
  const present = await Promise.all(programs.map((program) => fileExists(cachedProgram(cache, program))));
  return programs.filter((_, index) => !present[index]);
}

/** Builds programs of one folder. */
async function buildGroup(wanted: readonly GoProgram[], options: BuildOptions): Promise<void> {
  const { cache, report, signal } = options;
  const titleOf = (programs: readonly GoProgram[]): string =>
    `${programs.map(({ name }) => name).join(' and ')} ${wanted[0]!.version}`;
  const onWait = (seconds: number): void =>
    report(`${titleOf(wanted)}: waiting for another build in its folder to finish (${seconds} s)`);
  const release = await lock(join(cache, 'locks', folderName(wanted[0]!)), onWait, signal);
  try {
    const missing = await missingPrograms(wanted, cache);
    if (missing.length === 0) return;
    const title = titleOf(missing);
    report(`${title}: to be built once, ${roughly(expectedSeconds(missing))} on an idle machine; fetching modules`);
    const folder = await moduleFolder(options, missing[0]!);
    if (compilations.free === 0) report(`${title}: modules fetched, waiting for its turn to compile`);
    const finish = await turnToCompile(signal);
    try {
      await compile(missing, folder, { ...options, report: (text) => report(`${title}: ${text}`) }, finish);
    } finally {
      finish();
    }
  } finally {
    release();
  }
}

/** Compiles and links programs of one folder into the cache. `onLinking` is called when nothing is left to compile. */
async function compile(
  programs: readonly GoProgram[],
  folder: string,
  { cache, report, signal }: BuildOptions,
  onLinking: () => void,
): Promise<void> {
  const started = performance.now();
  const elapsed = (): string => `${Math.round((performance.now() - started) / 1000)} s`;
  const partial = join(cache, 'partial', folderName(programs[0]!));
  let compiled = 0;
  const packages = programs.map((program) => (program.source ? buildModule : program.package));
  const mains = new Set(packages);
  const onLine = (line: string): void => {
    compiled += 1;
    // The linker uses one core: the next build may start.
    if (mains.delete(line) && mains.size === 0) onLinking();
  };
  report('compiling');
  const timer = setInterval(() => report(`compiling for ${elapsed()}, ${compiled} packages so far`), 5_000);
  try {
    // Left by a killed build; no other process uses it, because this one holds the lock.
    await rm(partial, { recursive: true, force: true });
    await mkdir(partial, { recursive: true });
    await mkdir(join(cache, 'bin'), { recursive: true });
    const variables = Object.assign({}, ...programs.map((program) => program.variables)) as Record<string, string>;
    const linking = ['-s', '-w', ...Object.entries(variables).map(([name, value]) => `-X ${name}=${value}`)].join(' ');
    // Compiling without debugging information, which -s -w would strip anyway, takes a seventh less time.
    const flags = ['-v', '-gcflags=all=-dwarf=false', '-ldflags', linking];
    await go(folder, ['build', ...flags, '-o', `${partial}/`, ...packages], { signal, onLine });
    for (const program of programs) {
      const built = binaryName(program.source ? buildModule : program.package);
      await rename(join(partial, built), cachedProgram(cache, program));
    }
    report(`done after ${elapsed()}`);
  } finally {
    clearInterval(timer);
    await rm(partial, { recursive: true, force: true });
  }
}

/** Returns the name that `go build` gives a program: the last part of its package that is not a major version. */
function binaryName(path: string): string {
  const parts = path.split('/');
  return /^v\d+$/.test(parts.at(-1)!) ? parts.at(-2)! : parts.at(-1)!;
}
