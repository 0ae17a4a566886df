// Codes of authenticator apps (RFC 6238): six digits, 30-second steps, SHA-1, which every app supports.
import { timingSafeEqual } from 'node:crypto';
import { Secret, TOTP } from 'otpauth';

const periodSeconds = 30;
/** Steps before and after the current one whose codes are accepted, for clocks that differ. */
const driftSteps = 1;

/** A new secret in base32: 160 bits, the length that RFC 4226 recommends. */
export const newTotpSecret = (): string => new Secret({ size: 20 }).base32;

/** Returns the content of the QR code for an authenticator app. */
export function otpauthUri(secret: string, account: string, issuer: string): string {
  return totpOf(secret, account, issuer).toString();
}

/**
 * Returns the step whose code this is, or undefined: a step around the given time, later than the last accepted one.
 * Compares the codes of all these steps in constant time.
 */
export function acceptedStep(secret: string, code: string, milliseconds: number, lastStep: number): number | undefined {
  const totp = totpOf(secret, '', '');
  const current = Math.floor(milliseconds / 1000 / periodSeconds);
  const given = Buffer.from(code);
  let accepted: number | undefined;
  for (let step = current - driftSteps; step <= current + driftSteps; step += 1) {
    const expected = Buffer.from(totp.generate({ timestamp: step * periodSeconds * 1000 }));
    const isRight = given.length === expected.length && timingSafeEqual(given, expected);
    if (isRight && step > lastStep) accepted = step;
  }
  return accepted;
}

/** Reports whether a text has the form of a code. */
export const isTotpCode = (text: string): boolean => /^\d{6}$/.test(text);

const totpOf = (secret: string, label: string, issuer: string): TOTP =>
  new TOTP({ issuer, label, secret: Secret.fromBase32(secret), algorithm: 'SHA1', digits: 6, period: periodSeconds });
