// Checks that what a file exports is imported by another: functions, classes and constants. Types may be exported for their
// name alone, and packages export what is in their index.ts.
import { globSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { expect } from 'chai';
import ts from 'typescript';

const root = path.dirname(import.meta.dirname);

/** Called by mocha. */
const hooks = new Set(['mochaGlobalSetup', 'mochaGlobalTeardown', 'GateReporter']);

const isGenerated = (name: string): boolean => /(^|\/)(node_modules|dist|gen|generated)$|\.d\.ts$/.test(name);

/** Returns the names of the values that a statement exports. */
function exportedBy(statement: ts.Statement): string[] {
  const isExported = ts.canHaveModifiers(statement)
    ? ts.getModifiers(statement)?.some(({ kind }) => kind === ts.SyntaxKind.ExportKeyword)
    : false;
  if (!isExported) return [];
  if (ts.isVariableStatement(statement)) {
    return statement.declarationList.declarations.flatMap(({ name }) =>
      ts.isIdentifier(name)
        ? name.text
        : name.elements.flatMap((element) =>
            ts.isBindingElement(element) && ts.isIdentifier(element.name) ? element.name.text : [],
          ),
    );
  }
  const isNamed = ts.isFunctionDeclaration(statement) || ts.isClassDeclaration(statement);
  return isNamed && statement.name ? [statement.name.text] : [];
}

/** Returns what a statement imports or exports again, from which file; `*` for everything. */
function importedBy(statement: ts.Statement): { from: string; names: string[] } | undefined {
  const isImport = ts.isImportDeclaration(statement);
  if (!isImport && !ts.isExportDeclaration(statement)) return undefined;
  const specifier = statement.moduleSpecifier;
  if (!specifier || !ts.isStringLiteral(specifier) || !specifier.text.startsWith('.')) return undefined;
  const bindings = isImport ? statement.importClause?.namedBindings : statement.exportClause;
  const isList = bindings && (ts.isNamedImports(bindings) || ts.isNamedExports(bindings));
  const names = isList ? bindings.elements.map(({ name, propertyName }) => (propertyName ?? name).text) : ['*'];
  return { from: specifier.text, names };
}

describe('exports', () => {
  it('are each imported by another file', function () {
    this.timeout(60_000);
    const exported = new Map<string, string[]>();
    const used = new Set<string>();
    for (const file of globSync('*/**/*.{ts,tsx,js}', { cwd: root, exclude: isGenerated })) {
      const text = readFileSync(path.join(root, file), 'utf8');
      const folder = path.dirname(file);
      const { statements } = ts.createSourceFile(file, text, ts.ScriptTarget.Latest);
      exported.set(file, statements.flatMap(exportedBy));
      for (const statement of statements) {
        const imported = importedBy(statement);
        for (const name of imported?.names ?? []) used.add(`${path.join(folder, imported!.from)} ${name}`);
      }
      for (const [, target] of text.matchAll(/\bimport\(\s*'(\.[^']+)'/g)) used.add(`${path.join(folder, target!)} *`);
    }
    // The linter's configuration is outside of all folders.
    used.add('scripts/layers.ts plugin');
    const unused = [...exported].flatMap(([file, names]) =>
      used.has(`${file} *`)
        ? []
        : names.filter((name) => !used.has(`${file} ${name}`) && !hooks.has(name)).map((name) => `${file}: ${name}`),
    );
    expect(unused).to.deep.equal([]);
  });
});
