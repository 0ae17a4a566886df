// Recovery codes: shown once, stored as hashes, each good for one sign-in.
import { createHash, randomBytes } from 'node:crypto';

/** Codes that a user gets. */
const codesOfUser = 10;
/** Without characters that look alike; 32 of them, so that each is 5 bits. */
const alphabet = 'abcdefghijkmnpqrstuvwxyz23456789';
const characters = 16;

/** New codes of 80 random bits each, such as `k7wd-9qxm-2hfp-ztn4`. */
export function newRecoveryCodes(): string[] {
  return Array.from({ length: codesOfUser }, () =>
    [...randomBytes(characters)]
      .map((byte) => alphabet[byte % alphabet.length]!)
      .join('')
      .replace(/.{4}(?!$)/g, '$&-'),
  );
}

/**
 * Returns the hash of a code as people type it: spaces, hyphens and capitals do not matter. A code has too many bits
 * for its hash to be searched.
 */
export function recoveryCodeHash(userId: string, code: string): Buffer {
  const typed = code.toLowerCase().replaceAll(/[\s-]/g, '');
  return createHash('sha256').update(`${userId}\0${typed}`).digest();
}
