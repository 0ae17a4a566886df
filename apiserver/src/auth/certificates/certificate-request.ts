// Checks the requests for certificates (PKCS #10) that devices send.
import { createPublicKey, hash, type KeyObject } from 'node:crypto';
import { invalidArgument } from '../../platform/errors.ts';
import { textField } from '../../platform/requests/fields.ts';
import { Pkcs10CertificateRequest } from './x509.ts';

/** More than any request with a key of the accepted types needs. */
const maximumCharacters = 8192;

/** The part of a checked request that is used. The issuer decides everything else, including the subject. */
export interface CheckedRequest {
  /** SubjectPublicKeyInfo, DER. */
  readonly publicKey: Buffer;
  /** SHA-256 of it. */
  readonly publicKeyHash: Buffer;
}

/**
 * Checks a request: its form, the type of its key, and the signature that proves possession of the key. Throws
 * INVALID_ARGUMENT.
 */
export async function checkCertificateRequest(pem: string): Promise<CheckedRequest> {
  textField('csr', pem, { minimum: 1, maximum: maximumCharacters });
  const request = parse(pem);
  const key = keyOf(request);
  if (!isAccepted(key)) throw invalidArgument('csr: the key must be P-256 or Ed25519');
  if (!(await isSigned(request))) throw invalidArgument('csr: the signature is not valid');
  const publicKey = key!.export({ type: 'spki', format: 'der' });
  return { publicKey, publicKeyHash: hash('sha256', publicKey, 'buffer') };
}

function parse(pem: string): Pkcs10CertificateRequest {
  const form =
    /^\s*-----BEGIN (NEW )?CERTIFICATE REQUEST-----([A-Za-z0-9+/=\s]+)-----END \1?CERTIFICATE REQUEST-----\s*$/;
  const body = form.exec(pem)?.[2];
  if (body === undefined) throw invalidArgument('csr must be one PKCS #10 request as PEM');
  try {
    return new Pkcs10CertificateRequest(Buffer.from(body, 'base64'));
  } catch {
    throw invalidArgument('csr must be one PKCS #10 request as PEM');
  }
}

function keyOf(request: Pkcs10CertificateRequest): KeyObject | undefined {
  try {
    return createPublicKey({ key: Buffer.from(request.publicKey.rawData), format: 'der', type: 'spki' });
  } catch {
    return undefined;
  }
}

function isAccepted(key: KeyObject | undefined): boolean {
  if (key?.asymmetricKeyType === 'ed25519') return true;
  return key?.asymmetricKeyType === 'ec' && key.asymmetricKeyDetails?.namedCurve === 'prime256v1';
}

async function isSigned(request: Pkcs10CertificateRequest): Promise<boolean> {
  try {
    return await request.verify();
  } catch {
    return false;
  }
}
