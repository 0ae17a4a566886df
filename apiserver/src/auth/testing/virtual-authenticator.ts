// For tests: a WebAuthn authenticator and the browser in front of it, with a P-256 key, written from the specification
// and without the library under test.
import { createHash, createSign, generateKeyPairSync, type KeyObject, randomBytes } from 'node:crypto';
import type { JsonObject } from '@bufbuild/protobuf';

type Cbor = number | string | Uint8Array | readonly Cbor[] | ReadonlyMap<number | string, Cbor>;

/** Encodes a value in CBOR (RFC 8949): integers, text, bytes, arrays and maps are all that WebAuthn needs. */
function cbor(value: Cbor): Buffer {
  if (typeof value === 'number') return value < 0 ? head(1, -1 - value) : head(0, value);
  if (typeof value === 'string') return Buffer.concat([head(3, Buffer.byteLength(value)), Buffer.from(value)]);
  if (value instanceof Uint8Array) return Buffer.concat([head(2, value.length), value]);
  if (isMap(value)) {
    return Buffer.concat([head(5, value.size), ...[...value].flatMap(([key, one]) => [cbor(key), cbor(one)])]);
  }
  return Buffer.concat([head(4, value.length), ...value.map(cbor)]);
}

const isMap = (value: Cbor): value is ReadonlyMap<number | string, Cbor> => value instanceof Map;

function head(major: number, argument: number): Buffer {
  if (argument < 24) return Buffer.from([(major << 5) | argument]);
  if (argument < 256) return Buffer.from([(major << 5) | 24, argument]);
  return Buffer.from([(major << 5) | 25, argument >> 8, argument & 255]);
}

const sha256 = (data: Uint8Array | string): Buffer => createHash('sha256').update(data).digest();
const base64url = (data: Uint8Array): string => Buffer.from(data).toString('base64url');

/** What a test may have the authenticator or the browser do differently. */
export interface Misbehaviour {
  /** The page that asks; by default the relying party's. */
  readonly origin?: string;
  readonly rpId?: string;
  readonly challenge?: string;
  /** The counter in the response; by default one more than in the last. */
  readonly counter?: number;
  /** The attestation; by default none. */
  readonly attestation?: { readonly format: string; readonly statement: ReadonlyMap<string, Cbor> };
  readonly type?: string;
  readonly flags?: number;
  /** Signs with this key instead of the credential's. */
  readonly key?: KeyObject;
}

const userPresent = 0x01;
const attestedData = 0x40;

/** A security key with one credential. */
export class VirtualAuthenticator {
  readonly credentialId: Buffer;
  counter = 0;
  private readonly keys = generateKeyPairSync('ec', { namedCurve: 'P-256' });
  private readonly origin: string;

  constructor(origin: string, idBytes = 32) {
    this.credentialId = randomBytes(idBytes);
    this.origin = origin;
  }

  /** The response to PublicKeyCredentialCreationOptions (navigator.credentials.create). */
  create(options: JsonObject, wrong: Misbehaviour = {}): JsonObject {
    const { id } = options['rp'] as { id: string };
    const { x, y } = this.keys.publicKey.export({ format: 'jwk' });
    const cose = new Map<number, Cbor>([
      ...([
        [1, 2],
        [3, -7],
        [-1, 1],
      ] as const),
      [-2, Buffer.from(x!, 'base64url')],
      [-3, Buffer.from(y!, 'base64url')],
    ]);
    const attested = Buffer.concat([
      Buffer.alloc(16),
      Buffer.from([this.credentialId.length >> 8, this.credentialId.length & 255]),
      this.credentialId,
      cbor(cose),
    ]);
    const data = Buffer.concat([this.authenticatorData(wrong.rpId ?? id, userPresent | attestedData, wrong), attested]);
    const { format = 'none', statement = new Map<string, Cbor>() } = wrong.attestation ?? {};
    const attestation = cbor(
      new Map<string, Cbor>([...([['fmt', format]] as const), ['attStmt', statement], ['authData', data]]),
    );
    return this.credential({
      clientDataJSON: this.clientData('webauthn.create', options, wrong),
      attestationObject: base64url(attestation),
      transports: ['usb'],
    });
  }

  /** The response to PublicKeyCredentialRequestOptions (navigator.credentials.get). */
  get(options: JsonObject, wrong: Misbehaviour = {}): JsonObject {
    const data = this.authenticatorData(wrong.rpId ?? (options['rpId'] as string), userPresent, wrong);
    const clientDataJSON = this.clientData('webauthn.get', options, wrong);
    const signed = Buffer.concat([data, sha256(Buffer.from(clientDataJSON, 'base64url'))]);
    const signature = createSign('sha256')
      .update(signed)
      .sign(wrong.key ?? this.keys.privateKey);
    return this.credential({ clientDataJSON, authenticatorData: base64url(data), signature: base64url(signature) });
  }

  private credential(response: JsonObject): JsonObject {
    const id = base64url(this.credentialId);
    return { id, rawId: id, type: 'public-key', clientExtensionResults: {}, response };
  }

  private clientData(type: string, options: JsonObject, wrong: Misbehaviour): string {
    const challenge = wrong.challenge ?? (options['challenge'] as string);
    const origin = wrong.origin ?? this.origin;
    return base64url(Buffer.from(JSON.stringify({ type: wrong.type ?? type, challenge, origin, crossOrigin: false })));
  }

  private authenticatorData(rpId: string, flags: number, wrong: Misbehaviour): Buffer {
    this.counter = wrong.counter ?? this.counter + 1;
    const counter = Buffer.alloc(4);
    counter.writeUInt32BE(this.counter);
    return Buffer.concat([sha256(rpId), Buffer.from([wrong.flags ?? flags]), counter]);
  }
}
