// Appends recorded events to the chain of their tenant, many at a time and in one process at a time, and publishes them
// as CloudEvents.
import type { Clock } from '../clock.ts';
import { auditLock, holdLock, tryLock } from '../database/advisory-locks.ts';
import type { Database, Transaction } from '../database/database.ts';
import { enqueueAll } from '../events/outbox.ts';
import { auditSubject } from '../events/subjects.ts';
import { auditEventJson, type ChainedEvent, chainEvents } from './audit-event.ts';
import { chainHeads, deletePending, insertEvents, isPending, pendingRecords } from './audit-store.ts';

/** Maximum number of events that one transaction appends. */
export const eventsAtOnce = 500;

/** Appends the events that have waited longest, and returns how many. Returns 0 while another process does. */
export function chainNext(database: Database, clock: Clock): Promise<number> {
  return database.system(async (tx) => ((await tryLock(tx, auditLock)) ? chainWithin(tx, clock) : 0));
}

/** Appends events until none of a log that was recorded before this call is waiting. */
export async function chainAllOf(database: Database, clock: Clock, tenantId: string): Promise<void> {
  let more = await database.systemRead((tx) => isPending(tx, tenantId));
  while (more) {
    const chained = await database.system(async (tx) => {
      await holdLock(tx, auditLock);
      return chainWithin(tx, clock);
    });
    more = chained === eventsAtOnce && (await database.systemRead((tx) => isPending(tx, tenantId)));
  }
}

async function chainWithin(tx: Transaction, clock: Clock): Promise<number> {
  const pending = await pendingRecords(tx, eventsAtOnce);
  if (pending.length === 0) return 0;
  // By id, because an event may have been written twice.
  const fresh = new Map(pending.filter(({ isKnown }) => !isKnown).map(({ record }) => [record.eventId, record]));
  const byTenant = Map.groupBy(fresh.values(), ({ tenantId }) => tenantId);
  const heads = await chainHeads(tx, [...byTenant.keys()]);
  const events = [...byTenant].flatMap(([tenantId, records]) => chainEvents(heads.get(tenantId)!, records));
  if (events.length > 0) await insertEvents(tx, events);
  await deletePending(
    tx,
    pending.map(({ position }) => position),
  );
  await enqueueAll(tx, events.map(toOutbox), clock);
  return pending.length;
}

/** The tenant of the platform's log in events. No tenant can have this id. */
const platformName = '_platform';

function toOutbox(event: ChainedEvent) {
  const tenantId = event.tenantId || platformName;
  // One resource, so that the events of a log are sent in order.
  return {
    tenantId,
    subject: auditSubject(tenantId, event.eventId),
    resource: 'audit-events',
    data: auditEventJson(event),
    at: event.time,
  };
}
