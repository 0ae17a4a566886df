// Values that are made when they are first needed.

/** Returns a function that makes a value once, for all its callers. A failure is not kept: the next caller makes it again. */
export function madeOnce<Value>(make: () => Promise<Value>): () => Promise<Value> {
  let made: Promise<Value> | undefined;
  return () =>
    (made ??= make().catch((error: unknown) => {
      made = undefined;
      throw error;
    }));
}
