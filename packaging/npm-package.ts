// Packs a library for other projects, as JavaScript with declarations and source maps.
import { execFileSync } from 'node:child_process';
import { copyFileSync, cpSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { compile, compiledManifest, copyAssets, type Manifest, readManifest } from './compile.ts';
import { root } from './paths.ts';

/** Engines that run the packages. They use nothing newer than ES2022, so that bundlers for browsers take them too. */
const engines = { node: '>=22' };

/** Compiles and packs a workspace into `target`. Returns the path of its tarball. */
export function packLibrary(workspace: string, target: string): string {
  const work = mkdtempSync(join(tmpdir(), 'kellet-package-'));
  try {
    const folder = join(work, 'package');
    mkdirSync(folder);
    compile([workspace], join(work, 'compiled'), { declarations: true, target: 'es2022' });
    cpSync(join(work, 'compiled', workspace), folder, { recursive: true });
    copyAssets(workspace, folder);
    return pack({ ...compiledManifest(readManifest(workspace)), engines }, folder, target);
  } finally {
    rmSync(work, { recursive: true, force: true });
  }
}

/** Writes the manifest and the licence into `folder` and packs it into `target`. Returns the path of the tarball. */
export function pack(manifest: Manifest, folder: string, target: string): string {
  writeFileSync(join(folder, 'package.json'), `${JSON.stringify(manifest, undefined, 2)}\n`);
  copyFileSync(join(root, 'LICENSE'), join(folder, 'LICENSE'));
  mkdirSync(target, { recursive: true });
  const output = execFileSync('npm', ['pack', '--json', '--loglevel=error', '--ignore-scripts', folder], {
    cwd: target,
    encoding: 'utf8',
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const [packed] = JSON.parse(output) as { filename: string }[];
  return join(target, packed!.filename);
}
