// Each workspace declares what it imports, and imports what it declares.
import { globSync, readFileSync } from 'node:fs';
import { isBuiltin } from 'node:module';
import path from 'node:path';
import { expect } from 'chai';
import ts from 'typescript';

const root = path.dirname(import.meta.dirname);

interface Manifest {
  readonly name: string;
  readonly workspaces?: readonly string[];
  readonly scripts?: Readonly<Record<string, string>>;
  readonly dependencies?: Readonly<Record<string, string>>;
  readonly devDependencies?: Readonly<Record<string, string>>;
  readonly peerDependencies?: Readonly<Record<string, string>>;
}

const manifestOf = (workspace: string): Manifest =>
  JSON.parse(readFileSync(path.join(root, workspace, 'package.json'), 'utf8')) as Manifest;

const packageOf = (specifier: string): string => specifier.split('/', specifier.startsWith('@') ? 2 : 1).join('/');

/** The packages that the files below a folder import, generated ones included. */
function importsOf(workspace: string): Set<string> {
  const files = globSync(`${workspace}/**/*.{ts,js}`, {
    cwd: root,
    exclude: (name) => /(^|\/)(node_modules|dist)$/.test(name),
  });
  const specifiers = files.flatMap((file) => {
    const text = readFileSync(path.join(root, file), 'utf8');
    const found = ts.preProcessFile(text, true, true).importedFiles.map(({ fileName }) => fileName);
    // Files of a package that are read without being imported.
    const resolved = [...text.matchAll(/(?:require|import\.meta|createRequire\([^)]*\))\.resolve\(\s*['`]([^'`$]+)/g)];
    return [...found, ...resolved.map((match) => match[1]!)];
  });
  return new Set(specifiers.filter((specifier) => !specifier.startsWith('.') && !isBuiltin(specifier)).map(packageOf));
}

describe('the packages', () => {
  const top = manifestOf('.');
  /** What the tests, types and tools of all workspaces share. */
  const shared = new Set(Object.keys(top.devDependencies ?? {}));

  for (const workspace of top.workspaces!) {
    it(`of ${workspace} are those that it imports`, () => {
      const manifest = manifestOf(workspace);
      const { dependencies, devDependencies, peerDependencies } = manifest;
      const declared = Object.keys({ ...dependencies, ...devDependencies, ...peerDependencies });
      const imported = importsOf(workspace);
      const scripts = Object.values(manifest.scripts ?? {}).join(' ');
      const missing = [...imported].filter(
        (name) => name !== manifest.name && !declared.includes(name) && !shared.has(name),
      );
      const unused = declared.filter((name) => {
        const untyped = name.replace(/^@types\//, '').replace('__', '/');
        return !imported.has(name) && !imported.has(untyped) && !scripts.includes(name);
      });
      expect({ missing: missing.sort(), unused: unused.sort() }).to.deep.equal({ missing: [], unused: [] });
    });
  }
});
