// The format of an API key: sk_live_, 32 random base62 characters, and a checksum, so that typing errors and guesses
// are rejected without a query.
import { createHash, randomBytes } from 'node:crypto';
import { crc32 } from 'node:zlib';

/** A source of random bytes, replaceable in tests. */
export type RandomSource = (bytes: number) => Buffer;

const alphabet = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz';
const scheme = 'sk_live_';
const randomLength = 32;
const checksumLength = 6;
const form = new RegExp(`^${scheme}[0-9A-Za-z]{30,}[0-9A-Za-z]{${checksumLength}}$`);

/** A new key and what is stored of it. */
export interface MintedKey {
  /** The key itself: returned once and never stored. */
  readonly key: string;
  readonly hash: Buffer;
  /** The first characters, shown to distinguish keys. */
  readonly prefix: string;
  readonly last4: string;
}

/** Generates a key with 190 random bits. */
export function mintKey(random: RandomSource = randomBytes): MintedKey {
  const body = scheme + randomBase62(randomLength, random);
  const key = body + checksum(body);
  return { key, hash: credentialHash(key), prefix: key.slice(0, scheme.length + 4), last4: key.slice(-4) };
}

/** Reports whether a credential has the prefix of an API key, valid or not. */
export const looksLikeApiKey = (credential: string): boolean => credential.startsWith(scheme);

/** Reports whether a text has the form of a key and its checksum is correct. */
export function isWellFormedKey(text: string): boolean {
  if (text.length > 256 || !form.test(text)) return false;
  return checksum(text.slice(0, -checksumLength)) === text.slice(-checksumLength);
}

/** The SHA-256 of a credential: stored instead of it, and used to announce its revocation. */
export const credentialHash = (credential: string): Buffer => createHash('sha256').update(credential).digest();

function checksum(body: string): string {
  let rest = crc32(body);
  let text = '';
  for (let index = 0; index < checksumLength; index += 1) {
    text = alphabet[rest % 62]! + text;
    rest = Math.floor(rest / 62);
  }
  return text;
}

function randomBase62(length: number, random: RandomSource): string {
  let text = '';
  while (text.length < length) {
    for (const byte of random(length)) {
      // 248 is the largest multiple of 62 in a byte; larger values would make some characters likelier than others.
      if (byte < 248 && text.length < length) text += alphabet[byte % 62]!;
    }
  }
  return text;
}
