// For tests: keys of devices, requests for certificates, and untrusted certificates.
import { createPrivateKey } from 'node:crypto';
import {
  BasicConstraintsExtension,
  type Extension,
  Pkcs10CertificateRequestGenerator,
  X509CertificateGenerator,
} from '../certificates/x509.ts';

const { subtle } = globalThis.crypto;

/** Algorithms of keys. */
const algorithms = {
  p256: { name: 'ECDSA', namedCurve: 'P-256', hash: 'SHA-256' },
  p384: { name: 'ECDSA', namedCurve: 'P-384', hash: 'SHA-384' },
  p521: { name: 'ECDSA', namedCurve: 'P-521', hash: 'SHA-512' },
  ed25519: { name: 'Ed25519' },
  rsa: { name: 'RSASSA-PKCS1-v1_5', hash: 'SHA-256', modulusLength: 2048, publicExponent: new Uint8Array([1, 0, 1]) },
} as const;
export type AlgorithmName = keyof typeof algorithms;

/** A pair of keys. */
export type Keys = Awaited<ReturnType<typeof newKeys>>;

/** Generates keys. */
export async function newKeys(algorithm: AlgorithmName = 'p256') {
  const pair = (await subtle.generateKey(algorithms[algorithm], true, ['sign', 'verify'])) as {
    publicKey: Awaited<ReturnType<typeof subtle.importKey>>;
    privateKey: Awaited<ReturnType<typeof subtle.importKey>>;
  };
  const der = Buffer.from(await subtle.exportKey('pkcs8', pair.privateKey));
  const pem = createPrivateKey({ key: der, format: 'der', type: 'pkcs8' }).export({ type: 'pkcs8', format: 'pem' });
  return { ...pair, algorithm: algorithms[algorithm], pem: pem as string };
}

/** Returns a request for a certificate as PEM. */
export async function csrOf(keys: Keys, commonName?: string): Promise<string> {
  const request = await Pkcs10CertificateRequestGenerator.create({
    keys,
    name: commonName === undefined ? [] : [{ CN: [commonName] }],
    signingAlgorithm: keys.algorithm,
  });
  return request.toString('pem');
}

/** Returns a certificate as PEM, signed with its own key unless an issuer is given. */
export async function certificateOf(
  keys: Keys,
  commonName: string,
  options: { issuer?: { keys: Keys; name: string }; days?: [number, number]; isAuthority?: boolean } = {},
): Promise<string> {
  const { issuer = { keys, name: commonName }, days = [-1, 30], isAuthority = false } = options;
  const extensions: Extension[] = [new BasicConstraintsExtension(isAuthority, undefined, true)];
  const certificate = await X509CertificateGenerator.create({
    subject: [{ CN: [commonName] }],
    issuer: [{ CN: [issuer.name] }],
    notBefore: new Date(Date.now() + days[0] * 86_400_000),
    notAfter: new Date(Date.now() + days[1] * 86_400_000),
    publicKey: keys.publicKey,
    signingKey: issuer.keys.privateKey,
    signingAlgorithm: issuer.keys.algorithm,
    extensions,
  });
  return `${certificate.toString('pem')}\n`;
}
