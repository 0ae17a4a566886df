// Builds the plugin's archive and its krew manifest: node kubectl/package.ts [--uri URL]. The archive contains compiled
// JavaScript and the libraries of the lock file, so it only needs Node. The build is reproducible.
import { execFileSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { chmodSync, cpSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join, relative, resolve } from 'node:path';
import { parseArgs } from 'node:util';

const root = resolve(import.meta.dirname, '..');
const dist = join(root, 'dist');
const folder = join(dist, 'kubectl-kellet');
const archive = join(dist, 'kubectl-kellet.tar.gz');
const { values } = parseArgs({ options: { uri: { type: 'string', default: 'file://' + archive } } });
const run = (program: string, ...args: string[]): string =>
  execFileSync(program, args, { cwd: root, encoding: 'utf8' });
const manifest = JSON.parse(readFileSync(join(root, 'kubectl/package.json'), 'utf8')) as { version: string };

rmSync(folder, { recursive: true, force: true });
mkdirSync(folder, { recursive: true });
run('node_modules/.bin/tsc', '--project', 'kubectl/tsconfig.package.json');
cpSync(join(folder, 'compiled/kubectl/src'), join(folder, 'src'), { recursive: true });
for (const name of ['crds', 'kubernetes']) {
  const target = join(folder, 'node_modules/@kellet', name);
  cpSync(join(folder, 'compiled', name, 'src'), join(target, 'src'), { recursive: true });
  const described = { name: `@kellet/${name}`, type: 'module', exports: './src/index.js' };
  writeFileSync(join(target, 'package.json'), JSON.stringify(described));
}
rmSync(join(folder, 'compiled'), { recursive: true });
writeFileSync(join(folder, 'package.json'), JSON.stringify({ ...manifest, private: true }, undefined, 2));
cpSync(join(root, 'LICENSE'), join(folder, 'LICENSE'));
writeFileSync(join(folder, 'kubectl-kellet'), "#!/usr/bin/env node\nimport './src/main.js';\n");
cpSync(join(root, 'kubectl/kubectl_complete-kellet'), join(folder, 'kubectl_complete-kellet'));
for (const program of ['kubectl-kellet', 'kubectl_complete-kellet']) chmodSync(join(folder, program), 0o755);

// Production dependencies as installed for this workspace.
const installed = run('npm', 'ls', '--all', '--omit=dev', '--parseable', '--workspace', '@kellet/kubectl').split('\n');
for (const path of new Set(installed)) {
  const name = relative(root, path);
  if (!name.startsWith('node_modules/') || name.startsWith('node_modules/@kellet/')) continue;
  cpSync(path, join(folder, name), { recursive: true, filter: (file) => !/\.(d\.[cm]?ts|map)$/.test(file) });
}

run(
  'tar',
  '--sort=name',
  '--mtime=@0',
  '--owner=0',
  '--group=0',
  '--numeric-owner',
  '-czf',
  archive,
  '-C',
  folder,
  '.',
);
const sha256 = createHash('sha256').update(readFileSync(archive)).digest('hex');
const filled = { VERSION: `v${manifest.version}`, URI: values.uri, SHA256: sha256 };
const text = readFileSync(join(root, 'kubectl/krew.yaml'), 'utf8').replace(/^#.*\n/gm, '');
writeFileSync(
  join(dist, 'kellet.yaml'),
  text.replace(/\$\{(\w+)\}/g, (_, name: keyof typeof filled) => filled[name]),
);
process.stdout.write(`${archive}\n${join(dist, 'kellet.yaml')}\n`);
