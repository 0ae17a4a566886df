// Determines what the connection of a request proves about a device: the certificate of its TLS handshake, or the one
// that a trusted proxy reports.
import { hash } from 'node:crypto';
import type { IncomingMessage } from 'node:http';
import { TLSSocket } from 'node:tls';
import type { DeviceProof } from '../../auth/credentials/device-proof.ts';
import { trustedProxies } from './client-address.ts';

/** Returns what a connection proves, given its socket and the headers of the request by lower-case name. */
export type ProofOf = (socket: unknown, header: (name: string) => string | undefined) => DeviceProof | undefined;

/** Envoy's header, which has its own format. */
const forwardedCertificate = 'x-forwarded-client-cert';

const remembered = new WeakMap<TLSSocket, DeviceProof | null>();

/** Returns the certificate whose possession the peer of a TLS connection has proven. */
export function certificateOfPeer(socket: unknown): DeviceProof | undefined {
  if (!(socket instanceof TLSSocket)) return undefined;
  let proof = remembered.get(socket);
  if (proof === undefined) {
    const certificate = socket.getPeerX509Certificate();
    proof = certificate ? { kind: 'certificate', sha256: hash('sha256', certificate.raw, 'buffer') } : null;
    remembered.set(socket, proof);
  }
  return proof ?? undefined;
}

/**
 * Returns a resolver of proofs. The header with this name (KELLET_CLIENT_CERTIFICATE_HEADER; empty: none) is accepted only
 * from the trusted proxies, whose own certificates never count.
 */
export function connectionProofs(headerName: string, trusted: readonly string[]): ProofOf {
  const name = headerName.toLowerCase();
  const isProxy = trustedProxies(trusted);
  return (socket, header) => {
    const remoteAddress = (socket as { remoteAddress?: string } | undefined)?.remoteAddress ?? '';
    if (name === '' || !isProxy(remoteAddress)) return certificateOfPeer(socket);
    const text = header(name);
    return text === undefined ? undefined : certificateOfHeader(name, text);
  };
}

/** Returns what the connection of an HTTP/1.1 request proves. */
export const proofOfRequest = (proofOf: ProofOf, { socket, headers }: IncomingMessage): DeviceProof | undefined =>
  proofOf(socket, (name) => headers[name] as string | undefined);

/**
 * Reads a certificate from a proxy's header, which the proxy must replace and not append to: one with several elements
 * counts as absent, because all but the last may be forged by the client.
 */
export function certificateOfHeader(name: string, text: string): DeviceProof | undefined {
  const sha256 = name === forwardedCertificate ? hashOfElement(text) : hashOfPem(text);
  return sha256 && { kind: 'certificate', sha256 };
}

/**
 * Reads `By=…;Hash=<hex SHA-256>;Subject="…"`, as Envoy writes it. The hash comes before everything that the client's
 * certificate says.
 */
function hashOfElement(text: string): Buffer | undefined {
  if (/,\s*(by|hash|cert|chain|subject|uri|dns)=/i.test(text)) return undefined;
  const sha256 = /^\s*(?:by=[^,;"]*;)*hash=([0-9a-f]{64})(?:;|\s*$)/i.exec(text)?.[1];
  return sha256 === undefined ? undefined : Buffer.from(sha256, 'hex');
}

/** Reads URL-encoded PEM, as nginx and others write it. Of a chain the first certificate is the client's. */
function hashOfPem(text: string): Buffer | undefined {
  let pem: string;
  try {
    pem = decodeURIComponent(text);
  } catch {
    return undefined;
  }
  const block = '-----BEGIN CERTIFICATE-----([A-Za-z0-9+/=\\s]+)-----END CERTIFICATE-----\\s*';
  const body = new RegExp(`^\\s*${block}(?:${block})*$`).exec(pem)?.[1];
  return body === undefined ? undefined : hash('sha256', Buffer.from(body, 'base64'), 'buffer');
}
