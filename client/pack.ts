// Builds the package for other projects (`make client`): the sources here are TypeScript, which Node does not run from
// node_modules. client/dist/package/ has JavaScript and declarations; the path of its tarball is printed to standard
// output.
import { execFileSync } from 'node:child_process';
import { copyFileSync, globSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

const source = import.meta.dirname;
const output = join(source, 'dist');
const packageFolder = join(output, 'package');
const run = (program: string, ...parameters: string[]): string =>
  execFileSync(program, parameters, { cwd: output, encoding: 'utf8', stdio: ['ignore', 'pipe', 'inherit'] });

rmSync(output, { recursive: true, force: true });
execFileSync('tsc', ['--project', source], { stdio: ['ignore', 'inherit', 'inherit'] });

// The compiler rewrites import extensions to .js in programs, but not in declarations.
for (const file of globSync('**/*.d.ts', { cwd: packageFolder })) {
  const path = join(packageFolder, file);
  writeFileSync(path, readFileSync(path, 'utf8').replace(/ from '(\.[^']*)\.ts';/g, " from '$1.js';"));
}

const manifest = JSON.parse(readFileSync(join(source, 'package.json'), 'utf8')) as Record<string, unknown>;
const published = {
  ...manifest,
  private: undefined,
  scripts: undefined,
  devDependencies: undefined,
  engines: { node: '>=20' },
  exports: { '.': { types: './index.d.ts', default: './index.js' } },
};
writeFileSync(join(packageFolder, 'package.json'), `${JSON.stringify(published, null, 2)}\n`);
copyFileSync(join(source, 'README.md'), join(packageFolder, 'README.md'));
copyFileSync(join(source, '../LICENSE'), join(packageFolder, 'LICENSE'));

const [packed] = JSON.parse(run('npm', 'pack', '--json', '--loglevel=error', packageFolder)) as { filename: string }[];
process.stdout.write(`${join(output, packed!.filename)}\n`);
