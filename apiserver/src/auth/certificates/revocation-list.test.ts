import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect } from 'chai';
import { type AlgorithmName, certificateOf, type Keys, newKeys } from '../testing/test-certificates.ts';
import {
  checkSuppliedAuthority,
  generateAuthority,
  openAuthority,
  signDeviceCertificate,
  type SigningAuthority,
} from './certificate-authority.ts';
import { revokedEntries, signRevocationList } from './revocation-list.ts';
import {
  BasicConstraintsExtension,
  KeyUsageFlags,
  KeyUsagesExtension,
  X509CertificateGenerator,
  X509Crl,
} from './x509.ts';

const now = Math.floor(Date.now() / 1000) * 1000;
const day = 86_400_000;
const supplied = async (keys: Keys, certificate: string): Promise<SigningAuthority> =>
  openAuthority(await checkSuppliedAuthority(certificate, keys.pem, now));
const authorityOf = async (algorithm: AlgorithmName): Promise<SigningAuthority> => {
  const keys = await newKeys(algorithm);
  return supplied(keys, await certificateOf(keys, `An authority, ${algorithm}`, { isAuthority: true }));
};
const issue = async (authority: SigningAuthority) => {
  const publicKey = Buffer.from((await generatedKeys()).spki);
  return signDeviceCertificate(authority, 'a-device', publicKey, { now, days: 10 });
};
const generatedKeys = async () => {
  const { publicKey } = await newKeys();
  return { spki: await globalThis.crypto.subtle.exportKey('spki', publicKey) };
};

describe('a list of revoked certificates', () => {
  let folder: string;
  before(() => (folder = mkdtempSync(join(tmpdir(), 'kellet-crl-'))));
  after(() => rmSync(folder, { recursive: true }));

  const hasOpenssl = spawnSync('openssl', ['version']).status === 0;
  const openssl = (...words: string[]): string => {
    const { stdout, stderr } = spawnSync('openssl', words, { encoding: 'utf8' });
    return `${stdout}${stderr}`;
  };

  for (const algorithm of ['p256', 'p384', 'ed25519', 'rsa'] as const) {
    it(`of an authority with a key of the type ${algorithm} is read and verified by others`, async function () {
      this.timeout(20_000);
      const authority = await authorityOf(algorithm);
      const [revoked, valid] = [await issue(authority), await issue(authority)];
      const rest = Array.from({ length: 300 }, (_, index) => ({
        serialNumber: (0x8000_0000_0000 + index).toString(16),
        revokedAt: new Date(now - index * 1000),
      }));
      const entries = [
        revokedEntries([{ serialNumber: revoked.serialNumber, revokedAt: new Date(now - day) }]),
        revokedEntries(rest),
        revokedEntries([{ serialNumber: '00ff', revokedAt: new Date('2050-01-02T03:04:05Z') }]),
      ];
      const der = await signRevocationList(authority, entries, now);
      const list = new X509Crl(der);
      expect(await list.verify({ publicKey: authority.certificate.publicKey })).to.equal(true);
      expect(list.issuer).to.equal(authority.certificate.subject);
      expect([list.thisUpdate.getTime(), list.nextUpdate!.getTime()]).to.deep.equal([now, now + day]);
      expect(list.entries.length).to.equal(302);
      expect(list.findRevoked(revoked.serialNumber)!.revocationDate.getTime()).to.equal(now - day);
      expect(list.entries.at(-1)!.revocationDate.toISOString()).to.equal('2050-01-02T03:04:05.000Z');
      expect(list.findRevoked(valid.serialNumber)).to.equal(null);

      if (!hasOpenssl) return;
      const file = (name: string, content: string | Buffer): string => {
        const path = join(folder, `${algorithm}-${name}`);
        writeFileSync(path, content);
        return path;
      };
      const authorityFile = file('authority.pem', authority.chain);
      const crl = file('list.crl', der);
      const read = openssl('crl', '-inform', 'DER', '-in', crl, '-CAfile', authorityFile, '-noout', '-text');
      expect(read)
        .to.contain('verify OK')
        .and.to.contain('X509v3 CRL Number')
        .and.to.contain('Jan  2 03:04:05 2050 GMT');
      const pem = join(folder, `${algorithm}-list.pem`);
      openssl('crl', '-inform', 'DER', '-in', crl, '-out', pem);
      const verify = (name: string, certificate: string) =>
        openssl('verify', '-crl_check', '-CAfile', authorityFile, '-CRLfile', pem, file(name, certificate));
      expect(verify('revoked.pem', revoked.pem)).to.contain('certificate revoked');
      expect(verify('valid.pem', valid.pem)).to.match(/valid\.pem: OK\n$/);
    });
  }

  it('is valid without entries, and of a generated authority', async () => {
    const authority = await openAuthority(await generateAuthority('acme', now));
    const list = new X509Crl(await signRevocationList(authority, [], now));
    expect(list.entries).to.deep.equal([]);
    expect(await list.verify({ publicKey: authority.certificate.publicKey })).to.equal(true);
  });

  it('is not signed by an authority whose certificate does not permit it', async () => {
    const keys = await newKeys();
    const certificate = await X509CertificateGenerator.createSelfSigned({
      name: [{ CN: ['No lists'] }],
      notBefore: new Date(now - day),
      notAfter: new Date(now + day),
      ...{ keys, signingAlgorithm: keys.algorithm },
      extensions: [
        new BasicConstraintsExtension(true, undefined, true),
        new KeyUsagesExtension(KeyUsageFlags.keyCertSign, true),
      ],
    });
    const authority = await supplied(keys, certificate.toString('pem'));
    const error = await signRevocationList(authority, [], now).catch((thrown: unknown) => thrown);
    expect(error).to.have.property('code', 'FAILED_PRECONDITION');
  });
});
