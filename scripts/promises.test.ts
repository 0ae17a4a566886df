// Checks that the tests named in docs/promises.md and docs/security.md exist.
import { existsSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { expect } from 'chai';

const root = path.dirname(import.meta.dirname);

/** Returns the rows of the tables of promises in a page. */
const rowsOf = (page: string): string[] =>
  readFileSync(path.join(root, page), 'utf8')
    .split(/^\| promise .*$/m)
    .slice(1)
    // The rows up to the end of the table.
    .flatMap((text) => text.split('\n\n', 1)[0]!.split('\n'))
    .filter((line) => line.startsWith('| '));

for (const page of ['docs/promises.md', 'docs/security.md']) {
  describe(page, () => {
    for (const row of rowsOf(page)) {
      const [, promise = '', file = '', title = ''] = /^\| (.+) \| `([^`]+)`: (.+) \|$/.exec(row) ?? [];
      it(`names a test for: ${promise || row}`, () => {
        expect(existsSync(path.join(root, file)), `${file} does not exist`).to.equal(true);
        const source = readFileSync(path.join(root, file), 'utf8');
        expect(
          ['it', 'describe'].some((kind) =>
            [`'`, `"`].some((quote) => source.includes(`${kind}(${quote}${title}${quote}`)),
          ),
          `no test "${title}" in ${file}`,
        ).to.equal(true);
      });
    }
  });
}
