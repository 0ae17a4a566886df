// Pre-shared keys of devices (TLS-PSK). A key is derived from its identity, so that a TLS handshake, which cannot wait for
// the database, needs no stored keys. Whether the identity is valid is decided afterwards, as for any credential.
import { hkdfSync, randomBytes } from 'node:crypto';

const keyBytes = 32;
/** The device, a random part and the secret that the key derives from. Earlier releases left the last one out. */
const form = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.[0-9a-f]{16}(\.([0-9a-f]{8}))?$/;

/** Derives keys with KELLET_CONTROL_SECRET, and with the previous one for the identities that were issued with it. */
export class PreSharedKeys {
  /** The secrets by fingerprint. */
  private readonly secrets: ReadonlyMap<string, string>;
  private readonly fingerprint: string;
  /** The secret of identities that do not name one. */
  private readonly oldest: string;

  /** `previousSecret` is empty if there is none. */
  constructor(controlSecret: string, previousSecret: string) {
    this.fingerprint = fingerprintOf(controlSecret);
    this.oldest = previousSecret || controlSecret;
    this.secrets = new Map([
      [fingerprintOf(this.oldest), this.oldest],
      [this.fingerprint, controlSecret],
    ]);
  }

  /** Returns a new identity for a device: its id, a random part, so that each rotation has another, and the secret. */
  newIdentity(deviceId: string): string {
    return `${deviceId}.${randomBytes(8).toString('hex')}.${this.fingerprint}`;
  }

  /** Returns the key of an identity, or undefined if the text is not one, or names a secret that is not configured. */
  keyOf(identity: string): Buffer | undefined {
    const [isIdentity, , , fingerprint] = form.exec(identity) ?? [];
    if (isIdentity === undefined) return undefined;
    const secret = fingerprint === undefined ? this.oldest : this.secrets.get(fingerprint);
    if (secret === undefined) return undefined;
    return Buffer.from(hkdfSync('sha256', secret, '', `kellet device psk ${identity}`, keyBytes));
  }
}

/** Returns what tells secrets apart and reveals nothing of them. */
const fingerprintOf = (secret: string): string =>
  Buffer.from(hkdfSync('sha256', secret, '', 'kellet device psk fingerprint', 4)).toString('hex');
