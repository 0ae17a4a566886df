// docs/promises.md names the test behind each promise; this holds it to the truth.
import { expect } from 'chai';
import { existsSync, readFileSync } from 'node:fs';
import path from 'node:path';

const root = path.dirname(import.meta.dirname);
const rows = readFileSync(path.join(root, 'docs/promises.md'), 'utf8')
  .split('\n')
  .filter((line) => line.startsWith('| ') && !line.startsWith('| promise'));

describe('docs/promises.md', () => {
  for (const row of rows) {
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
