// Passwords: argon2id with OWASP's parameters (19 MiB, two passes), hashed outside the main thread.
import { hash, verify } from '@node-rs/argon2';
import { textField } from '../platform/fields.ts';

// The library's default algorithm is argon2id; its constant is an ambient const enum, which type stripping cannot read.
const parameters = { memoryCost: 19_456, timeCost: 2, parallelism: 1 };

/** What is verified when there is no account, so that a sign-in costs the same work whether or not the account exists. */
let nobodysHash: Promise<string> | undefined;

/** Checks a new password: 12 to 1024 characters. Throws INVALID_ARGUMENT naming the field. */
export function checkNewPassword(password: string, field = 'password'): void {
  textField(field, password, { minimum: 12, maximum: 1024 });
}

/** Hashes a password; the answer holds salt and parameters. Costs about 15 ms of a worker thread. */
export function hashPassword(password: string): Promise<string> {
  return hash(password, parameters);
}

/** Whether the password belongs to the hash. Without a hash it does the same work and answers false. */
export async function verifyPassword(passwordHash: string | undefined, password: string): Promise<boolean> {
  nobodysHash ??= hashPassword('the password of nobody');
  const matches = await verify(passwordHash ?? (await nobodysHash), password);
  return matches && passwordHash !== undefined;
}
