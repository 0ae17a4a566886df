// The upper layers of the image: Node, the production dependencies of the lock file, and the compiled programs.
import { execFileSync } from 'node:child_process';
import {
  chmodSync,
  copyFileSync,
  globSync,
  mkdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { buildDashboard } from '../dashboard/build.ts';
import { type Architecture, npmArchitecture } from './architecture.ts';
import { compile, compiledManifest, copyAssets, readManifest } from './compile.ts';
import { root } from './paths.ts';

/** The workspaces whose programs the image contains. */
const programs = ['apiserver', 'operator', 'verify'];

/** The workspaces that these import. */
const libraries = ['crds', 'kubernetes', 'proto'];

/** Where the image keeps its programs. */
const applicationFolder = 'app';

const node = '/usr/local/bin/node';

/** What Node does not read at run time; .bare files are for another runtime, and of all its platforms. */
const unneeded = /\.(d\.[cm]?ts|map|md|markdown|flow|tsbuildinfo|bare)$/;

/** Installs the production dependencies into `folder`, and returns the folder of Node's package. */
export function installDependencies(architecture: Architecture, folder: string, work: string): string {
  const workspaces = readManifest('')['workspaces'] as string[];
  for (const name of ['package.json', 'package-lock.json']) copyInto(work, name);
  for (const name of workspaces) copyInto(work, join(name, 'package.json'));
  const platform = ['--os=linux', `--cpu=${npmArchitecture(architecture)}`, '--libc=glibc'];
  const selected = programs.flatMap((name) => ['--workspace', name]);
  const quiet = ['--ignore-scripts', '--prefer-offline', '--no-audit', '--no-fund', '--loglevel=error'];
  // The repository's own optional dependency is Node.
  execFileSync('npm', ['ci', '--omit=dev', '--include-workspace-root', ...selected, ...platform, ...quiet], {
    cwd: work,
    stdio: ['ignore', 'ignore', 'inherit'],
  });
  const installed = join(work, 'node_modules');
  const target = join(folder, applicationFolder, 'node_modules');
  mkdirSync(target, { recursive: true });
  const nodePackage = `node-linux-${npmArchitecture(architecture)}`;
  const files = globSync('**/*', { cwd: installed, withFileTypes: true, exclude: [`${nodePackage}/**`, '@kellet/**'] });
  for (const file of files) {
    const source = join(file.parentPath, file.name);
    const path = source.slice(installed.length + 1);
    if (!file.isFile() || unneeded.test(file.name) || path.startsWith('.') || /^(\.bin|@types)\//.test(path)) continue;
    mkdirSync(dirname(join(target, path)), { recursive: true });
    copyFileSync(source, join(target, path));
  }
  return join(installed, nodePackage);
}

/** Copies Node's program and licence. */
export function copyNode(nodePackage: string, folder: string): void {
  const target = join(folder, node);
  mkdirSync(dirname(target), { recursive: true });
  copyFileSync(join(nodePackage, 'bin/node'), target);
  chmodSync(target, 0o755);
  mkdirSync(join(folder, 'usr/share/licenses/node'), { recursive: true });
  copyFileSync(join(nodePackage, 'LICENSE'), join(folder, 'usr/share/licenses/node/LICENSE'));
}

/** Builds the dashboard into `folder`, where the API server finds it. Returns the npm packages that it contains. */
export function copyDashboard(folder: string): string[] {
  const target = join(folder, applicationFolder, 'dashboard');
  const links = join(folder, applicationFolder, 'node_modules/@kellet');
  mkdirSync(target, { recursive: true });
  mkdirSync(links, { recursive: true });
  const packages = buildDashboard(join(target, 'dist'));
  // Only the built files are needed, not what builds them.
  const manifest = { ...compiledManifest(readManifest('dashboard')), exports: { './package.json': './package.json' } };
  writeFileSync(join(target, 'package.json'), `${JSON.stringify(manifest, undefined, 2)}\n`);
  symlinkSync('../../dashboard', join(links, 'dashboard'));
  return packages;
}

/** Compiles the programs into `folder`, and links each under /usr/local/bin. */
export function copyPrograms(folder: string, work: string): void {
  const application = join(folder, applicationFolder);
  compile([...programs, ...libraries], work);
  for (const file of globSync('**/*.js', { cwd: work })) {
    mkdirSync(dirname(join(application, file)), { recursive: true });
    // There is no env in the image.
    const text = readFileSync(join(work, file), 'utf8').replace(/^#!.*/, `#!${node}`);
    writeFileSync(join(application, file), text);
  }
  const links = join(application, 'node_modules/@kellet');
  mkdirSync(links, { recursive: true });
  mkdirSync(join(folder, 'usr/local/bin'), { recursive: true });
  for (const name of [...programs, ...libraries]) {
    const manifest = compiledManifest(readManifest(name));
    copyAssets(name, join(application, name));
    writeFileSync(join(application, name, 'package.json'), `${JSON.stringify(manifest, undefined, 2)}\n`);
    symlinkSync(join('../..', name), join(links, basename(manifest.name)));
    for (const [program, path] of Object.entries(manifest.bin ?? {})) {
      const target = join('/', applicationFolder, name, path);
      chmodSync(join(folder, target), 0o755);
      symlinkSync(target, join(folder, 'usr/local/bin', program));
    }
  }
  copyFileSync(join(root, 'LICENSE'), join(application, 'LICENSE'));
}

function copyInto(work: string, path: string): void {
  const target = join(work, path);
  mkdirSync(dirname(target), { recursive: true });
  rmSync(target, { force: true });
  copyFileSync(join(root, path), target);
}
