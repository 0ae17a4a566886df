// The two ways in which evidence can fail: it is not what its format says, or it says something untrue.

/** Bytes or text that are not what their format asks for. The message names the field and what is wrong with it. */
export class MalformedError extends Error {
  override readonly name = 'MalformedError';
}

/** Well-formed evidence that does not hold: a hash, an index, a link or a proof of work that disagrees. */
export class RefutedError extends Error {
  override readonly name = 'RefutedError';
}

/** The message of whatever was thrown. */
export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
