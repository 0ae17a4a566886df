// The form of an API key: sk_live_, 32 random base62 characters, and a checksum that refuses most typing errors and all
// guesses made without knowing the form before the database is asked.
import { createHash, randomBytes } from 'node:crypto';
import { crc32 } from 'node:zlib';

/** A source of random bytes; tests give their own. */
export type RandomSource = (bytes: number) => Buffer;

const alphabet = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz';
const scheme = 'sk_live_';
const randomLength = 32;
const checksumLength = 6;
const form = new RegExp(`^${scheme}[0-9A-Za-z]{30,}[0-9A-Za-z]{${checksumLength}}$`);

/** A new key and what is kept of it. */
export interface MintedKey {
  /** The key itself: given to its holder once and kept nowhere. */
  readonly key: string;
  readonly hash: Buffer;
  /** The first characters, shown so that people can tell keys apart. */
  readonly prefix: string;
  readonly last4: string;
}

/** Makes a key of 190 random bits. */
export function mintKey(random: RandomSource = randomBytes): MintedKey {
  const body = scheme + randomBase62(randomLength, random);
  const key = body + checksum(body);
  return { key, hash: credentialHash(key), prefix: key.slice(0, scheme.length + 4), last4: key.slice(-4) };
}

/** Whether a credential claims to be an API key at all, right or wrong. */
export const looksLikeApiKey = (credential: string): boolean => credential.startsWith(scheme);

/** Whether the text has the form of a key and its checksum holds. */
export function isWellFormedKey(text: string): boolean {
  if (text.length > 256 || !form.test(text)) return false;
  return checksum(text.slice(0, -checksumLength)) === text.slice(-checksumLength);
}

/** What is stored of a credential, and what revocation is keyed by: its SHA-256. */
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
      // 248 is the largest multiple of 62 in a byte: above it some characters would be likelier than others.
      if (byte < 248 && text.length < length) text += alphabet[byte % 62]!;
    }
  }
  return text;
}
