// The command kellet-apiserver keys: replaces the key that signs access tokens.
import type { AuditTrail } from '../../platform/audit/audit-trail.ts';
import { systemClock } from '../../platform/clock.ts';
import type { Database } from '../../platform/database/database.ts';
import type { Logger } from '../../platform/observability/logger.ts';
import { KeyRing, publishedSeconds } from './key-ring.ts';

export const keysUsage = `usage: kellet-apiserver keys list | rotate

  list          prints the keys with which access tokens are verified, a line of JSON each: a JWK, and the state
                next (will sign), signing, or retiring (only verifies)
  rotate        adds a key, which signs access tokens ${publishedSeconds} seconds later in place of the one before; that one goes on
                verifying until its tokens have expired`;

/** Runs `kellet-apiserver keys …` and returns the exit code: 2 for bad usage. */
export async function runKeysCommand(
  args: readonly string[],
  parts: {
    readonly database: Database;
    readonly logger: Logger;
    readonly audit: Pick<AuditTrail, 'within'>;
    readonly configuredKey: string;
    readonly write: (line: string) => void;
  },
): Promise<number> {
  const { write, ...rest } = parts;
  const [verb, ...more] = args;
  if ((verb !== 'list' && verb !== 'rotate') || more.length > 0) {
    write(keysUsage);
    return 2;
  }
  if (rest.configuredKey === '') {
    write('KELLET_JWT_PRIVATE_KEY is not set');
    return 1;
  }
  const ring = new KeyRing({ ...rest, clock: systemClock, rotationDays: 0 });
  if (verb === 'list') for (const { key, state } of await ring.listed()) write(JSON.stringify({ ...key, state }));
  else write(`${await ring.rotate()} signs access tokens within ${publishedSeconds} seconds`);
  return 0;
}
