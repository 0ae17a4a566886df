import type { OtaPackage } from '@kellet/crds';
import type { OtaPackageObserved } from '@kellet/proto/ts/kellet/control/v1/control';
import { expect } from 'chai';
import type { Environment } from '../reconciler.ts';
import type { Secret } from '../resources.ts';
import { OtaPackageReconciler, readCredentials } from './ota-package.ts';

const otaPackageReconciler = new OtaPackageReconciler(undefined as unknown as Environment);

describe('the status of a package', () => {
  const verified: OtaPackageObserved = {
    status: 'available',
    checksum_verified: true,
    signature_verified: true,
    size_bytes: 2048,
    message: '',
  };
  const rejected = { status: 'rejected', signature_verified: false, message: 'not by a trusted key' };
  const cases: [what: string, Partial<OtaPackageObserved>, status: string, reason: string, message: string][] = [
    ['a verified one', {}, 'True', 'SignatureVerified', 'the package can be rolled out'],
    ['an unsigned one', { signature_verified: false }, 'True', 'ChecksumVerified', 'the package can be rolled out'],
    [
      'a deprecated one',
      { status: 'deprecated' },
      'True',
      'Deprecated',
      'the package is deprecated: it can be rolled back to, but not rolled out',
    ],
    ['one by an untrusted key', rejected, 'False', 'SignatureInvalid', 'not by a trusted key'],
  ];
  for (const [what, change, status, reason, message] of cases) {
    it(`is Ready as it should be: ${what}`, async () => {
      const object = { spec: { artifact: { uri: 'https://x' } } } as OtaPackage;
      const response = { id: 'p', ota_package: { ...verified, ...change } };
      const { findings } = await otaPackageReconciler.observe(object, 'acme', response as never);
      expect(findings.find(({ type }) => type === 'Ready')).to.include({ status, reason, message });
    });
  }

  for (const [size, shown] of [
    [2048, 2048],
    [0, undefined],
  ] as const) {
    it(`comes with the size of the artifact: ${shown ?? 'none until it is known'}`, async () => {
      const object = { spec: { artifact: { uri: 'https://x' } } } as OtaPackage;
      const response = { id: 'p', ota_package: { ...verified, size_bytes: size } };
      const { status } = await otaPackageReconciler.observe(object, 'acme', response as never);
      expect(status.sizeBytes).to.equal(shown);
    });
  }
});

describe('the credentials of a private source', () => {
  const type = 'kellet.dev/artifact-credentials';
  const encode = (bytes: string | Buffer) => Buffer.from(bytes).toString('base64');
  const cases: [what: string, Partial<Secret> | 'tooLarge' | undefined, expected: object][] = [
    [
      'a Secret',
      { type, data: { token: encode('t\n'), prefix: encode('p') } },
      { values: { token: 't', prefix: 'p' } },
    ],
    ['no Secret', undefined, { reason: 'SecretNotFound', message: 'Secret keys does not exist' }],
    ['a large one', 'tooLarge', { reason: 'SecretUnusable', message: 'Secret keys is larger than 128 KiB' }],
    [
      'a Secret for something else, such as a provision key',
      { type: 'Opaque', data: { token: encode('t') } },
      { reason: 'SecretUnusable', message: `Secret keys must be of type ${type}` },
    ],
    [
      'a Secret with other bytes than text',
      { type, data: { token: encode(Buffer.from([0xff])) } },
      { reason: 'SecretUnusable', message: 'Secret keys must have text in UTF-8 under token' },
    ],
  ];
  for (const [what, secret, expected] of cases) {
    it(`are read from ${what}`, () => {
      const read = readCredentials('keys', secret as Secret | 'tooLarge' | undefined);
      expect('missing' in read ? read.missing : read).to.deep.include(expected);
    });
  }
});
