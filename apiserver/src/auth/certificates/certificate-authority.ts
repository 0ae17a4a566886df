// Certificate authorities of tenants: generated or supplied, and the certificates of devices that they sign.
import { createPrivateKey, hash, type KeyObject, randomBytes, X509Certificate } from 'node:crypto';
import { invalidArgument } from '../../platform/errors.ts';
import { textField } from '../../platform/requests/fields.ts';
import {
  AuthorityKeyIdentifierExtension,
  BasicConstraintsExtension,
  ExtendedKeyUsage,
  ExtendedKeyUsageExtension,
  KeyUsageFlags,
  KeyUsagesExtension,
  PublicKey,
  SubjectKeyIdentifierExtension,
  X509Certificate as ReadCertificate,
  X509CertificateGenerator,
} from './x509.ts';

const { subtle } = globalThis.crypto;
type SigningKey = Awaited<ReturnType<typeof subtle.importKey>>;
type Algorithm = { readonly name: string; readonly hash?: string; readonly namedCurve?: string };

const dayMilliseconds = 86_400_000;
const authorityDays = 20 * 365;
/** New certificates are backdated, so that devices whose clocks are slow accept them at once. */
const backdateMilliseconds = 5 * 60_000;
const maximumChain = 4;
const maximumCharacters = 32_768;
/** Longer keys take a second or more for each signature, which others wait for, and a longer exponent takes many times as long. */
const maximumRsaBits = 4096;
const maximumRsaExponent = 2n ** 32n;

/** An authority as it is stored. */
export interface StoredAuthority {
  /** PEM: its certificate, followed by those of its issuers if there are any. */
  readonly certificate: string;
  /** PKCS #8, PEM. */
  readonly privateKey: string;
  readonly expiresAt: Date;
}

/** An authority that can sign. */
export interface SigningAuthority {
  readonly certificate: ReadCertificate;
  /** PEM, as stored. */
  readonly chain: string;
  readonly key: SigningKey;
  /** The same key, for signatures of other things than certificates. */
  readonly keyObject: KeyObject;
  readonly algorithm: Algorithm;
}

/** A certificate of a device. */
export interface IssuedCertificate {
  readonly pem: string;
  readonly der: Buffer;
  /** SHA-256 of the DER. */
  readonly sha256: Buffer;
  readonly serialNumber: string;
  readonly notBefore: Date;
  readonly notAfter: Date;
}

/** Generates an authority with a key on P-256. */
export async function generateAuthority(tenantId: string, now: number): Promise<StoredAuthority> {
  const algorithm = { name: 'ECDSA', namedCurve: 'P-256', hash: 'SHA-256' };
  const keys = await subtle.generateKey(algorithm, true, ['sign', 'verify']);
  const notAfter = new Date(now + authorityDays * dayMilliseconds);
  const certificate = await X509CertificateGenerator.createSelfSigned({
    serialNumber: newSerialNumber(),
    name: [{ CN: [`Kellet device authority, ${tenantId}`] }],
    notBefore: new Date(now - backdateMilliseconds),
    notAfter,
    signingAlgorithm: algorithm,
    keys,
    extensions: [
      new BasicConstraintsExtension(true, 0, true),
      new KeyUsagesExtension(KeyUsageFlags.keyCertSign | KeyUsageFlags.cRLSign, true),
      await SubjectKeyIdentifierExtension.create(keys.publicKey),
    ],
  });
  const privateKey = createPrivateKey({
    key: Buffer.from(await subtle.exportKey('pkcs8', keys.privateKey)),
    format: 'der',
    type: 'pkcs8',
  });
  return {
    certificate: `${certificate.toString('pem')}\n`,
    privateKey: privateKey.export({ type: 'pkcs8', format: 'pem' }) as string,
    expiresAt: notAfter,
  };
}

/** Checks an authority that a tenant supplies. Throws INVALID_ARGUMENT. */
export async function checkSuppliedAuthority(
  certificatePem: string,
  privateKeyPem: string,
  now: number,
): Promise<StoredAuthority> {
  textField('certificate', certificatePem, { minimum: 1, maximum: maximumCharacters });
  textField('private_key', privateKeyPem, { minimum: 1, maximum: maximumCharacters });
  const chain = readChain(certificatePem);
  const [certificate] = chain;
  const problem = authorityProblem(certificate!, now);
  if (problem !== undefined) throw invalidArgument(`certificate: ${problem}`);
  if (chain.some((each, index) => index > 0 && !isIssuer(each, chain[index - 1]!))) {
    throw invalidArgument('certificate: each further certificate must be that of the issuer of the one before');
  }
  let key: KeyObject;
  try {
    key = createPrivateKey({ key: privateKeyPem, format: 'pem' });
  } catch {
    throw invalidArgument('private_key must be an unencrypted key as PKCS #8 PEM');
  }
  if (!certificate!.checkPrivateKey(key)) throw invalidArgument('private_key is not the key of the certificate');
  const stored = {
    certificate: chain.map((each) => each.toString()).join(''),
    privateKey: key.export({ type: 'pkcs8', format: 'pem' }) as string,
    expiresAt: certificate!.validToDate,
  };
  await openAuthority(stored).catch(() => {
    throw invalidArgument(
      'private_key must be of the type P-256, P-384, Ed25519 or RSA with 2048 to 4096 bits and a public exponent of at most 32 bits',
    );
  });
  return stored;
}

