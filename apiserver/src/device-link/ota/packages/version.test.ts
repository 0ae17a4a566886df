import { expect } from 'chai';
import { compareVersions, isVersion } from './version.ts';

describe('semantic versions', () => {
  // SemVer 2.0.0, section 11, and the edges of its grammar.
  const ascending = [
    '',
    '0.0.0',
    '0.9.10',
    '1.0.0-alpha',
    '1.0.0-alpha.1',
    '1.0.0-alpha.beta',
    '1.0.0-beta',
    '1.0.0-beta.2',
    '1.0.0-beta.11',
    '1.0.0-rc.1',
    '1.0.0',
    '1.0.2',
    '1.0.10',
    '1.2.0',
    '1.10.0',
    '99999999999999999999.0.0',
  ];
  it('orders every pair as SemVer does', () => {
    for (const [i, left] of ascending.entries()) {
      for (const [j, right] of ascending.entries()) {
        expect(Math.sign(compareVersions(left, right)), `${left} ~ ${right}`).to.equal(Math.sign(i - j));
      }
    }
  });

  it('ignores build metadata', () => expect(compareVersions('1.0.0+a', '1.0.0+b')).to.equal(0));

  for (const text of ['1', '1.2', '01.0.0', '1.0.0-01', '1.0.0-', 'v1.0.0', '1.0.0 ', '1.0.0-é']) {
    it(`refuses ${JSON.stringify(text)}`, () => expect(isVersion(text)).to.equal(false));
  }
});
