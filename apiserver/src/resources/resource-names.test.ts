import { expect } from 'chai';
import { nameTaken, resourceName } from './resource-names.ts';

describe('resource names', () => {
  const cases: [original: string, expected: RegExp, why: string][] = [
    ['thermometer', /^thermometer$/, 'a safe name is unchanged'],
    ['fw-1.2.0', /^fw-1\.2\.0$/, 'dots separate the labels of a subdomain'],
    ['Thermometer', /^thermometer-[0-9a-f]{5}$/, 'upper case is converted'],
    ['Cold store 7', /^cold-store-7-[0-9a-f]{5}$/, 'spaces become hyphens'],
    ['a..b', /^a\.b-[0-9a-f]{5}$/, 'a label must not be empty'],
    ['a-.-b', /^a\.b-[0-9a-f]{5}$/, 'a label must begin and end with a letter or digit'],
    ['-a-', /^a-[0-9a-f]{5}$/, 'the name must begin and end with a letter or digit'],
    ['Kühlraum', /^k-hlraum-[0-9a-f]{5}$/, 'only ASCII is safe'],
    ['温度計', /^unnamed-[0-9a-f]{5}$/, 'a name without safe characters'],
    ['../../etc', /^etc-[0-9a-f]{5}$/, 'path separators are removed'],
    ['a'.repeat(57), /^a{57}$/, 'the maximum length is unchanged'],
    ['a'.repeat(58), /^a{57}-[0-9a-f]{5}$/, 'a longer name is truncated'],
    [`${'a'.repeat(56)}-b`, /^a{56}-[0-9a-f]{5}$/, 'truncation leaves no trailing hyphen'],
  ];
  for (const [original, expected, why] of cases) {
    it(`${JSON.stringify(original.slice(0, 20))}: ${why}`, () => {
      const name = resourceName(original);
      expect(name).to.match(expected);
      expect(name).to.match(/^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$/);
      expect(name.length).to.be.at.most(63);
      expect(resourceName(original)).to.equal(name);
    });
  }

  it('distinguishes names with the same form', () => {
    const names = ['Cold Store', 'cold store', 'cold_store', 'cold-store'].map(resourceName);
    expect(new Set(names).size).to.equal(4);
  });
});

describe('a name that is taken', () => {
  it('is reported with the object that holds it', () => {
    expect(nameTaken('profile', 'Pump', 'Pump').message).to.equal('a profile named "Pump" already exists');
    expect(nameTaken('profile', 'pump', 'Old pump').message).to.equal(
      'the custom resource pump belongs to the profile named "Old pump": choose another name, or delete that profile',
    );
  });
});
