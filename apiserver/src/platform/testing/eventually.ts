// For tests: waits for effects that have no guaranteed time.

/**
 * Waits until the condition holds; fails after `milliseconds`. For effects of notifications, which have no guaranteed
 * time: by default long enough for a busy machine.
 */
export async function eventually(condition: () => Promise<boolean> | boolean, milliseconds = 30_000): Promise<void> {
  const deadline = Date.now() + milliseconds;
  while (!(await condition())) {
    if (Date.now() > deadline) throw new Error('the condition did not become true in time');
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}
