// Which packages can be assigned to one device.
import { expect } from 'chai';
import type { KelletError } from '../../../platform/errors.ts';
import { openRolloutFixture, refusal, type RolloutFixture, tenant } from '../testing/rollout-fixture.ts';

describe('the compatibility of a package that is assigned to a device', () => {
  let fixture: RolloutFixture;
  let device: string;
  let unprofiled: string;
  let package_: string;
  before(async () => {
    fixture = await openRolloutFixture();
    const profileId = await fixture.profile('sensor');
    [device] = (await fixture.make(profileId, 1)) as [string];
    [unprofiled] = (await fixture.make('', 1)) as [string];
    package_ = await fixture.package('restricted', '4.0.0');
    await fixture.rows(`UPDATE devices SET hardware_id = 'hw-' || hardware_id`);
  });
  after(() => fixture.close());

  const cases: [string, { compatibility: object; version?: string }, string][] = [
    ['another type', { compatibility: { device_type: 'pump' } }, 'INVALID_ARGUMENT'],
    ['its type', { compatibility: { device_type: 'sensor' } }, 'nothing'],
    ['other hardware ids', { compatibility: { hardware_id_pattern: 'zz-*' } }, 'INVALID_ARGUMENT'],
    ['its hardware id', { compatibility: { hardware_id_pattern: 'hw-*' } }, 'nothing'],
    ['a version it never reported', { compatibility: { min_version: '2.0.0' } }, 'FAILED_PRECONDITION'],
    ['a later version', { compatibility: { min_version: '2.0.0' }, version: '1.9.9' }, 'FAILED_PRECONDITION'],
    ['an earlier version', { compatibility: { max_version: '2.0.0' }, version: '2.0.1' }, 'FAILED_PRECONDITION'],
    ['its version', { compatibility: { min_version: '2.0.0', max_version: '3.0.0' }, version: '2.0.0' }, 'nothing'],
    ['the version that it has already', { compatibility: {}, version: '4.0.0' }, 'nothing'],
  ];
  for (const [what, { compatibility, version = '' }, refused] of cases) {
    it(`${refused === 'nothing' ? 'accepts' : 'rejects'} a package for ${what}`, async () => {
      await fixture.rows('UPDATE ota_packages SET compatibility = $1 WHERE package_id = $2', compatibility, package_);
      await fixture.rows('UPDATE devices SET firmware_version = $1 WHERE device_id = $2', version, device);
      expect(await refusal(fixture.overrides.set(tenant, device, package_))).to.equal(refused);
    });
  }

  for (const [status, expected] of [
    ['rejected', 'INVALID_ARGUMENT package_id: the package is rejected'],
    ['uploading', 'FAILED_PRECONDITION package_id: the package is uploading, not available'],
    ['deprecated', 'FAILED_PRECONDITION package_id: the package is deprecated, not available'],
  ] as const) {
    it(`rejects a package that is ${status} as a rollout does`, async () => {
      await fixture.rows('UPDATE ota_packages SET status = $1 WHERE package_id = $2', status, package_);
      const refused = await fixture.overrides.set(tenant, device, package_).then(String, (error: unknown) => error);
      await fixture.rows(`UPDATE ota_packages SET status = 'available' WHERE package_id = $1`, package_);
      const { code, message } = refused as KelletError;
      expect(`${code} ${message}`).to.equal(expected);
    });
  }

  it('rejects an assignment without a package', async () => {
    expect(await refusal(fixture.overrides.set(tenant, device, ''))).to.equal('INVALID_ARGUMENT');
  });

  it('rejects a package for a device type if the device has no profile', async () => {
    await fixture.rows(`UPDATE ota_packages SET compatibility = '{"device_type": "sensor"}'`);
    expect(await refusal(fixture.overrides.set(tenant, unprofiled, package_))).to.equal('INVALID_ARGUMENT');
  });
});
