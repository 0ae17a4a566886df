import { createPrivateKey, X509Certificate } from 'node:crypto';
import { readFile, stat } from 'node:fs/promises';
import { expect } from 'chai';
import { withFolder } from '../testing/scratch.ts';
import { openCertificateAuthority } from './certificates.ts';

describe('stack: certificates', () => {
  it('are signed by their authority, include names and addresses, and match their key', async () => {
    await withFolder(async (folder) => {
      const authority = await openCertificateAuthority(folder, 'test');
      const files = await authority.issue({
        name: 'server',
        commonName: 'kube-apiserver',
        organization: 'system:masters',
        dnsNames: ['localhost'],
        addresses: ['127.0.0.1'],
      });
      const root = new X509Certificate(await readFile(authority.certificate));
      const certificate = new X509Certificate(await readFile(files.certificate));
      expect(root.ca).to.equal(true);
      expect(certificate.ca).to.equal(false);
      expect(certificate.checkIssued(root)).to.equal(true);
      expect(certificate.verify(root.publicKey)).to.equal(true);
      expect(certificate.checkHost('localhost')).to.equal('localhost');
      expect(certificate.checkIP('127.0.0.1')).to.equal('127.0.0.1');
      expect(certificate.subject).to.equal('O=system:masters\nCN=kube-apiserver');
      expect(certificate.checkPrivateKey(createPrivateKey(await readFile(files.key)))).to.equal(true);
      expect((await stat(files.key)).mode & 0o777).to.equal(0o600);
    });
  });

  it('are reused', async () => {
    await withFolder(async (folder) => {
      const request = { name: 'server', commonName: 'server' };
      const first = await (await openCertificateAuthority(folder, 'test')).issue(request);
      const content = await readFile(first.certificate, 'utf8');
      const again = await (await openCertificateAuthority(folder, 'test')).issue(request);
      expect(await readFile(again.certificate, 'utf8')).to.equal(content);
    });
  });
});
