// Which devices a package is for, by the version that they run: chains of packages, and downgrades.
import { expect } from 'chai';
import { type Exclusion, exclusion, type Target } from './cohort.ts';

describe('the versions that a rollout updates', () => {
  const target = (version: string, minVersion = '', maxVersion = ''): Target => ({
    ...{ packageId: 'p', version, minVersion, maxVersion, deviceType: '', hardwareIdPattern: '' },
  });
  const of = (version: string, to: Target, member = false) =>
    exclusion({ matches: true, version, overridden: false, member }, to, 'sensor');

  describe('of a chain 1.0.0, 2.0.0 (from 1.0.0), 3.0.0 (from 2.0.0)', () => {
    const second = target('2.0.0', '1.0.0');
    const third = target('3.0.0', '2.0.0');
    const cases: [version: string, second: Exclusion | undefined, third: Exclusion | undefined][] = [
      ['', 'below_min_version', 'below_min_version'],
      ['unknown', 'below_min_version', 'below_min_version'],
      ['0.9.0', 'below_min_version', 'below_min_version'],
      ['1.0.0-rc.1', 'below_min_version', 'below_min_version'],
      ['1.0.0', undefined, 'below_min_version'],
      ['1.10.0', undefined, 'below_min_version'],
      ['2.0.0-rc.1', undefined, 'below_min_version'],
      ['2.0.0', 'already_on_version', undefined],
      ['2.5.0', 'downgrade', undefined],
      ['3.0.0-rc.1', 'downgrade', undefined],
      ['3.0.0', 'downgrade', 'already_on_version'],
      ['3.0.1', 'downgrade', 'downgrade'],
    ];
    for (const [version, toSecond, toThird] of cases) {
      it(`${JSON.stringify(version)}: 2.0.0 ${toSecond ?? 'is for it'}, 3.0.0 ${toThird ?? 'is for it'}`, () =>
        expect([of(version, second), of(version, third)]).to.deep.equal([toSecond, toThird]));
    }
    it('takes each step once from whichever version it follows', () => {
      const chain = [target('1.0.0'), second, third];
      const reached: string[] = [];
      for (let version = ''; ;) {
        const next = chain.filter((one) => of(version, one) === undefined);
        if (next.length === 0) break;
        expect(next).to.have.length(1);
        reached.push((version = next[0]!.version));
      }
      expect(reached).to.deep.equal(['1.0.0', '2.0.0', '3.0.0']);
    });
  });

  describe('of a downgrade', () => {
    const cases: [what: string, version: string, target: Target, Exclusion | undefined][] = [
      ['is refused', '2.0.0', target('1.0.0'), 'downgrade'],
      ['is refused by the smallest step', '1.0.0', target('1.0.0-rc.9'), 'downgrade'],
      ['is allowed up to max_version', '2.0.0', target('1.0.0', '', '2.0.0'), undefined],
      ['is refused above max_version', '2.0.1', target('1.0.0', '', '2.0.0'), 'above_max_version'],
      ['is refused if max_version is the own version', '2.0.0', target('1.0.0', '', '1.0.0'), 'above_max_version'],
      ['is not a change of build metadata', '1.0.0+b', target('1.0.0+a'), undefined],
      ['is not the first version', '', target('1.0.0'), undefined],
      ['is not the replacement of what is no version', 'factory', target('1.0.0'), undefined],
    ];
    for (const [what, version, to, want] of cases) it(what, () => expect(of(version, to)).to.equal(want));
    it('keeps a member that reports a later version', () =>
      expect(of('3.0.0', target('2.0.0'), true)).to.equal(undefined));
  });
});
