// Anchors audit logs: the end of each log with new events becomes a point, whose leaf is in a batch of the tenant like those of
// devices. A point covers all events before it, because each event contains the hash of the one before.
import { headsToAnchor, type HeadToAnchor, storeAnchors } from '../../platform/audit/audit-store.ts';
import type { Clock } from '../../platform/clock.ts';
import { auditAnchorsLock, tryLock } from '../../platform/database/advisory-locks.ts';
import type { Database } from '../../platform/database/database.ts';
import { holdOffPurges } from '../../policies/tenant-reader.ts';
import { auditHeadPoint } from '../points/audit-head-point.ts';
import type { AcceptedPoint } from '../points/validate.ts';
import type { TelemetryWriter } from '../write/group-commit.ts';
import { absentDevice } from './update-results.ts';

/** Dependencies. */
export interface AuditHeadParts {
  readonly database: Database;
  readonly clock: Clock;
  readonly writer: Pick<TelemetryWriter, 'append'>;
}

/** Maximum logs that are anchored at once. */
export const headsAtOnce = 500;

/**
 * Anchors the logs with new events that were last anchored before a time, and returns how many. Returns 0 while another
 * process does. After a crash a head may be anchored twice, which proves the same.
 */
export function anchorNextHeads({ database, clock, writer }: AuditHeadParts, before: number): Promise<number> {
  return database.system(async (tx) => {
    if (!(await tryLock(tx, auditAnchorsLock))) return 0;
    const due = await headsToAnchor(tx, new Date(before), headsAtOnce);
    const tenantIds = due.map(({ tenantId }) => tenantId);
    // A purge sees the points and anchors of a head that is anchored before it begins, and no head is anchored afterwards.
    const purged = await holdOffPurges(tx, tenantIds);
    const heads = due.filter(({ tenantId }) => !purged.has(tenantId));
    if (heads.length === 0) return 0;
    const now = clock.now();
    const points = heads.map((head) => toPoint(head, now));
    await writer.append(points);
    const dataHash = (index: number): string => Buffer.from(points[index]!.dataHash, 'latin1').toString('hex');
    const time = new Date(now);
    await storeAnchors(
      tx,
      heads.map((head, index) => ({ ...head, dataHash: dataHash(index), time })),
    );
    return heads.length;
  });
}

function toPoint(head: HeadToAnchor, now: number): AcceptedPoint {
  const seconds = Math.floor(now / 1000);
  const { deviceId, ...point } = auditHeadPoint(head, seconds);
  return {
    ...{ tenantId: head.tenantId, device: absentDevice(deviceId), ...point },
    time: { seconds, nanoseconds: (now % 1000) * 1_000_000 },
    isOwn: true,
  };
}
