import { globSync, readFileSync } from 'node:fs';
import path from 'node:path';
import ts from 'typescript';
import { isForTests } from '../layers.ts';

const root = path.dirname(path.dirname(import.meta.dirname));

/** A text that stands in a program: a string, or a template with its placeholders as written. */
export interface Literal {
  /** The file, from the repository's root. */
  readonly file: string;
  readonly text: string;
}

/** Returns the hand-written TypeScript files below a folder, without tests and their helpers. */
export const sources = (folder: string): string[] =>
  globSync(`${folder}/**/*.ts`, {
    cwd: root,
    exclude: (name) => /(^|\/)(node_modules|dist|gen|generated)$|\.d\.ts$/.test(name),
  }).filter((file) => !isForTests(file));

/** Returns the texts and numbers of files. A comment is neither. */
export function literalsOf(files: readonly string[]): Literal[] {
  const found: Literal[] = [];
  for (const file of files) {
    const source = ts.createSourceFile(file, readFileSync(path.join(root, file), 'utf8'), ts.ScriptTarget.Latest);
    const visit = (node: ts.Node): void => {
      if (ts.isStringLiteral(node) || ts.isNumericLiteral(node) || ts.isNoSubstitutionTemplateLiteral(node)) {
        found.push({ file, text: node.text });
      } else if (ts.isTemplateExpression(node)) {
        found.push({ file, text: node.getText(source).slice(1, -1) });
      }
      ts.forEachChild(node, visit);
    };
    visit(source);
  }
  return found;
}
