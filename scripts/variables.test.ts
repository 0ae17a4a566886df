// Checks that every variable KELLET_… in the repository is a setting, or in the list of those of other programs.
import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { expect } from 'chai';
import { unknownSettings } from '../apiserver/src/config/config.ts';

const root = path.dirname(import.meta.dirname);

/** What comments write for any variable with _FILE. */
const placeholder = 'KELLET_X_FILE';

/** Files that name variables which do not exist. */
const isExcepted = (file: string): boolean => /^apiserver\/src\/config\/config\.test\.ts$|^CHANGELOG\.md$/.test(file);

it('kellet-apiserver knows every variable KELLET_… of the programs, tests and examples', () => {
  const { stdout, status } = spawnSync('git', ['grep', '-lI', 'KELLET_'], {
    cwd: root,
    encoding: 'utf8',
  });
  expect(status).to.equal(0);
  const files = stdout
    .trim()
    .split('\n')
    .filter((file) => /\.(ts|js|sh|ya?ml|py|go)$|Makefile$/.test(file) && !isExcepted(file));
  expect(files.length).to.be.above(50);
  const unknown = files.flatMap((file) => {
    const names = readFileSync(path.join(root, file), 'utf8').match(/\bKELLET_[A-Z0-9_]*[A-Z0-9]\b/g) ?? [];
    return unknownSettings(
      Object.fromEntries(names.filter((name) => name !== placeholder).map((name) => [name, '1'])),
    ).map((line) => `${file}: ${line}`);
  });
  expect(unknown).to.deep.equal([]);
});
