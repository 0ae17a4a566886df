import { expect } from 'chai';
import { type DeviceFilters, filterConditions, parseTag } from './device-filters.ts';

const none: DeviceFilters = {
  status: undefined,
  profileId: '',
  groupId: '',
  customerId: undefined,
  credentialType: undefined,
  visibleGroupIds: null,
  tags: [],
  hardwareId: '',
  text: '',
};
const tenant = {
  tags: { site: 'north' },
  telemetrySchema: undefined,
  anchoringMode: undefined,
  offlineAfterSeconds: 0,
  otaPolicy: undefined,
};

describe('device filters', () => {
  for (const [name, filters, values, inheriting = []] of [
    ['nothing', {}, []],
    ['a status', { status: 'online' }, ['online']],
    ['text, literally', { text: '50%_\\' }, ['%50\\%\\_\\\\%']],
    ['a tag of a profile', { tags: ['kind=pump'] }, ['kind', ['p1'], false, 'pump'], [['p1']]],
    ['a tag of the tenant', { tags: ['site=north'] }, ['site', [], true, 'north']],
    ['several at once', { hardwareId: 'h', profileId: 'p', groupId: 'g' }, ['p', 'h', 'g']],
  ] as [string, Partial<DeviceFilters>, unknown[], string[][]?][]) {
    it(`filter by ${name}`, () => {
      const built = filterConditions({ ...none, ...filters }, inheriting, tenant, 4);
      expect(built.values).to.deep.equal(values);
      const placeholders = built.conditions.join(' ').match(/\$\d+/g) ?? [];
      expect(new Set(placeholders)).to.deep.equal(new Set(values.map((_, index) => `$${index + 4}`)));
    });
  }

  for (const [text, want] of [
    ['a=b', { key: 'a', value: 'b' }],
    ['a=', { key: 'a', value: '' }],
    ['a=b=c', { key: 'a', value: 'b=c' }],
    ['=b', undefined],
    ['ab', undefined],
    ['', undefined],
  ] as const) {
    it(`${want ? 'accept' : 'reject'} the tag ${JSON.stringify(text)}`, () => {
      if (want) expect(parseTag(text)).to.deep.equal(want);
      else expect(() => parseTag(text)).to.throw('tag');
    });
  }
});
