import type { OtaPackage } from '@kellet/crds';
import { expect } from 'chai';
import type { OtaPackageObserved } from '@kellet/proto/ts/kellet/control/v1/control';
import { otaPackageReconciler } from './ota-package.ts';

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
      const { findings } = await otaPackageReconciler.observe(object, 'acme', response as never, {} as never);
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
      const { status } = await otaPackageReconciler.observe(object, 'acme', response as never, {} as never);
      expect(status.sizeBytes).to.equal(shown);
    });
  }
});
