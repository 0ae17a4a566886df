// Passwords: argon2id with OWASP's parameters (19 MiB, two passes), hashed in threads of their own, which leave the cores to those
// that serve requests.
import { availableParallelism } from 'node:os';
import { FairSlots } from '../../platform/concurrency/fair-slots.ts';
import { madeOnce } from '../../platform/concurrency/made-once.ts';
import { ThreadPool } from '../../platform/concurrency/thread-pool.ts';
import { unavailable } from '../../platform/errors.ts';

const parameters = { memoryCost: 19_456, timeCost: 2, parallelism: 1 };

/** How a hash with these parameters begins. */
const { memoryCost, timeCost, parallelism } = parameters;
const currentForm = `$argon2id$v=19$m=${memoryCost},t=${timeCost},p=${parallelism}$`;

/** Reports whether a hash was made with other parameters than those of today. */
export const isOutdated = (passwordHash: string): boolean => !passwordHash.startsWith(currentForm);

/** What a thread is asked: the hash of a password, or which hashes match it. */
export type PasswordQuestion =
  | { readonly password: string; readonly parameters: typeof parameters }
  | { readonly password: string; readonly hashes: readonly string[] };

/** A thread's answer. */
export interface PasswordAnswer {
  readonly hash?: string;
  /** Indexes of the hashes that match. */
  readonly matching?: readonly number[];
}

/** Half of the cores, each with 19 MiB: a storm of sign-ins leaves the others to requests and to the database. */
export const passwordThreads = Math.min(4, Math.max(1, availableParallelism() >> 1));

/** Returns slots for work with passwords. */
export const passwordSlots = (limits: { total: number; waiting: number; waitingPerOwner: number }): FairSlots =>
  new FairSlots({
    ...{ ...limits, perOwner: limits.total },
    refusal: () => unavailable('too many passwords are being checked: try again'),
  });

const slots = passwordSlots({ total: passwordThreads, waiting: 512, waitingPerOwner: 16 });

/** Far longer than ten comparisons take on a busy machine. */
const patienceMilliseconds = 60_000;

/** The threads' file: of TypeScript in the repository, of JavaScript in packages and images. */
const threadFile = new URL(import.meta.url.replace(/passwords(\.[jt]s)$/, 'password-thread$1'));

const threads = new ThreadPool<PasswordQuestion, PasswordAnswer>(threadFile, patienceMilliseconds);

/** Compared when there is no account, so that a sign-in takes as long whether or not the account exists. */
const dummyHash = madeOnce(() => hashNow('no account has this password'));

/**
 * Hashes a password; the result contains salt and parameters. Takes about 15 ms of a thread. `owner` is the tenant or address
 * that the queue's limit applies to. Throws UNAVAILABLE when too many wait.
 */
export function hashPassword(password: string, owner = ''): Promise<string> {
  return slots.run(owner, () => hashNow(password));
}

async function hashNow(password: string): Promise<string> {
  return (await threads.ask({ password, parameters })).hash!;
}

/**
 * Returns the indexes of the hashes that match the password. Without any hash it does the work of one. One place in the
 * queue is taken for all of them. Throws UNAVAILABLE when too many wait.
 */
export async function verifyPassword(
  hashes: readonly string[],
  password: string,
  owner: string,
): Promise<readonly number[]> {
  return slots.run(owner, async () => {
    if (hashes.length > 0) return (await threads.ask({ password, hashes })).matching!;
    await threads.ask({ password, hashes: [await dummyHash()] });
    return [];
  });
}
