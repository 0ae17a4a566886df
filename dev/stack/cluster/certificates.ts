// The certificate authority of the local cluster: EC keys, PEM files, readable by their owner alone.
import 'reflect-metadata';
import { generateKeyPairSync, randomBytes, webcrypto } from 'node:crypto';
import { readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import * as x509 from '@peculiar/x509';
import { makePrivateFolder } from '../paths.ts';
import { fileExists } from '../programs/go-build.ts';

const algorithm = { name: 'ECDSA', namedCurve: 'P-256', hash: 'SHA-256' };
const usages: webcrypto.KeyUsage[] = ['sign', 'verify'];
const lifetimeMilliseconds = 10 * 365 * 86_400_000;
// Backdated, so that a clock that is slightly behind accepts new certificates.
const backdatedMilliseconds = 3_600_000;

/** The subject of a certificate. */
export interface CertificateRequest {
  /** File name without extension. */
  name: string;
  commonName: string;
  /** The user's group in Kubernetes. */
  organization?: string;
  dnsNames?: string[];
  addresses?: string[];
}

/** Paths of a certificate and its key. */
export interface CertificateFiles {
  certificate: string;
  key: string;
}

/** A certificate authority with its files in one folder; existing files are kept. */
export interface CertificateAuthority {
  /** Path of the authority's own certificate. */
  certificate: string;
  /** Issues a certificate for client and server use, or returns the existing one. */
  issue(request: CertificateRequest): Promise<CertificateFiles>;
}

async function exportKey(key: webcrypto.CryptoKey): Promise<string> {
  const der = Buffer.from(await webcrypto.subtle.exportKey('pkcs8', key)).toString('base64');
  return `-----BEGIN PRIVATE KEY-----\n${der.replace(/(.{64})/g, '$1\n').trimEnd()}\n-----END PRIVATE KEY-----\n`;
}

async function importKey(path: string): Promise<webcrypto.CryptoKey> {
  const der = Buffer.from((await readFile(path, 'utf8')).replace(/-----[A-Z ]+-----|\s/g, ''), 'base64');
  return webcrypto.subtle.importKey('pkcs8', der, algorithm, true, ['sign']);
}

const secretFile = (path: string, content: string) => writeFile(path, content, { mode: 0o600 });

/** 127 random bits: RFC 5280 requires a positive number. */
function serialNumber(): string {
  const bytes = randomBytes(16);
  bytes[0]! &= 0x7f;
  return bytes.toString('hex');
}

const validity = () => ({
  notBefore: new Date(Date.now() - backdatedMilliseconds),
  notAfter: new Date(Date.now() + lifetimeMilliseconds),
});

/** Opens the authority in `folder`, creating it on first use. */
export async function openCertificateAuthority(folder: string, name: string): Promise<CertificateAuthority> {
  await makePrivateFolder(folder);
  const certificate = join(folder, 'ca.crt');
  const keyPath = join(folder, 'ca.key');
  if (!(await fileExists(certificate))) {
    const keys = await webcrypto.subtle.generateKey(algorithm, true, usages);
    const made = await x509.X509CertificateGenerator.createSelfSigned({
      serialNumber: serialNumber(),
      name: `CN=${name}`,
      ...validity(),
      signingAlgorithm: algorithm,
      keys,
      extensions: [
        new x509.BasicConstraintsExtension(true, undefined, true),
        new x509.KeyUsagesExtension(x509.KeyUsageFlags.keyCertSign | x509.KeyUsageFlags.cRLSign, true),
        await x509.SubjectKeyIdentifierExtension.create(keys.publicKey),
      ],
    });
    await secretFile(keyPath, await exportKey(keys.privateKey));
    // Written last: if the certificate exists, so does its key.
    await secretFile(certificate, made.toString('pem') + '\n');
  }
  const issuer = new x509.X509Certificate(await readFile(certificate, 'utf8'));
  const signingKey = await importKey(keyPath);

  async function issue(request: CertificateRequest): Promise<CertificateFiles> {
    const files = { certificate: join(folder, `${request.name}.crt`), key: join(folder, `${request.name}.key`) };
    if (await fileExists(files.certificate)) return files;
    const keys = await webcrypto.subtle.generateKey(algorithm, true, usages);
    const names = [
      ...(request.dnsNames ?? []).map((value) => ({ type: 'dns' as const, value })),
      ...(request.addresses ?? []).map((value) => ({ type: 'ip' as const, value })),
    ];
    const made = await x509.X509CertificateGenerator.create({
      serialNumber: serialNumber(),
      issuer: issuer.subject,
      subject: [...(request.organization ? [{ O: [request.organization] }] : []), { CN: [request.commonName] }],
      ...validity(),
      signingAlgorithm: algorithm,
      publicKey: keys.publicKey,
      signingKey,
      extensions: [
        new x509.BasicConstraintsExtension(false, undefined, true),
        new x509.KeyUsagesExtension(x509.KeyUsageFlags.digitalSignature, true),
        new x509.ExtendedKeyUsageExtension([x509.ExtendedKeyUsage.clientAuth, x509.ExtendedKeyUsage.serverAuth]),
        await x509.AuthorityKeyIdentifierExtension.create(issuer),
        ...(names.length ? [new x509.SubjectAlternativeNameExtension(names)] : []),
      ],
    });
    await secretFile(files.key, await exportKey(keys.privateKey));
    await secretFile(files.certificate, made.toString('pem') + '\n');
    return files;
  }
  return { certificate, issue };
}

/**
 * Returns the paths of the key pair that signs service account tokens (RSA, which every verifier of tokens supports).
 */
export async function serviceAccountKeys(folder: string): Promise<{ privateKey: string; publicKey: string }> {
  const files = { privateKey: join(folder, 'service-account.key'), publicKey: join(folder, 'service-account.pub') };
  if (!(await fileExists(files.publicKey))) {
    const { privateKey, publicKey } = generateKeyPairSync('rsa', {
      modulusLength: 2048,
      privateKeyEncoding: { type: 'pkcs8', format: 'pem' },
      publicKeyEncoding: { type: 'spki', format: 'pem' },
    });
    await secretFile(files.privateKey, privateKey);
    await secretFile(files.publicKey, publicKey);
  }
  return files;
}
