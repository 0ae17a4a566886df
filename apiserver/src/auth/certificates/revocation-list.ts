// X.509 lists of revoked certificates (CRL, RFC 5280), signed by the authority that issued the certificates. Written as DER
// directly: the library needs a millisecond for each entry, in one go.
import { sign } from 'node:crypto';
import { promisify } from 'node:util';
import { failedPrecondition } from '../../platform/errors.ts';
import type { SigningAuthority } from './certificate-authority.ts';
import { AuthorityKeyIdentifierExtension, Extension, KeyUsageFlags, KeyUsagesExtension } from './x509.ts';

const signAsync = promisify(sign);

/** A certificate that was revoked. */
export interface RevokedCertificate {
  /** Hexadecimal digits. */
  readonly serialNumber: string;
  readonly revokedAt: Date;
}

/** How long a list may be used. */
const validityMilliseconds = 86_400_000;
/** Serial numbers of lists are positive and increase, as milliseconds since 1970 do. */
const listNumberOid = '2.5.29.20';

/** Returns entries of a list as DER, to be passed to {@link signRevocationList}. */
export const revokedEntries = (certificates: readonly RevokedCertificate[]): Buffer =>
  Buffer.concat(
    certificates.map(({ serialNumber, revokedAt }) =>
      element(tags.sequence, integer(Buffer.from(serialNumber, 'hex')), time(revokedAt)),
    ),
  );

/**
 * Signs a list of what an authority had revoked at a time. Throws FAILED_PRECONDITION if the authority's certificate says
 * that it may not sign such lists.
 */
export async function signRevocationList(
  authority: SigningAuthority,
  entries: readonly Buffer[],
  now: number,
): Promise<Buffer> {
  const usages = authority.certificate.getExtension(KeyUsagesExtension);
  if (usages && (usages.usages & KeyUsageFlags.cRLSign) === 0) {
    throw failedPrecondition('the certificate of the authority does not permit signing revocation lists (key usage)');
  }
  const { identifier, hash } = signatureOf(authority.algorithm);
  const number = Buffer.from(now.toString(16).padStart(12, '0'), 'hex');
  const extensions = [
    await AuthorityKeyIdentifierExtension.create(authority.certificate.publicKey),
    new Extension(listNumberOid, false, integer(number)),
  ];
  const list = element(
    tags.sequence,
    integer(Buffer.of(1)),
    identifier,
    Buffer.from(authority.certificate.subjectName.toArrayBuffer()),
    time(new Date(now)),
    time(new Date(now + validityMilliseconds)),
    // An empty list must be absent.
    ...(entries.length === 0 ? [] : [element(tags.sequence, ...entries)]),
    element(tags.context0, element(tags.sequence, ...extensions.map(({ rawData }) => Buffer.from(rawData)))),
  );
  const signature = await signAsync(hash, list, authority.keyObject);
  return element(tags.sequence, list, identifier, element(tags.bitString, Buffer.of(0), signature));
}

const tags = {
  integer: 0x02,
  bitString: 0x03,
  utcTime: 0x17,
  generalizedTime: 0x18,
  sequence: 0x30,
  context0: 0xa0,
} as const;

/** Returns an element of DER. */
function element(tag: number, ...content: readonly Buffer[]): Buffer {
  const length = content.reduce((sum, part) => sum + part.length, 0);
  if (length < 0x80) return Buffer.concat([Buffer.of(tag, length), ...content]);
  const hex = length.toString(16);
  const digits = Buffer.from(hex.padStart(hex.length + (hex.length % 2), '0'), 'hex');
  return Buffer.concat([Buffer.of(tag, 0x80 | digits.length), digits, ...content]);
}

/** Returns a number that is not negative, in as few bytes as it needs. */
function integer(bytes: Buffer): Buffer {
  const first = bytes.findIndex((byte) => byte !== 0);
  const digits = first < 0 ? Buffer.of(0) : bytes.subarray(first);
  return digits[0]! >= 0x80 ? element(tags.integer, Buffer.of(0), digits) : element(tags.integer, digits);
}

/** Returns a time, to the second; years from 2050 on have four digits. */
function time(date: Date): Buffer {
  const text = `${date.toISOString().replace(/[-:T]|\.\d+Z$/g, '')}Z`;
  return date.getUTCFullYear() < 2050
    ? element(tags.utcTime, Buffer.from(text.slice(2)))
    : element(tags.generalizedTime, Buffer.from(text));
}

/** Returns the AlgorithmIdentifier of an authority's signatures and the hash that goes with it. */
function signatureOf({ name, hash }: SigningAuthority['algorithm']): { identifier: Buffer; hash: string | null } {
  const identifier = (hex: string): Buffer => element(tags.sequence, Buffer.from(hex, 'hex'));
  switch (name) {
    case 'Ed25519': // 1.3.101.112
      return { identifier: identifier('06032b6570'), hash: null };
    case 'ECDSA': // ecdsa-with-SHA384, ecdsa-with-SHA256
      return hash === 'SHA-384'
        ? { identifier: identifier('06082a8648ce3d040303'), hash: 'sha384' }
        : { identifier: identifier('06082a8648ce3d040302'), hash: 'sha256' };
    default: // sha256WithRSAEncryption, whose parameters are NULL
      return { identifier: identifier('06092a864886f70d01010b0500'), hash: 'sha256' };
  }
}
