// The audit log and the outbox of a populated installation, as the code of apiserver writes them: events form chains, and what is to
// be published are CloudEvents.
import type pg from 'pg';
import {
  type AuditRecord,
  chainEvents,
  type ChainHead,
  emptyHead,
} from '../../../apiserver/src/platform/audit/audit-event.ts';
import { cloudEvent } from '../../../apiserver/src/platform/events/cloud-event.ts';
import { statusSubject } from '../../../apiserver/src/platform/events/subjects.ts';
import { newId } from '../../../apiserver/src/platform/ids.ts';
import { auditHeadPoint } from '../../../apiserver/src/telemetry/points/audit-head-point.ts';
import { copyRows, type Value } from './copy.ts';
import type { Sizes } from './sizes.ts';

const rowsAtOnce = 5000;
const yearMilliseconds = 365 * 86_400_000;
/** On so many days the users of a tenant change something. For each there is a cold file with the heads of the log. */
const daysOfTenant = 50;

const columns = {
  events: [
    ...['tenant_id', 'sequence', 'event_id', 'time', 'actor_kind', 'actor_id', 'actor_name', 'action', 'resource_kind'],
    ...['resource_id', 'result', 'address', 'user_agent', 'request_id', 'previous_hash', 'hash'],
  ],
  heads: ['tenant_id', 'sequence', 'hash', 'anchored_sequence', 'anchored_at'],
  anchors: ['tenant_id', 'sequence', 'hash', 'data_hash', 'time'],
  outbox: ['tenant_id', 'event_id', 'subject', 'payload', 'not_before'],
};

const bytes = (hex: string): Buffer => Buffer.from(hex, 'hex');
const text = (milliseconds: number): string => new Date(milliseconds).toISOString();

/** Fills the audit logs of all tenants, each a chain over the whole year. Some heads were anchored. */
export async function fillAuditLog(client: pg.ClientBase, { tenants, auditEvents, others }: Sizes): Promise<void> {
  const start = Date.now() - yearMilliseconds;
  const heads = new Map<string, ChainHead>();
  const anchorEvery = Math.max(1, Math.round(auditEvents / others));
  const eventsOfDay = Math.max(1, Math.round(auditEvents / tenants / daysOfTenant));
  const events: Value[][] = [];
  const anchors: Value[][] = [];
  const store = async () => {
    await copyRows(client, 'audit_events', columns.events, events.splice(0));
    await copyRows(client, 'audit_anchors', columns.anchors, anchors.splice(0));
  };
  for (let n = 0; n < auditEvents; n += 1) {
    const [tenant, nth] = [n % tenants, Math.floor(n / tenants)];
    const tenantId = `tenant-${1 + tenant}`;
    const day = (Math.floor(nth / eventsOfDay) + tenant / tenants) / Math.ceil(auditEvents / tenants / eventsOfDay);
    const time = start + Math.round(day * (yearMilliseconds - 86_400_000)) + (nth % eventsOfDay) * 60_000;
    const [event] = chainEvents(heads.get(tenantId) ?? emptyHead, [recordOf(tenantId, n, time)]);
    const { sequence, hash, previousHash, actor, resource } = event!;
    heads.set(tenantId, { sequence, hash });
    events.push([
      ...[tenantId, sequence, event!.eventId, text(time), actor.kind, actor.id, actor.name, event!.action],
      ...[resource.kind, resource.id, event!.result, event!.address, event!.userAgent, event!.requestId],
      ...[bytes(previousHash), bytes(hash)],
    ]);
    if (sequence % anchorEvery === 0) anchors.push(anchorOf(tenantId, { sequence, hash }, time));
    if (events.length >= rowsAtOnce) await store();
  }
  await store();
  const rows = [...heads].map(([tenantId, { sequence, hash }]): Value[] => {
    return [tenantId, sequence, bytes(hash), sequence - (sequence % anchorEvery), text(Date.now())];
  });
  await copyRows(client, 'audit_heads', columns.heads, rows);
}

function recordOf(tenantId: string, n: number, time: number): AuditRecord {
  return {
    ...{ eventId: newId(), time, tenantId, actor: { kind: 'user', id: newId(), name: `User ${n % 1000}` } },
    ...{ action: 'DeviceRegistry/UpdateDevice', resource: { kind: 'device', id: newId() }, result: 'OK' },
    ...{ address: '192.0.2.1', userAgent: 'browser', requestId: `request-${n}` },
  };
}

/** Returns the row of an anchored head. */
function anchorOf(tenantId: string, { sequence, hash }: ChainHead, time: number): Value[] {
  const { dataHash } = auditHeadPoint({ tenantId, sequence, hash }, Math.floor(time / 1000));
  return [tenantId, sequence, bytes(hash), Buffer.from(dataHash, 'latin1'), text(time)];
}

/** Fills the outbox with events that wait for the broker, as after a long outage of it. An apiserver publishes them as soon as it starts. */
export async function fillOutbox(client: pg.ClientBase, { tenants, outboxEvents }: Sizes): Promise<void> {
  const now = Date.now();
  let rows: Value[][] = [];
  for (let n = 0; n < outboxEvents; n += 1) {
    const tenantId = `tenant-${1 + (n % tenants)}`;
    const [id, deviceId] = [newId(), newId()];
    const type = statusSubject(tenantId, deviceId);
    const envelope = {
      ...cloudEvent({ id, type, subject: deviceId, tenantId, at: now }),
      data: { device_id: deviceId, status: 'offline', last_seen: new Date(now).toISOString() },
    };
    rows.push([tenantId, id, type, JSON.stringify(envelope), text(now)]);
    if (rows.length < rowsAtOnce && n + 1 < outboxEvents) continue;
    await copyRows(client, 'outbox', columns.outbox, rows);
    rows = [];
  }
}
