// Text that is cut where it is too long for what holds it.

/** The first `most` characters (UTF-16), and an ellipsis when there are more; half a surrogate pair is replaced. */
export const shorten = (text: string, most: number): string =>
  text.length > most ? `${text.slice(0, most).toWellFormed()}…` : text;