/** Prepares a stored authority for signing. Throws if its key is of another type. */
export async function openAuthority(
  stored: Pick<StoredAuthority, 'certificate' | 'privateKey'>,
): Promise<SigningAuthority> {
  const key = createPrivateKey(stored.privateKey);
  const algorithm = algorithmOf(key);
  if (!algorithm) throw new Error('the key of the authority is of another type');
  const der = key.export({ type: 'pkcs8', format: 'der' });
  return {
    certificate: new ReadCertificate(new X509Certificate(stored.certificate).raw),
    chain: stored.certificate,
    key: await subtle.importKey('pkcs8', der, algorithm, false, ['sign']),
    keyObject: key,
    algorithm,
  };
}

/** Signs a certificate whose only name is the id of the device. It expires no later than the authority. */
export async function signDeviceCertificate(
  authority: SigningAuthority,
  deviceId: string,
  publicKey: Buffer,
  validity: { readonly now: number; readonly days: number },
): Promise<IssuedCertificate> {
  const key = new PublicKey(publicKey);
  const end = Math.min(validity.now + validity.days * dayMilliseconds, authority.certificate.notAfter.getTime());
  const certificate = await X509CertificateGenerator.create({
    serialNumber: newSerialNumber(),
    subject: [{ CN: [deviceId] }],
    issuer: authority.certificate.subjectName,
    notBefore: new Date(validity.now - backdateMilliseconds),
    notAfter: new Date(end),
    publicKey: key,
    signingKey: authority.key,
    signingAlgorithm: authority.algorithm,
    extensions: [
      new BasicConstraintsExtension(false, undefined, true),
      new KeyUsagesExtension(KeyUsageFlags.digitalSignature, true),
      new ExtendedKeyUsageExtension([ExtendedKeyUsage.clientAuth]),
      await SubjectKeyIdentifierExtension.create(key),
      await AuthorityKeyIdentifierExtension.create(authority.certificate.publicKey),
    ],
  });
  const der = Buffer.from(certificate.rawData);
  return {
    pem: pemOf(der),
    der,
    sha256: hash('sha256', der, 'buffer'),
    serialNumber: certificate.serialNumber,
    notBefore: certificate.notBefore,
    notAfter: certificate.notAfter,
  };
}

/** Returns a certificate as PEM. */
export const pemOf = (der: Buffer): string => new X509Certificate(der).toString();

function readChain(pem: string): X509Certificate[] {
  const form = /-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----/g;
  const blocks = pem.match(form) ?? [];
  if (blocks.length === 0 || blocks.length > maximumChain || pem.replace(form, '').trim() !== '') {
    throw invalidArgument(`certificate must be 1 to ${maximumChain} certificates as PEM`);
  }
  try {
    return blocks.map((block) => new X509Certificate(block));
  } catch {
    throw invalidArgument('certificate cannot be read');
  }
}

/** Returns why a certificate cannot be an authority's, or undefined. */
function authorityProblem(certificate: X509Certificate, now: number): string | undefined {
  if (!certificate.ca) return 'it may not sign others (basic constraints)';
  const usages = new ReadCertificate(certificate.raw).getExtension(KeyUsagesExtension);
  if (usages && (usages.usages & KeyUsageFlags.keyCertSign) === 0) return 'it may not sign others (key usage)';
  if (certificate.validFromDate.getTime() > now) return 'it is not valid yet';
  if (certificate.validToDate.getTime() <= now) return 'it has expired';
  return undefined;
}

const isIssuer = (issuer: X509Certificate, certificate: X509Certificate): boolean =>
  certificate.checkIssued(issuer) && certificate.verify(issuer.publicKey);

/** Returns the algorithm with which a key signs, or undefined if the type of the key is not accepted. */
function algorithmOf(key: KeyObject): Algorithm | undefined {
  const { namedCurve, modulusLength = 0, publicExponent = 0n } = key.asymmetricKeyDetails ?? {};
  switch (key.asymmetricKeyType) {
    case 'ec':
      if (namedCurve === 'prime256v1') return { name: 'ECDSA', namedCurve: 'P-256', hash: 'SHA-256' };
      return namedCurve === 'secp384r1' ? { name: 'ECDSA', namedCurve: 'P-384', hash: 'SHA-384' } : undefined;
    case 'ed25519':
      return { name: 'Ed25519' };
    case 'rsa':
      return modulusLength >= 2048 && modulusLength <= maximumRsaBits && publicExponent < maximumRsaExponent
        ? { name: 'RSASSA-PKCS1-v1_5', hash: 'SHA-256' }
        : undefined;
    default:
      return undefined;
  }
}

/** Returns a positive number of 16 random bytes, as hexadecimal digits. It never begins with zeros, so its length is fixed. */
function newSerialNumber(): string {
  const bytes = randomBytes(16);
  bytes[0] = (bytes[0]! & 0x7f) | 0x40;
  return bytes.toString('hex');
}
