import { globSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { expect } from 'chai';
import { Linter } from 'eslint';
import ts from 'typescript';
import tseslint from 'typescript-eslint';
import { covers, folderOf, folders, importProblem, isForTests, layers, picture, plugin } from './layers.ts';

const root = path.dirname(import.meta.dirname);

/** All TypeScript files that are not generated, each with the files of this repository that it imports. */
const imports = new Map<string, readonly string[]>();

before(() => {
  const files = globSync(
    '{apiserver,bench,client,crds,dashboard,dev,device,e2e,kubectl,kubernetes,operator,packaging,proto,scripts,verify}/**/*.{ts,tsx}',
    {
      cwd: root,
      exclude: (name) => /(^|\/)(node_modules|dist|gen|generated)$|\.d\.ts$/.test(name),
    },
  );
  const known = new Set(files);
  for (const file of files) {
    const { importedFiles } = ts.preProcessFile(readFileSync(path.join(root, file), 'utf8'), true, true);
    const targets = importedFiles
      .filter(({ fileName }) => fileName.startsWith('.'))
      .map(({ fileName }) => path.join(path.dirname(file), fileName));
    imports.set(
      file,
      targets.filter((target) => known.has(target)),
    );
  }
});

/** Returns the strongly connected components with more than one node, by Tarjan's algorithm. */
function cycles(graph: ReadonlyMap<string, readonly string[]>): string[][] {
  const index = new Map<string, number>();
  const low = new Map<string, number>();
  const stack: string[] = [];
  const found: string[][] = [];
  const visit = (node: string): void => {
    index.set(node, index.size);
    low.set(node, index.get(node)!);
    stack.push(node);
    for (const next of graph.get(node) ?? []) {
      if (!index.has(next)) visit(next);
      if (stack.includes(next)) low.set(node, Math.min(low.get(node)!, low.get(next)!));
    }
    if (low.get(node) !== index.get(node)) return;
    const group = stack.splice(stack.indexOf(node));
    if (group.length > 1) found.push(group.sort());
  };
  for (const node of graph.keys()) if (!index.has(node)) visit(node);
  return found;
}

/** Returns the imports between folders of apiserver/src, without those of tests. */
function folderImports(): { from: string; to: string }[] {
  return [...imports].flatMap(([file, targets]) => {
    const from = isForTests(file) ? undefined : folderOf(path.join(root, file));
    if (from === undefined) return [];
    return targets.map((target) => ({ from, to: folderOf(path.join(root, target))! }));
  });
}

describe('the layers of apiserver/src', () => {
  it('have no cycles between folders at any depth', () => {
    for (const depth of [1, 2, 3]) {
      const cut = (folder: string) => folder.split('/').slice(0, depth).join('/');
      const graph = new Map<string, string[]>();
      for (const from of folders) {
        const below = folders.filter((to) => importProblem(from, to) === undefined && cut(to) !== cut(from));
        graph.set(cut(from), [...(graph.get(cut(from)) ?? []), ...below.map(cut)]);
      }
      expect(cycles(graph)).to.deep.equal([]);
    }
  });

  it('allow every import in the code, and nothing that is unused', () => {
    const used = folderImports().filter(({ from, to }) => from !== to);
    expect(used.length).to.be.greaterThan(500);
    expect(used.flatMap(({ from, to }) => importProblem(from, to) ?? [])).to.deep.equal([]);
    const unused = Object.entries(layers).flatMap(([folder, entries]) =>
      entries
        .filter((entry) => !used.some(({ from, to }) => from === folder && covers(entry, to)))
        .map((entry) => `${folder} → ${entry}`),
    );
    expect(unused).to.deep.equal([]);
    const inUse = new Set(folderImports().flatMap(({ from, to }) => [from, to]));
    expect(folders.filter((folder) => !inUse.has(folder))).to.deep.equal([]);
  });

  it('match the table in docs/architecture.md', () => {
    expect(readFileSync(path.join(root, 'docs/architecture.md'), 'utf8')).to.contain(
      `\n\`\`\`\n${picture()}\n\`\`\`\n`,
    );
  });
});

/**
 * Returns for every folder which of its folders import which others of them, without the imports of tests. Files that
 * lie in the folder itself are left out: entry points, which import its folders, and
 * what several of them share (docs/architecture.md).
 */
function siblingImports(graph: ReadonlyMap<string, readonly string[]>): Map<string, Map<string, string[]>> {
  const parents = new Map<string, Map<string, string[]>>();
  for (const [file, targets] of graph) {
    if (isForTests(file)) continue;
    const from = path.dirname(file).split('/');
    for (const target of targets) {
      const to = path.dirname(target).split('/');
      const depth = from.findIndex((name, index) => name !== to[index]);
      if (depth < 1 || to[depth] === undefined) continue;
      const parent = from.slice(0, depth).join('/');
      const siblings = parents.get(parent) ?? new Map<string, string[]>();
      siblings.set(from[depth]!, [...(siblings.get(from[depth]!) ?? []), to[depth]]);
      parents.set(parent, siblings);
    }
  }
  return parents;
}

describe('import cycles between sibling folders', () => {
  const circles = (graph: ReadonlyMap<string, readonly string[]>): string[] =>
    [...siblingImports(graph)].flatMap(([parent, siblings]) =>
      cycles(siblings).map((names) => `${parent}: ${names.join(', ')}`),
    );

  it('are detected at any depth, without files that lie beside the folders', () => {
    const graph = new Map([
      ['w/main.ts', ['w/a/one.ts']],
      ['w/a/one.ts', ['w/shared.ts', 'w/a/b/two.ts']],
      ['w/a/b/two.ts', ['w/a/c/three.ts', 'w/d/five.ts']],
      ['w/a/c/three.ts', ['w/a/b/four.ts']],
      ['w/d/five.test.ts', ['w/a/one.ts']],
    ]);
    expect(circles(graph)).to.deep.equal(['w/a: b, c']);
  });

  it('do not exist in any workspace', () => {
    expect(circles(imports)).to.deep.equal([]);
  });
});

describe('import cycles between files', () => {
  it('are detected', () => {
    const graph = new Map([
      ['a', ['b']],
      ['b', ['c', 'd']],
      ['c', ['a']],
      ['d', []],
    ]);
    expect(cycles(graph)).to.deep.equal([['a', 'b', 'c']]);
  });

  it('do not exist in any workspace', () => {
    expect(imports.size).to.be.greaterThan(600);
    expect(cycles(imports)).to.deep.equal([]);
  });
});

describe('test helpers', () => {
  /** Files imported only by tests that are not test helpers: entry points of packages, and programs. */
  const entryPoints = [
    'crds/compatibility.ts',
    'crds/generate.ts',
    'crds/src/index.ts',
    'e2e/fuzz/run.ts',
    'scripts/layers.ts',
    'scripts/report-metrics.ts',
    'verify/src/index.ts',
  ];

  it('are in testing folders', () => {
    const importers = new Map<string, string[]>();
    for (const [file, targets] of imports) {
      for (const target of targets) importers.set(target, [...(importers.get(target) ?? []), file]);
    }
    const stray = [...importers].flatMap(([file, by]) => (!isForTests(file) && by.every(isForTests) ? [file] : []));
    expect(stray.sort()).to.deep.equal(entryPoints);
  });
});

describe('the lint rules for imports', () => {
  const messagesOf = (file: string, code: string): string[] =>
    new Linter({ cwd: root })
      .verify(
        code,
        [
          {
            files: ['**/*.ts'],
            languageOptions: { parser: tseslint.parser },
            plugins: { kellet: plugin },
            rules: { 'kellet/layers': 'error', 'kellet/test-helpers': 'error' },
          },
        ] as Linter.Config[],
        path.join(root, file),
      )
      .map(({ message }) => message);

  const table: [what: string, file: string, code: string, message: string | undefined][] = [
    ['a lower layer', 'auth/service.ts', `import { a } from '../platform/errors.ts';`, undefined],
    ['the same folder', 'auth/service.ts', `import { a } from './other.ts';`, undefined],
    ['its own subfolder', 'auth/service.ts', `import { a } from './sign-in/sessions.ts';`, undefined],
    ['a package', 'auth/service.ts', `import { a } from '@kellet/crds';`, undefined],
    [
      'a higher layer',
      'auth/service.ts',
      `import { a } from '../tenants/tenants.ts';`,
      'tenants is in a higher layer than auth',
    ],
    [
      'a type of a higher layer',
      'auth/x.ts',
      `import type { A } from '../tenants/tenants.ts';`,
      'tenants is in a higher layer than auth',
    ],
    [
      'an inline type import',
      'auth/x.ts',
      `type A = import('../tenants/x.ts').A;`,
      'tenants is in a higher layer than auth',
    ],
    [
      'an export',
      'auth/service.ts',
      `export { a } from '../tenants/tenants.ts';`,
      'tenants is in a higher layer than auth',
    ],
    [
      'all exports',
      'auth/service.ts',
      `export * from '../tenants/tenants.ts';`,
      'tenants is in a higher layer than auth',
    ],
    [
      'a dynamic import',
      'auth/x.ts',
      `await import('../tenants/tenants.ts');`,
      'tenants is in a higher layer than auth',
    ],
    [
      'the parent folder',
      'auth/users/x.ts',
      `import { a } from '../service.ts';`,
      'auth is in a higher layer than auth/users',
    ],
    [
      'a lower layer that is not listed',
      'policies/x.ts',
      `import { a } from '../config/config.ts';`,
      'policies must not import config',
    ],
    [
      'a subfolder that is not listed',
      'openapi/x.ts',
      `import { a } from '../gateway/grpc/x.ts';`,
      'openapi must not import',
    ],
    ['a folder without a row', 'novel/x.ts', `import { a } from '../platform/x.ts';`, 'apiserver/src/novel has no row'],
    ['a helper', 'auth/x.ts', `import { a } from './testing/test-auth.ts';`, 'must not import test helpers'],
    ['a test', 'auth/x.ts', `import { a } from './x.test.ts';`, 'must not import test helpers'],
    ['an assertion library', 'auth/x.ts', `import { expect } from 'chai';`, 'chai is for tests'],
    ['(a name)', 'auth/test-x.ts', `export const a = 1;`, 'belongs in a testing/ folder'],
  ];
  for (const [what, file, code, message] of table) {
    it(`${message === undefined ? 'allow' : 'reject'} ${what}: ${file}, ${code}`, () => {
      const messages = messagesOf(`apiserver/src/${file}`, code);
      if (message === undefined) expect(messages).to.deep.equal([]);
      else expect(messages.join('\n')).to.contain(message);
    });
  }
});
