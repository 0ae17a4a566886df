// The key that pays for anchors: its address, locking script and signatures. Imports a single module of the SDK:
// loading all of it takes a second and touches browser storage.
import { toBase58Check } from '@bsv/sdk/primitives/utils';
import { concatBytes, sha256, toHex } from '@kellet/verify';
import { secp256k1 } from '@noble/curves/secp256k1.js';
import { ripemd160 } from '@noble/hashes/legacy.js';

/** Which addresses are shown: main network or test network. */
export type AddressNetwork = 'main' | 'test' | 'local';

export interface WalletKey {
  /** Compressed, 33 bytes, as hex. */
  readonly publicKeyHex: string;
  readonly publicKey: Uint8Array;
  /** P2PKH script that pays the key. */
  readonly lockingScript: Uint8Array;
  /** Base58Check address of the key. */
  readonly address: string;
  /** Returns an ECDSA signature over a 32-byte digest: low S, strict DER. */
  sign(digest: Uint8Array): Uint8Array;
}

/**
 * Parses a private key of 64 hex digits.
 * Throws Error for an invalid key; the message does not contain it.
 */
export function createWalletKey(hex: string, network: AddressNetwork): WalletKey {
  const secret = /^[0-9a-f]{64}$/i.test(hex) ? Uint8Array.from(Buffer.from(hex, 'hex')) : new Uint8Array();
  if (!secp256k1.utils.isValidSecretKey(secret))
    throw new Error('the wallet key is not a private key of 64 hex digits');
  const publicKey = secp256k1.getPublicKey(secret, true);
  const hash = ripemd160(sha256(publicKey));
  return {
    publicKey,
    publicKeyHex: toHex(publicKey),
    lockingScript: concatBytes(Uint8Array.of(0x76, 0xa9, 0x14), hash, Uint8Array.of(0x88, 0xac)),
    address: toBase58Check([...hash], [network === 'main' ? 0x00 : 0x6f]),
    sign: (digest) => secp256k1.sign(digest, secret, { prehash: false, lowS: true, format: 'der' }),
  };
}
