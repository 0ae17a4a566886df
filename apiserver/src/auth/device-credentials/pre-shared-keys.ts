// Pre-shared keys of devices (TLS-PSK). A key is derived from its identity, so that a TLS handshake, which cannot wait for
// the database, needs no stored keys. Whether the identity is valid is decided afterwards, as for any credential.
import { hkdfSync, randomBytes } from 'node:crypto';

const keyBytes = 32;
const form = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.[0-9a-f]{16}$/;

/** Returns a new identity for a device: its id and a random part, so that each rotation has another. */
export const newPskIdentity = (deviceId: string): string => `${deviceId}.${randomBytes(8).toString('hex')}`;

/** Derives keys with KELLET_CONTROL_SECRET. */
export class PreSharedKeys {
  private readonly controlSecret: string;

  constructor(controlSecret: string) {
    this.controlSecret = controlSecret;
  }

  /** Returns the key of an identity, or undefined if the text does not have the form of one. */
  keyOf(identity: string): Buffer | undefined {
    if (!form.test(identity)) return undefined;
    return Buffer.from(hkdfSync('sha256', this.controlSecret, '', `kellet device psk ${identity}`, keyBytes));
  }
}
