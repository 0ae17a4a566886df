// Builds kubectl-kellet as one file, which only needs Node, with its npm package, its archive for krew and the archive's
// manifest. The archive is reproducible.
import { createHash } from 'node:crypto';
import { chmodSync, copyFileSync, existsSync, globSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join, relative } from 'node:path';
import { build, type Metafile } from 'esbuild';
import { writeTar } from './archive.ts';
import { readManifest } from './compile.ts';
import { pack } from './npm-package.ts';
import { root } from './paths.ts';

const program = 'kubectl-kellet';
const completion = 'kubectl_complete-kellet';

/** What `packPlugin` has written. */
export interface PackedPlugin {
  /** The npm package. */
  tarball: string;
  /** The archive for krew. */
  archive: string;
  /** krew's manifest. */
  manifest: string;
}

/** Builds everything into `target`. `uri` is the address from which krew will fetch the archive. */
export async function packPlugin(target: string, uri?: string): Promise<PackedPlugin> {
  const folder = join(target, program);
  rmSync(folder, { recursive: true, force: true });
  mkdirSync(folder, { recursive: true });
  const { metafile } = await build({
    absWorkingDir: root,
    entryPoints: ['kubectl/src/main.ts'],
    outfile: join(folder, program),
    bundle: true,
    platform: 'node',
    format: 'esm',
    target: 'node22',
    minifySyntax: true,
    minifyWhitespace: true,
    legalComments: 'none',
    metafile: true,
    logLevel: 'error',
    // Libraries in CommonJS require modules of Node.
    banner: { js: "import { createRequire } from 'node:module';const require = createRequire(import.meta.url);" },
  });
  copyFileSync(join(root, 'kubectl', completion), join(folder, completion));
  for (const name of [program, completion]) chmodSync(join(folder, name), 0o755);
  writeFileSync(join(folder, 'LICENSES-OF-LIBRARIES'), licencesOf(metafile));

  const { name, version, license } = readManifest('kubectl');
  const published = {
    ...{ name, version, license, type: 'module', engines: { node: '>=22' } },
    description: 'kubectl plugin of Kellet: watches, plans and controls rollouts',
    bin: { [program]: `./${program}`, [completion]: `./${completion}` },
  };
  const tarball = pack(published, folder, target);

  const archive = join(target, `${program}.tar.gz`);
  writeTar(folder, archive, ['.'], 'gzip -n');
  const sha256 = createHash('sha256').update(readFileSync(archive)).digest('hex');
  const filled = { VERSION: `v${version}`, URI: uri ?? `file://${archive}`, SHA256: sha256 };
  const text = readFileSync(join(root, 'kubectl/krew.yaml'), 'utf8').replace(/^#.*\n/gm, '');
  const manifest = join(target, 'kellet.yaml');
  writeFileSync(
    manifest,
    text.replace(/\$\{(\w+)\}/g, (_, field: keyof typeof filled) => filled[field]),
  );
  return { tarball, archive, manifest };
}

/** Returns the licences of the libraries in a bundle, which they require to be kept with it. */
function licencesOf(metafile: Metafile): string {
  const packages = new Set<string>();
  for (const file of Object.keys(metafile.inputs)) {
    const found = /^(.*node_modules\/(?:@[^/]+\/)?[^/]+)\//.exec(relative(root, join(root, file)));
    if (found) packages.add(found[1]!);
  }
  return [...packages]
    .toSorted()
    .map((path) => {
      const folder = join(root, path);
      const { name, version, license } = JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8')) as {
        name: string;
        version: string;
        license?: string;
      };
      const files = globSync('{LICEN[CS]E,licen[cs]e,COPYING,NOTICE}*', { cwd: folder }).toSorted();
      const texts = files.map((file) => join(folder, file)).filter(existsSync);
      return [
        `${name} ${version} (${license ?? 'see below'})`,
        ...texts.map((file) => readFileSync(file, 'utf8')),
      ].join('\n\n');
    })
    .join(`\n\n${'-'.repeat(80)}\n\n`);
}
