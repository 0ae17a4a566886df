// Errors of evidence: malformed, or well-formed but false.

/** Malformed bytes or text. The message names the field and the problem. */
export class MalformedError extends Error {
  override readonly name = 'MalformedError';
}

/** Well-formed evidence that does not hold: a hash, index, link or proof of work that does not match. */
export class RefutedError extends Error {
  override readonly name = 'RefutedError';
}

/** Returns the message of any thrown value. */
export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
