// Estimates how easy a password is to guess, in a thread of its own: the estimate can take a quarter of a second. The thread
// takes some 30 MiB and is ended when no password has been set for a while.
import { once } from 'node:events';
import { Worker } from 'node:worker_threads';
import { unavailable } from '../../platform/errors.ts';

/** Of how many characters the strength is estimated; further ones only make a password stronger. */
const maximumLength = 64;

const idleMilliseconds = 30_000;

/** How long an estimate may take. */
const patienceMilliseconds = 10_000;

/** What the thread is asked. `words` are known about the user. */
export interface StrengthQuestion {
  readonly password: string;
  readonly words: readonly string[];
}

/** The thread's file: of TypeScript in the repository, of JavaScript in packages and images. */
const threadFile = import.meta.url.replace(/(\.[jt]s)$/, '-thread$1');

let thread: Worker | undefined;
let idle: NodeJS.Timeout | undefined;

/**
 * Returns how hard a password is to guess for somebody who knows the words: 0 (among the first thousand guesses) to 4 (after
 * more than ten thousand million). The caller asks about one password at a time. Throws UNAVAILABLE if it takes too long.
 */
export async function passwordStrength(password: string, words: readonly string[]): Promise<number> {
  clearTimeout(idle);
  thread ??= new Worker(new URL(threadFile));
  const asked = thread;
  try {
    const question: StrengthQuestion = { password: password.slice(0, maximumLength), words };
    asked.postMessage(question);
    const signal = AbortSignal.timeout(patienceMilliseconds);
    // Rejects with the error of a thread that has failed.
    const [strength] = (await once(asked, 'message', { signal })) as [number];
    return strength;
  } catch (error) {
    end(asked);
    throw unavailable('the strength of the password cannot be estimated now: try again', error);
  } finally {
    // A process that waits for nothing else ends.
    asked.unref();
    idle = setTimeout(() => end(asked), idleMilliseconds);
    idle.unref();
  }
}

function end(ended: Worker): void {
  if (thread === ended) thread = undefined;
  ended.on('error', () => undefined);
  void ended.terminate();
}
