// Builds the dashboard into dist/, which the API server serves as it is: `npm run build --workspace dashboard`. It takes
// a fraction of a second, so the local stack does it at each start.
import { copyFileSync, mkdirSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { buildSync } from 'esbuild';
import { pages } from './src/routes.ts';

const folder = import.meta.dirname;

/** Where the API server looks for the files. */
const builtFolder = join(folder, 'dist');

/** Builds the files into `output`. Returns the names of the npm packages that they contain. */
export function buildDashboard(output = builtFolder): string[] {
  // Another process may be reading the files: they are complete before they get their names.
  const work = `${output}.${process.pid}`;
  mkdirSync(join(work, 'assets'), { recursive: true });
  const { metafile } = buildSync({
    absWorkingDir: folder,
    entryPoints: { application: 'src/main.tsx' },
    outdir: join(work, 'assets'),
    bundle: true,
    format: 'esm',
    target: 'es2023',
    jsx: 'automatic',
    jsxImportSource: 'preact',
    minify: true,
    legalComments: 'none',
    charset: 'utf8',
    metafile: true,
    logLevel: 'warning',
  });
  copyFileSync(join(folder, 'icon.svg'), join(work, 'assets/icon.svg'));
  copyFileSync(join(folder, 'index.html'), join(work, 'index.html'));
  writeFileSync(join(work, 'pages.json'), `${JSON.stringify(pages)}\n`);
  rmSync(output, { recursive: true, force: true });
  renameSync(work, output);
  const names = Object.keys(metafile.inputs).map((path) => /.*node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(path)?.[1]);
  return [...new Set(names)].filter((name) => name !== undefined).sort();
}

if (import.meta.main) process.stderr.write(`dashboard/dist with ${buildDashboard().join(', ')}\n`);
