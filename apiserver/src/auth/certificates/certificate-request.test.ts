import { expect } from 'chai';
import { KelletError } from '../../platform/errors.ts';
import { type AlgorithmName, csrOf, newKeys } from '../testing/test-certificates.ts';
import { checkCertificateRequest } from './certificate-request.ts';

describe('the request for a certificate', () => {
  const refusal = (csr: string): Promise<string> =>
    checkCertificateRequest(csr).then(
      () => 'none',
      (error: unknown) => {
        if (!(error instanceof KelletError)) throw error;
        expect(error.code).to.equal('INVALID_ARGUMENT');
        return error.message;
      },
    );
  const made = async (algorithm: AlgorithmName, name?: string) => csrOf(await newKeys(algorithm), name);
  /** Replaces bytes of the DER. */
  const changed = (csr: string, change: (der: Buffer) => Buffer): string => {
    const der = Buffer.from(csr.replace(/-----[^-]+-----/g, ''), 'base64');
    const body = change(der).toString('base64');
    return `-----BEGIN CERTIFICATE REQUEST-----\n${body}\n-----END CERTIFICATE REQUEST-----`;
  };

  const accepted: [string, () => Promise<string>][] = [
    ['P-256 without a subject', () => made('p256')],
    ['Ed25519 without a subject', () => made('ed25519')],
    ['any common name', () => made('p256', 'device-2')],
    ['the older PEM label', async () => (await made('p256')).replaceAll('CERTIFICATE REQ', 'NEW CERTIFICATE REQ')],
  ];
  for (const [what, csr] of accepted) {
    it(`is accepted with ${what}`, async () => expect(await refusal(await csr())).to.equal('none'));
  }

  const form = 'csr must be one PKCS #10 request as PEM';
  const key = 'csr: the key must be P-256 or Ed25519';
  const signature = 'csr: the signature is not valid';
  const refused: [string, () => Promise<string>, string][] = [
    ['nothing', async () => '', 'csr is required'],
    ['garbage', async () => 'garbage', form],
    ['NUL', async () => 'a\0', 'csr must not contain NUL'],
    ['8193 characters', async () => 'x'.repeat(8193), 'csr must have at most 8192 characters'],
    ['empty PEM', async () => changed(await made('p256'), () => Buffer.alloc(0)), form],
    ['PEM of garbage', async () => changed(await made('p256'), () => Buffer.alloc(300, 7)), form],
    ['truncated DER', async () => changed(await made('p256'), (der) => der.subarray(0, -9)), form],
    ['two requests', async () => `${await made('p256')}\n${await made('p256')}`, form],
    ['P-384', () => made('p384'), key],
    ['P-521', () => made('p521'), key],
    ['RSA', () => made('rsa'), key],
    [
      'the signature of another request',
      async () =>
        changed(await made('p256', 'device-3'), (der) => {
          der.write('device-1', der.indexOf('device-3'));
          return der;
        }),
      signature,
    ],
    [
      'a changed signature',
      async () =>
        changed(await made('ed25519', 'device-1'), (der) => {
          der[der.length - 1]! ^= 1;
          return der;
        }),
      signature,
    ],
  ];
  for (const [what, csr, message] of refused) {
    it(`is refused: ${what}`, async () => expect(await refusal(await csr())).to.equal(message));
  }

  it('is accepted or refused as INVALID_ARGUMENT, whatever its bytes are', async () => {
    const csr = await made('p256', 'device-1');
    let seed = 7;
    for (let run = 0; run < 300; run += 1) {
      const mutated = changed(csr, (der) => {
        for (let at = 0; at < 3; at += 1) {
          seed = (Math.imul(seed, 1_103_515_245) + 12_345) >>> 0;
          der[seed % der.length] = seed >>> 24;
        }
        return der;
      });
      expect(await refusal(mutated)).to.be.a('string');
    }
  });
});
