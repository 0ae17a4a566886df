// What a new password must fulfil: its length, and that it is not easy to guess.
import { invalidArgument } from '../../platform/errors.ts';
import { textField } from '../../platform/requests/fields.ts';
import { passwordStrength } from './password-strength.ts';
import { passwordSlots } from './passwords.ts';

/** What a new password must fulfil. */
export interface PasswordPolicy {
  /** The lowest strength that is accepted (KELLET_PASSWORD_STRENGTH). */
  readonly passwordStrength: number;
}

/** Checks that are waiting; further ones are refused. */
const strengthSlots = passwordSlots({ total: 1, waiting: 64, waitingPerOwner: 8 });

/**
 * Checks a new password: 12 to 1024 characters, and not easy to guess, also for those who know `words` about the user. Throws
 * INVALID_ARGUMENT naming the field, and UNAVAILABLE when too many passwords are being checked. `owner` is as in hashPassword.
 */
export async function checkNewPassword(
  password: string,
  { passwordStrength: least }: PasswordPolicy,
  { field = 'password', words = [], owner = '' }: { field?: string; words?: readonly string[]; owner?: string } = {},
): Promise<void> {
  textField(field, password, { minimum: 12, maximum: 1024 });
  if (least === 0) return;
  const known = words.flatMap((word) => {
    const parts = word.split(/[^\p{L}\p{N}]+/u);
    return [word, parts.join(''), ...parts].filter((part) => part.length > 2);
  });
  const strength = await strengthSlots.run(owner, () => passwordStrength(password, known));
  if (strength < least) {
    throw invalidArgument(`${field} is too easy to guess: avoid well-known passwords, names and patterns`);
  }
}
