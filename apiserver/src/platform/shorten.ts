// Shortens and cleans text from outside before it is stored or shown.

/**
 * Returns the first `most` characters (UTF-16), with an ellipsis if there are more; half a surrogate pair is replaced.
 */
export const shorten = (text: string, most: number): string =>
  text.length > most ? `${text.slice(0, most).toWellFormed()}…` : text;

/** Returns the beginning of a text that has at most `most` bytes in UTF-8, without a part of a character. */
export const firstBytes = (text: string, most: number): string =>
  text.slice(0, new TextEncoder().encodeInto(text, new Uint8Array(most)).read);

/** Returns a text without what PostgreSQL and canonical JSON cannot hold: NUL is removed, half a surrogate pair is replaced. */
export const storable = (text: string): string => text.replaceAll('\0', '').toWellFormed();
