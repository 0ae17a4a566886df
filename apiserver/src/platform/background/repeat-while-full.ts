// Work in small transactions, repeated until nothing is left.

/** Repeats a step while it did as many items as it may do at once, `limit`, and the signal, if any, has not aborted. */
export async function repeatWhileFull(
  limit: number,
  signal: AbortSignal | undefined,
  step: (limit: number) => Promise<number>,
): Promise<void> {
  while (!signal?.aborted && (await step(limit)) === limit);
}
