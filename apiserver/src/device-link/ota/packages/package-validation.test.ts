import { create } from '@bufbuild/protobuf';
import { CreatePackageRequestSchema, OtaPackage_Type } from '@kellet/proto/es/kellet/v1/ota_pb';
import { expect } from 'chai';
import { testIntake } from '../testing/test-artifacts.ts';
import { packageProblem } from './package-validation.ts';

describe('the versions that a package requires', () => {
  const above = 'compatibility.min_version must not be above version';
  const cases: [string, { minVersion?: string; maxVersion?: string }, string | undefined][] = [
    ['none', {}, undefined],
    ['below its own', { minVersion: '1.9.9' }, undefined],
    ['its own', { minVersion: '2.0.0' }, undefined],
    ['above its own', { minVersion: '2.0.1' }, above],
    ['its release candidate', { minVersion: '2.0.0-rc.1' }, undefined],
    ['at most a later one, for a downgrade', { maxVersion: '3.0.0' }, undefined],
    [
      'an empty range',
      { minVersion: '1.5.0', maxVersion: '1.0.0' },
      'compatibility.min_version must not be above compatibility.max_version',
    ],
  ];
  for (const [what, compatibility, problem] of cases) {
    it(`${problem === undefined ? 'accepts' : 'rejects'} ${what}`, () => {
      const sha256 = 'ab'.repeat(32);
      const package_ = { type: OtaPackage_Type.fw, version: '2.0.0', artifactUri: 'upload://', sha256, compatibility };
      expect(packageProblem(create(CreatePackageRequestSchema, package_), testIntake().guard)).to.equal(problem);
    });
  }
});

describe('the texts of a package', () => {
  for (const [field, texts] of [
    ['name', { name: 'a\0' }],
    ['artifact_uri', { artifactUri: 'https://artifacts.example/\0' }],
    ['release_notes', { releaseNotes: 'a\0' }],
    ['compatibility.device_type', { compatibility: { deviceType: 'a\0' } }],
    ['compatibility.hardware_id_pattern', { compatibility: { hardwareIdPattern: 'a\0' } }],
  ] as const) {
    it(`do not contain NUL: ${field}`, () => {
      const sha256 = 'ab'.repeat(32);
      const package_ = { type: OtaPackage_Type.fw, version: '2.0.0', artifactUri: 'upload://', sha256, ...texts };
      const problem = packageProblem(create(CreatePackageRequestSchema, package_), testIntake().guard);
      expect(problem).to.equal(`${field} must not contain NUL`);
    });
  }
});
