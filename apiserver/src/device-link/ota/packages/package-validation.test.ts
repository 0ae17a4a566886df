import { create } from '@bufbuild/protobuf';
import { CreatePackageRequestSchema, OtaPackage_Type } from '@kellet/proto/es/kellet/v1/ota_pb';
import { expect } from 'chai';
import { schemaOf } from '../../../../../crds/testing/test-schemas.ts';
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

describe('the lengths of a package', () => {
  const schema = schemaOf('OtaPackage', 'spec');
  const version = (length: number) => `1.0.0-${'a'.repeat(length - 6)}`;
  const uri = (length: number) => `https://artifacts.example/${'a'.repeat(length - 26)}`;
  const text = (length: number) => '😀'.repeat(length);
  const artifact = schema.properties!['artifact']!.properties!;
  const compatible = schema.properties!['compatibility']!.properties!;
  for (const [field, definition, texts] of [
    ['version', schema.properties!['version'], (length: number) => ({ version: version(length) })],
    ['artifact_uri', artifact['uri'], (length: number) => ({ artifactUri: uri(length) })],
    ['release_notes', schema.properties!['releaseNotes'], (length: number) => ({ releaseNotes: text(length) })],
    [
      'compatibility.device_type',
      compatible['deviceType'],
      (length: number) => ({ compatibility: { deviceType: text(length) } }),
    ],
    [
      'compatibility.min_version',
      compatible['minVersion'],
      (length: number) => ({ compatibility: { minVersion: version(length) } }),
    ],
    [
      'compatibility.max_version',
      compatible['maxVersion'],
      (length: number) => ({ compatibility: { maxVersion: version(length) } }),
    ],
    [
      'compatibility.hardware_id_pattern',
      compatible['hardwareIdPattern'],
      (length: number) => ({ compatibility: { hardwareIdPattern: text(length) } }),
    ],
  ] as const) {
    it(`are those of the definition: ${field}`, () => {
      const maximum = definition!.maxLength!;
      const sha256 = 'ab'.repeat(32);
      const problemOf = (length: number) => {
        const valid = { type: OtaPackage_Type.fw, version: '2.0.0', artifactUri: 'upload://', sha256 };
        return packageProblem(create(CreatePackageRequestSchema, { ...valid, ...texts(length) }), testIntake().guard);
      };
      expect(problemOf(maximum)).to.equal(undefined);
      expect(problemOf(maximum + 1)).to.equal(`${field} must be at most ${maximum} characters`);
    });
  }
});
