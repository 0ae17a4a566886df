// What the connection of a device proves, as an alternative to a credential that it sends.
import { hash } from 'node:crypto';

/**
 * A proof: that the peer holds the private key of a certificate, or a pre-shared key. Made only from a TLS handshake, or
 * from the header of a trusted proxy, never from what a client sends as a credential.
 */
export type DeviceProof =
  { readonly kind: 'certificate'; readonly sha256: Buffer } | { readonly kind: 'psk'; readonly identity: string };

/** The types of credentials of devices. */
export type CredentialType = 'api_key' | 'psk' | 'certificate';

/** A credential that was sent, or a proof. */
export type Credential = string | DeviceProof;

/** Returns the hash under which the credential that was proven is stored, and its revocation announced. */
export function proofHash(proof: DeviceProof): Buffer {
  return proof.kind === 'certificate' ? proof.sha256 : hash('sha256', `psk\n${proof.identity}`, 'buffer');
}
