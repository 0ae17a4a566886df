// Checks that the files which documents and comments name exist, so that a move does not leave readers behind.
import { globSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { expect } from 'chai';

const root = path.dirname(import.meta.dirname);

/** Paths of files that others own, or that are made while a program runs. */
const exceptions: readonly RegExp[] = [/^google\/(api|protobuf|rpc)\//, /(^|\/)dist\//];

const notOurs = (name: string): boolean => /(^|\/)(node_modules|dist|\.git)$/.test(name);

/** Every suffix of a file's path that has a folder: a text may leave out folders that its reader knows. */
const suffixes = new Set(
  globSync('**/*.{ts,sql,proto,yaml,md}', { cwd: root, exclude: notOurs }).flatMap((file) => {
    const parts = file.split(path.sep);
    return parts.slice(0, -1).map((_, index) => parts.slice(index).join('/'));
  }),
);

/** Returns the paths in a text that name no file of the repository. */
function missingPaths(text: string): string[] {
  const named = text.matchAll(
    /(?<![\w/.\-@:{}$*<>])(?:\.{1,2}\/)*(\w[\w\-.]*(?:\/[\w\-.]+)+\.(?:ts|sql|proto|yaml|md))\b(?![/\w*-])/g,
  );
  return [...named]
    .map(([, name]) => name!)
    .filter((name) => !suffixes.has(name) && !exceptions.some((exception) => exception.test(name)));
}

const commentsOf = (code: string): string =>
  code
    .split('\n')
    .filter((line) => /^\s*(\/\/|\/?\*)/.test(line))
    .join('\n');

describe('the paths in documents and comments', () => {
  it('are found to be missing if no file has them', () => {
    expect(missingPaths('`scripts/layers.ts`, ../scripts/layers.ts and platform/errors.ts')).to.deep.equal([]);
    expect(missingPaths('in `scripts/no-such-file.ts` (platform/none.sql).')).to.deep.equal([
      'scripts/no-such-file.ts',
      'platform/none.sql',
    ]);
  });

  it('name files that exist', () => {
    const texts = globSync('**/*.{ts,tsx,md}', {
      cwd: root,
      exclude: (name) => notOurs(name) || /(^|\/)(gen|generated)$/.test(name),
    });
    expect(texts.length).to.be.greaterThan(600);
    const missing = texts.flatMap((file) => {
      const text = readFileSync(path.join(root, file), 'utf8');
      return missingPaths(file.endsWith('.md') ? text : commentsOf(text)).map((name) => `${file}: ${name}`);
    });
    expect(missing).to.deep.equal([]);
  });
});
