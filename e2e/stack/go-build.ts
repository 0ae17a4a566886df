// Builds a program from a published Go module into the cache, once for all checkouts of this user.
import { execFile, spawn } from 'node:child_process';
import { access, mkdir, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { setPriority } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { promisify } from 'node:util';
import { lock } from './file-lock.ts';

const execute = promisify(execFile);

/** How a program is built. */
export interface GoProgram {
  name: string;
  /** The module's version, as in `v1.35.4`; part of the file name in the cache. */
  version: string;
  module: string;
  /** The main package. */
  package: string;
  /** Variables set at link time: import path and name to value. */
  variables?: Readonly<Record<string, string>>;
  /** Programs of one module share a build folder under this name; the program's own name when absent. */
  family?: string;
  /** The `-replace` edits that our go.mod needs, from the text of the module's own go.mod. */
  replacements?: (goMod: string) => string[];
}

/** One line for a person to read. */
export type Report = (line: string) => void;

/** Where programs are kept, who hears of progress, and what calls the build off. */
export interface BuildOptions {
  cache: string;
  report: Report;
  signal?: AbortSignal | undefined;
}

/** The place of a program in the cache. */
export function cachedProgram(cache: string, { name, version }: GoProgram): string {
  return join(cache, 'bin', `${name}-${version}`);
}

/** Whether a file is there. */
export async function fileExists(path: string): Promise<boolean> {
  return access(path).then(
    () => true,
    () => false,
  );
}

/** Go's own settings win over the user's where the result would differ. */
function goEnvironment(): NodeJS.ProcessEnv {
  return { ...process.env, CGO_ENABLED: '0', GOWORK: 'off', GOFLAGS: `${process.env.GOFLAGS ?? ''} -mod=mod`.trim() };
}

/** Runs go in a folder, calling `onLine` for each line it writes; rejects with its last lines. */
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
    // A build of minutes must leave the machine usable.
    if (child.pid) setPriority(child.pid, 10);
  } catch {
    // Not allowed here: the build runs at the usual priority.
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

/** The folder of a Go module of ours that requires the program's module at its version. Made once. */
async function moduleFolder(
  { cache, signal }: BuildOptions,
  program: GoProgram,
  siblings: readonly GoProgram[],
): Promise<string> {
  const folder = join(cache, 'modules', `${program.family ?? program.name}-${program.version}`);
  if (await fileExists(join(folder, 'ready'))) return folder;
  await rm(folder, { recursive: true, force: true });
  await mkdir(folder, { recursive: true });
  await go(folder, ['mod', 'init', 'kellet.dev/build']);
  if (program.replacements) {
    const reference = `${program.module}@${program.version}`;
    const { stdout } = await execute('go', ['mod', 'download', '-json', reference], {
      cwd: folder,
      env: goEnvironment(),
      maxBuffer: 1 << 24,
    });
    const { GoMod } = JSON.parse(stdout) as { GoMod: string };
    const edits = program.replacements(await readFile(GoMod, 'utf8')).map((replacement) => `-replace=${replacement}`);
    await go(folder, ['mod', 'edit', `-require=${reference}`, ...edits]);
  }
  // As tools, so that only what the programs need is fetched and not what the tests of their dependencies need.
  await go(folder, ['get', '-tool', ...siblings.map((sibling) => `${sibling.package}@${sibling.version}`)], { signal });
  await writeFile(join(folder, 'ready'), '');
  return folder;
}

/** Whether `go` can be run. */
export async function hasGo(): Promise<boolean> {
  return execute('go', ['version']).then(
    () => true,
    () => false,
  );
}

/**
 * Builds every program that is not in the cache yet, one after the other, and answers their paths by name. Only one
 * process of this user builds at a time; a finished program appears under its name at once and whole. A line of
 * progress is reported every few seconds.
 */
export async function buildPrograms(
  programs: readonly GoProgram[],
  options: BuildOptions,
): Promise<Record<string, string>> {
  const { cache, report, signal } = options;
  const paths = Object.fromEntries(programs.map((program) => [program.name, cachedProgram(cache, program)]));
  const present = async () => Promise.all(programs.map((program) => fileExists(paths[program.name]!)));
  if ((await present()).every(Boolean)) return paths;
  if (!(await hasGo())) {
    const names = programs.map(({ name, version }) => `${name} ${version}`).join(', ');
    throw new Error(
      `${names}: neither found nor to be built, because there is no Go (1.25 or later) on PATH. ` +
        'Install Go, or a container engine with kind, or set KUBEBUILDER_ASSETS (and NATS_URL).',
    );
  }
  const waiting = (seconds: number) => report(`waiting for another build to finish (${seconds} s)`);
  const release = await lock(join(cache, 'build.lock'), waiting, signal);
  try {
    const found = await present();
    const missing = programs.filter((_, index) => !found[index]);
    for (const [index, program] of missing.entries()) {
      const siblings = programs.filter((other) => other.family !== undefined && other.family === program.family);
      const title = `building ${program.name} ${program.version} (${index + 1} of ${missing.length})`;
      const withTitle = { ...options, report: (text: string) => report(`${title}: ${text}`) };
      await buildProgram(program, siblings.length ? siblings : [program], withTitle);
    }
  } finally {
    release();
  }
  return paths;
}

async function buildProgram(program: GoProgram, siblings: readonly GoProgram[], options: BuildOptions) {
  const { cache, report, signal } = options;
  const started = performance.now();
  const elapsed = () => `${Math.round((performance.now() - started) / 1000)} s`;
  let compiled = 0;
  let doing = 'fetching modules';
  report(doing);
  const timer = setInterval(() => report(`${elapsed()}, ${compiled ? `${compiled} packages compiled` : doing}`), 5_000);
  try {
    const folder = await moduleFolder(options, program, siblings);
    doing = 'compiling';
    const target = cachedProgram(cache, program);
    const partial = `${target}.${process.pid}.partial`;
    await mkdir(join(cache, 'bin'), { recursive: true });
    const variables = Object.entries(program.variables ?? {}).map(([name, value]) => `-X ${name}=${value}`);
    const linking = ['-s', '-w', ...variables].join(' ');
    await go(folder, ['build', '-v', '-ldflags', linking, '-o', partial, program.package], {
      signal,
      onLine: () => compiled++,
    });
    await rename(partial, target);
    report(`done after ${elapsed()}`);
  } finally {
    clearInterval(timer);
  }
}
