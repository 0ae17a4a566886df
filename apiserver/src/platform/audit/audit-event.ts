// The form of audit events: what is recorded, how each event continues the chain, and how the API and CloudEvents show it.
import { create, type JsonObject, toJson } from '@bufbuild/protobuf';
import { timestampFromMs } from '@bufbuild/protobuf/wkt';
import { AuditEventSchema } from '@kellet/proto/es/kellet/v1/audit_pb';
import { auditEventHash, FIRST_PREVIOUS_HASH } from '@kellet/verify';
import type { Caller } from '../rpc.ts';
import { storable } from '../shorten.ts';

/** The contents of an audit event, without id and time. */
export interface AuditFacts {
  /** Empty for the platform's log. */
  readonly tenantId: string;
  readonly actor: { readonly kind: string; readonly id: string; readonly name: string };
  /** `Service/Method`, or a name such as `auth.login`. */
  readonly action: string;
  readonly resource: { readonly kind: string; readonly id: string };
  /** The code of the response; UNKNOWN for a command, which is recorded before it runs. */
  readonly result: string;
  readonly address: string;
  readonly userAgent: string;
  readonly requestId: string;
}

/** Returns the actor that a caller is. A Kubernetes account has no id of its own. */
export const actorOf = ({ kind, userId, deviceId, name }: Caller): AuditFacts['actor'] => ({
  ...{ kind, id: userId || deviceId || name, name },
});

/** Returns the event of what happens without a call, in the platform's log. */
export const systemFacts = (
  action: string,
  resource: AuditFacts['resource'],
  actor: AuditFacts['actor'] = { kind: 'system', id: '', name: '' },
): AuditFacts => ({ tenantId: '', actor, action, resource, result: 'OK', address: '', userAgent: '', requestId: '' });

/** An event before it has a place in the chain. */
export interface AuditRecord extends AuditFacts {
  readonly eventId: string;
  /** Milliseconds since 1970. */
  readonly time: number;
}

/** An event of the chain. Hashes are in hex. */
export interface ChainedEvent extends AuditRecord {
  readonly sequence: number;
  readonly previousHash: string;
  readonly hash: string;
}

/** Where a chain ends. */
export interface ChainHead {
  readonly sequence: number;
  readonly hash: string;
}

/** The head of a chain without events. */
export const emptyHead: ChainHead = { sequence: 0, hash: FIRST_PREVIOUS_HASH };

/** Longest text of a field, in characters. */
const maximumText = 256;

/** Returns a text of a client as it is recorded. */
const recorded = (text: string): string => storable(text.slice(0, maximumText));

/** Returns the record of an event, with truncated text from clients. */
export function auditRecord(facts: AuditFacts, eventId: string, time: number): AuditRecord {
  const { actor, resource } = facts;
  return {
    eventId,
    time,
    tenantId: facts.tenantId,
    actor: { kind: actor.kind, id: recorded(actor.id), name: recorded(actor.name) },
    action: facts.action,
    resource: { kind: resource.kind, id: recorded(resource.id) },
    result: facts.result,
    address: recorded(facts.address),
    userAgent: recorded(facts.userAgent),
    requestId: recorded(facts.requestId),
  };
}

/** Returns the events that continue a chain after its head. */
export function chainEvents(head: ChainHead, records: readonly AuditRecord[]): ChainedEvent[] {
  let { sequence, hash } = head;
  return records.map((record) => {
    const unhashed = { ...record, sequence: (sequence += 1), previousHash: hash };
    hash = auditEventHash(auditEventJson({ ...unhashed, hash: '' }));
    return { ...unhashed, hash };
  });
}

/** Returns an event as a message of the API. */
export const auditEventMessage = (event: ChainedEvent) => ({
  eventId: event.eventId,
  time: timestampFromMs(event.time),
  actor: event.actor,
  action: event.action,
  resource: event.resource,
  result: event.result,
  address: event.address,
  userAgent: event.userAgent,
  requestId: event.requestId,
  sequence: event.sequence,
  previousHash: event.previousHash,
  hash: event.hash,
});

/** Returns an event in the JSON that REST shows. */
export const auditEventJson = (event: ChainedEvent): JsonObject =>
  toJson(AuditEventSchema, create(AuditEventSchema, auditEventMessage(event)), jsonOptions) as JsonObject;

const jsonOptions = { useProtoFieldName: true, alwaysEmitImplicit: true };
