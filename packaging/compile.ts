// Compiles workspaces to JavaScript: Node does not run TypeScript from node_modules, and an installation needs neither the
// compiler nor its start-up time.
import { execFileSync } from 'node:child_process';
import { copyFileSync, globSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { root } from './paths.ts';

/** The parts of a package.json that packaging reads. */
export interface Manifest {
  name: string;
  version: string;
  description?: string;
  bin?: Record<string, string>;
  exports?: Record<string, string | { types: string; default: string }>;
  files?: string[];
  dependencies?: Record<string, string>;
  [field: string]: unknown;
}

/** Reads the manifest of a workspace, or the repository's own for ''. */
export const readManifest = (workspace: string): Manifest =>
  JSON.parse(readFileSync(join(root, workspace, 'package.json'), 'utf8')) as Manifest;

/**
 * Compiles the given workspaces of the repository into `output`, which keeps the repository's folders. `declarations`
 * adds declarations and source maps; `target` is the version of ECMAScript.
 */
export function compile(
  workspaces: readonly string[],
  output: string,
  options: { declarations?: boolean; target?: string } = {},
): void {
  rmSync(output, { recursive: true, force: true });
  mkdirSync(output, { recursive: true });
  const configuration = join(output, 'tsconfig.json');
  const compilerOptions = {
    noEmit: false,
    rootDir: root,
    target: options.target ?? 'es2024',
    outDir: output,
    types: ['node'],
    typeRoots: [join(root, 'node_modules/@types')],
    declaration: options.declarations ?? false,
    declarationMap: false,
    sourceMap: options.declarations ?? false,
    inlineSources: options.declarations ?? false,
  };
  const settings = {
    extends: join(root, 'tsconfig.json'),
    compilerOptions,
    include: workspaces.flatMap((name) =>
      readManifest(name).files!.map((folder) => join(root, name, folder, '**/*.ts')),
    ),
    exclude: ['**/*.test.ts', '**/testing/**', '**/generate.ts'].map((pattern) => join(root, pattern)),
  };
  writeFileSync(configuration, JSON.stringify(settings));
  execFileSync(join(root, 'node_modules/.bin/tsc'), ['--project', configuration], {
    stdio: ['ignore', 'inherit', 'inherit'],
  });
  rmSync(configuration);
  // The compiler rewrites the extensions of imports in programs, but not in declarations.
  for (const file of globSync('**/*.d.ts', { cwd: output })) {
    const path = join(output, file);
    writeFileSync(path, readFileSync(path, 'utf8').replace(/((?:from|import\() ?'\.[^']*)\.ts'/g, "$1.js'"));
  }
}

/** Copies the files that a workspace's manifest lists, except sources, next to its compiled ones. */
export function copyAssets(workspace: string, output: string): void {
  for (const entry of readManifest(workspace).files ?? []) {
    const cwd = join(root, workspace);
    for (const file of globSync([entry, `${entry}/**/*`], { cwd, withFileTypes: true })) {
      const path = join(file.parentPath, file.name).slice(cwd.length + 1);
      if (!file.isFile() || path.endsWith('.ts') || path.includes('/testing/')) continue;
      mkdirSync(dirname(join(output, path)), { recursive: true });
      copyFileSync(join(cwd, path), join(output, path));
    }
  }
}

/** Returns the manifest of a compiled workspace: without what only its sources need, and with the names of its programs. */
export function compiledManifest(manifest: Manifest): Manifest {
  const { scripts: _scripts, devDependencies: _devDependencies, private: _private, ...published } = manifest;
  const compiledName = (path: string): string => path.replace(/\.ts$/, '.js');
  const compiledExport = (path: string): string | { types: string; default: string } =>
    path.endsWith('.ts') ? { types: path.replace(/\.ts$/, '.d.ts'), default: compiledName(path) } : path;
  const mapped = <T>(entries: Record<string, T> | undefined, convert: (value: string) => unknown) =>
    entries && Object.fromEntries(Object.entries(entries).map(([name, value]) => [name, convert(value as string)]));
  return {
    ...published,
    ...(manifest.bin && { bin: mapped(manifest.bin, compiledName) as Record<string, string> }),
    ...(manifest.exports && { exports: mapped(manifest.exports, compiledExport) as Manifest['exports'] }),
  };
}
