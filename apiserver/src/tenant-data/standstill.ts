// Makes sure that no process serves a tenant while it is exported: what a process had acknowledged after the snapshot would be lost.
import { sleep } from '../platform/clock.ts';
import type { Database } from '../platform/database/database.ts';
import { stoppedSince } from '../tenants/tenant-store.ts';
import { TransferError } from './tenant-export.ts';

/**
 * How long after a suspension or deletion other processes may still be carrying out requests that they admitted before: caches
 * of credentials are dropped within 15 seconds even by a process that misses the notification, and no statement takes longer.
 */
export const settleMilliseconds = 20_000;

/**
 * Resolves once no request is under way that began before the tenant was suspended or deleted, and returns when that was. Throws
 * TransferError if it is neither.
 */
export async function standstill(
  database: Database,
  tenantId: string,
  { settle, waiting }: { readonly settle: number; readonly waiting: (seconds: number) => void },
): Promise<string> {
  const stopped = await database.systemRead((tx) => stoppedSince(tx, tenantId));
  if (stopped === undefined) throw new TransferError(`there is no tenant ${tenantId}`);
  if (stopped === null) {
    throw new TransferError(
      `the tenant ${tenantId} is not suspended, so the file would lack what is accepted meanwhile: ` +
        `POST /api/v1/tenants/${tenantId}/suspend comes first; --serving exports it nevertheless`,
    );
  }
  const wait = settle - stopped.milliseconds;
  if (wait > 0) {
    waiting(Math.ceil(wait / 1000));
    await sleep(wait);
  }
  return stopped.since;
}

/** Throws TransferError if the tenant was served again since {@link standstill} returned. */
export async function mustStillStand(database: Database, tenantId: string, since: string): Promise<void> {
  const stopped = await database.systemRead((tx) => stoppedSince(tx, tenantId));
  if (stopped?.since !== since) {
    throw new TransferError(
      `the tenant ${tenantId} was served again during the export, so the file would lack what was accepted: suspend it and repeat`,
    );
  }
}
