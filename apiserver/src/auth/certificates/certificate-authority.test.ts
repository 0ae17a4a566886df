import { createPrivateKey, generateKeyPairSync } from 'node:crypto';
import { expect } from 'chai';
import { openAuthority } from './certificate-authority.ts';

describe('the key of a certificate authority', () => {
  for (const [modulusLength, message] of [
    [1024, /of another type/],
    // Accepted: what is missing is the certificate.
    [2048, /PEM|certificate|asn1|no start line/i],
    [4104, /of another type/],
  ] as const) {
    it(`is ${message.source === 'of another type' ? 'refused' : 'accepted'} if it is RSA with ${modulusLength} bits`, async () => {
      const { privateKey } = generateKeyPairSync('rsa', { modulusLength });
      const pem = privateKey.export({ type: 'pkcs8', format: 'pem' }) as string;
      const error = await openAuthority({ certificate: '', privateKey: pem }).catch((thrown: unknown) => thrown);
      expect((error as Error).message).to.match(message);
    });
  }

  it('is refused if its exponent makes signing take long', async () => {
    const { privateKey } = generateKeyPairSync('rsa', { modulusLength: 2048 });
    const { e, d, ...others } = privateKey.export({ format: 'jwk' });
    const key = createPrivateKey({ key: { ...others, e: d, d: e, dp: e, dq: e }, format: 'jwk' });
    const pem = key.export({ type: 'pkcs8', format: 'pem' }) as string;
    const error = await openAuthority({ certificate: '', privateKey: pem }).catch((thrown: unknown) => thrown);
    expect((error as Error).message).to.match(/of another type/);
  });
});
