// Passwords: argon2id with OWASP's parameters (19 MiB, two passes), hashed outside the main thread with bounded
// concurrency.
import { hash, verify } from '@node-rs/argon2';
import { FairSlots, NoSlotError } from '../../platform/concurrency/fair-slots.ts';
import { unavailable } from '../../platform/errors.ts';

// The library's default algorithm is argon2id; its constant is an ambient const enum, which type stripping cannot read.
const parameters = { memoryCost: 19_456, timeCost: 2, parallelism: 1 };

/** How a hash with these parameters begins. */
const { memoryCost, timeCost, parallelism } = parameters;
const currentForm = `$argon2id$v=19$m=${memoryCost},t=${timeCost},p=${parallelism}$`;

/** Reports whether a hash was made with other parameters than those of today. */
export const isOutdated = (passwordHash: string): boolean => !passwordHash.startsWith(currentForm);

/** Half of Node's four worker threads, which files and name look-ups need too, and 38 MiB. */
const slots = new FairSlots({ total: 2, perOwner: 2, waiting: 128, waitingPerOwner: 16 });

/** Verified when there is no account, so that a sign-in takes as long whether or not the account exists. */
let dummyHash: Promise<string> | undefined;

/**
 * Hashes a password; the result contains salt and parameters. Takes about 15 ms of a worker thread. `owner` is the
 * tenant or address that the queue's limit applies to. Throws UNAVAILABLE when too many wait.
 */
export function hashPassword(password: string, owner = ''): Promise<string> {
  return inTurn(owner, () => hash(password, parameters));
}

/**
 * Returns the indexes of the hashes that match the password. Without any hash it does the work of one. One place in the
 * queue is taken for all of them. Throws UNAVAILABLE when too many wait.
 */
export async function verifyPassword(hashes: readonly string[], password: string, owner: string): Promise<number[]> {
  const dummy = await (dummyHash ??= hash('no account has this password', parameters));
  return inTurn(owner, async () => {
    const matching: number[] = [];
    if (hashes.length === 0) await verify(dummy, password);
    for (const [index, one] of hashes.entries()) if (await verify(one, password)) matching.push(index);
    return matching;
  });
}

/** Runs work in the owner's turn. Throws UNAVAILABLE when too many wait. */
export async function inTurn<T>(owner: string, work: () => Promise<T>, places = slots): Promise<T> {
  const release = await places.acquire(owner).catch((error: unknown) => {
    throw error instanceof NoSlotError ? unavailable('too many passwords are being checked: try again', error) : error;
  });
  try {
    return await work();
  } finally {
    release();
  }
}
