import { expect } from 'chai';
import type { KelletError } from '../../platform/errors.ts';
import type { DeviceLine } from './device-file.ts';
import { decideLine, type KnownDevice, profileOfLine } from './import-decision.ts';

const nothing: DeviceLine = {
  hardwareId: 'h',
  ...{ name: undefined, profileId: undefined, profileName: undefined },
  ...{ tags: undefined, metadata: undefined, groupIds: undefined },
};
const known: KnownDevice = {
  ...{ deviceId: 'D', name: 'Roof', profileId: 'P', tags: { a: '1', b: '2' } },
  ...{ metadata: { x: [1] }, groupIds: ['G1', 'G2'] },
};

describe('decision about a line of an import', () => {
  it('creates what does not exist', () => {
    expect(decideLine(nothing, undefined, undefined)).to.deep.equal({ action: 'create' });
  });

  const cases: [says: Partial<DeviceLine>, profileId: string | undefined, different: string | undefined][] = [
    [{}, undefined, undefined],
    [{ name: 'Roof' }, 'P', undefined],
    [{ name: 'Door' }, undefined, 'name'],
    [{}, '', 'profile_id'],
    [{}, 'Q', 'profile_id'],
    [{ tags: { b: '2', a: '1' } }, undefined, undefined],
    [{ tags: { a: '1' } }, undefined, 'tags'],
    [{ metadata: { x: [1] } }, undefined, undefined],
    [{ metadata: null }, undefined, 'metadata'],
    [{ groupIds: ['G2', 'G1'] }, undefined, undefined],
    [{ groupIds: [] }, undefined, 'group_ids'],
    [{ name: 'Door', tags: {} }, 'Q', 'name, profile_id, tags'],
  ];
  for (const [says, profileId, different] of cases) {
    it(`finds ${different ?? 'nothing'} different in ${JSON.stringify({ ...says, profileId })}`, () => {
      const decision = decideLine({ ...nothing, ...says }, profileId, known);
      if (different === undefined) expect(decision).to.deep.equal({ action: 'unchanged', deviceId: 'D' });
      else {
        expect(decision.action === 'reject' && decision.error.code).to.equal('ALREADY_EXISTS');
        expect(decision.action === 'reject' && decision.error.message).to.match(new RegExp(` ${different}$`));
      }
    });
  }
});

describe('profile of a line of an import', () => {
  const profiles = new Map([['pump', 'P']]);
  const cases: [profileId: string | undefined, profileName: string | undefined, expected: string | undefined][] = [
    [undefined, undefined, undefined],
    ['', undefined, ''],
    [undefined, '', ''],
    ['P', undefined, 'P'],
    [undefined, 'pump', 'P'],
    ['', 'pump', 'P'],
    ['P', 'pump', 'P'],
    ['Q', 'pump', 'INVALID_ARGUMENT'],
    [undefined, 'fan', 'NOT_FOUND'],
  ];
  for (const [profileId, profileName, expected] of cases) {
    it(`is ${expected} for ${JSON.stringify([profileId, profileName])}`, () => {
      let found: string | undefined;
      try {
        found = profileOfLine({ ...nothing, profileId, profileName }, profiles);
      } catch (error) {
        found = (error as KelletError).code;
      }
      expect(found).to.equal(expected);
    });
  }
});
