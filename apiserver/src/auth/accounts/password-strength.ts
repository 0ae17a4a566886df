// Estimates how easy a password is to guess, in a thread of its own: the estimate can take a quarter of a second. The thread
// takes some 30 MiB.
import { ThreadPool } from '../../platform/concurrency/thread-pool.ts';
import { unavailable } from '../../platform/errors.ts';

/** Of how many characters the strength is estimated; further ones only make a password stronger. */
const maximumLength = 64;

/** How long an estimate may take. */
const patienceMilliseconds = 10_000;

/** What the thread is asked. `words` are known about the user. */
export interface StrengthQuestion {
  readonly password: string;
  readonly words: readonly string[];
}

/** The thread's file: of TypeScript in the repository, of JavaScript in packages and images. */
const threadFile = new URL(import.meta.url.replace(/(\.[jt]s)$/, '-thread$1'));

const threads = new ThreadPool<StrengthQuestion, number>(threadFile, patienceMilliseconds);

/**
 * Returns how hard a password is to guess for somebody who knows the words: 0 (among the first thousand guesses) to 4 (after
 * more than ten thousand million). The caller asks about one password at a time. Throws UNAVAILABLE if it takes too long.
 */
export async function passwordStrength(password: string, words: readonly string[]): Promise<number> {
  try {
    return await threads.ask({ password: password.slice(0, maximumLength), words });
  } catch (error) {
    throw unavailable('the strength of the password cannot be estimated now: try again', error);
  }
}
