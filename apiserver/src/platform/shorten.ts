// Truncates text that is too long for its container.

/**
 * Returns the first `most` characters (UTF-16), with an ellipsis if there are more; half a surrogate pair is replaced.
 */
export const shorten = (text: string, most: number): string =>
  text.length > most ? `${text.slice(0, most).toWellFormed()}…` : text;
