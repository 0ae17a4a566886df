// The two questions whether e-mail addresses are the same. PostgreSQL, which finds accounts by lower(email), takes more for
// the same than either does: İ is i there.

/**
 * Reports whether a sign-in with one spelling is a sign-in to the account of the other. Failures are counted by the address in
 * lower case, as JavaScript has it, so that two spellings that lead to one account must share that count.
 */
export const isSameSignIn = (one: string, other: string): boolean => one.toLowerCase() === other.toLowerCase();

/**
 * Reports whether two addresses are the same mailbox as far as anybody can tell: they differ at most in the case of ASCII
 * letters. U+212A (Kelvin) in lower case is k, but a mailbox with it belongs to somebody else.
 */
export const isSameMailbox = (one: string, other: string): boolean => asciiLowerCase(one) === asciiLowerCase(other);

const asciiLowerCase = (text: string): string => text.replace(/[A-Z]+/g, (letters) => letters.toLowerCase());
