// Skips a test of `make interop` if other people's programs cannot be had.

/** Returns what `get` installs. Skips the test, with a line that says so, if it cannot be had. */
export async function needs<T>(context: Mocha.Context, what: string, get: () => Promise<T>): Promise<T> {
  return get().catch((error: Error) => {
    process.stderr.write(`\n    SKIPPED: ${what} cannot be had: ${error.message.split('\n')[0]}\n\n`);
    return context.skip();
  });
}
