// The licence of each package that is installed, as the lock file has it. A licence that is not listed here has to be read
// before it is added: one that asks for more than naming the authors must not get into what is shipped.
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { expect } from 'chai';

interface LockedPackage {
  readonly license?: string;
  readonly link?: boolean;
  readonly dev?: boolean;
}

/** Licences that ask for no more than to keep their text and notices. */
const permissive = new Set([
  ...['0BSD', 'Apache-2.0', 'BSD-2-Clause', 'BSD-3-Clause', 'BlueOak-1.0.0', 'CC0-1.0', 'ISC', 'MIT'],
  ...['PSF-2.0', 'Python-2.0', 'Unlicense'],
]);

/** Packages with a licence of their own that was read. */
const read: Readonly<Record<string, string>> = {
  // The Open BSV License: as MIT, but for use on the chains alone on which Kellet anchors.
  '@bsv/sdk': 'SEE LICENSE IN LICENSE.txt',
};

/** Reports whether an SPDX expression can be fulfilled with permissive licences alone. */
function isPermissive(expression: string): boolean {
  const parts = expression.replace(/^\((.*)\)$/, '$1');
  if (parts.includes(' OR ')) return parts.split(' OR ').some(isPermissive);
  return parts.split(' AND ').every((licence) => permissive.has(licence));
}

describe('the licences', () => {
  it('are judged by their SPDX expression', () => {
    for (const [expression, expected] of [
      ['MIT', true],
      ['GPL-3.0-only', false],
      ['(MIT OR GPL-3.0-only)', true],
      ['(Apache-2.0 AND BSD-3-Clause)', true],
      ['Apache-2.0 AND LGPL-3.0', false],
      ['UNLICENSED', false],
      ['', false],
    ] as const) {
      expect(isPermissive(expression), expression).to.equal(expected);
    }
  });

  it('of all installed packages are permissive', () => {
    const file = path.join(import.meta.dirname, '..', 'package-lock.json');
    const { packages } = JSON.parse(readFileSync(file, 'utf8')) as { packages: Record<string, LockedPackage> };
    const installed = Object.entries(packages).filter(([place, { link }]) => place.includes('node_modules/') && !link);
    expect(installed.length).to.be.above(300);
    const others = installed
      .map(([place, { license = '' }]) => [place.slice(place.lastIndexOf('node_modules/') + 13), license] as const)
      .filter(([name, licence]) => !isPermissive(licence) && read[name] !== licence);
    expect(others).to.deep.equal([]);
  });
});
