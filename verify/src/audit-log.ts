// Verifies an audit log: that no event was changed, removed, added or moved, and which events an anchored hash covers.
import { sha1 } from '@noble/hashes/legacy.js';
import { auditEventHash, FIRST_PREVIOUS_HASH } from './audit-hash.ts';
import { fromHex, toHex } from './bytes.ts';
import { MalformedError, messageOf, RefutedError } from './errors.ts';
import { parseJsonText } from './json-text.ts';
import { parsePayload } from './leaf-hash.ts';
import type { Statement } from './verdict.ts';

/** Keys of an anchored point that states where a log ended. */
export const AUDIT_SEQUENCE_KEY = 'kellet.audit.sequence';
export const AUDIT_HASH_KEY = 'kellet.audit.hash';

/** The namespace of Kellet's UUIDv5 ids. Must never change. */
const ID_NAMESPACE = 'c9a1c1a8-6f0b-5d9e-9d5e-4b656c6c6574';

/**
 * Returns the device_id of the points that state where a tenant's audit log ended: UUIDv5 of the tenant. No device has
 * it, because ids of devices are of another version.
 */
export function auditLogId(tenantId: string): string {
  const name = new TextEncoder().encode(`${tenantId}\0audit log`);
  const id = sha1(new Uint8Array([...fromHex(ID_NAMESPACE.replaceAll('-', '')), ...name])).subarray(0, 16);
  id[6] = (id[6]! & 0x0f) | 0x50;
  id[8] = (id[8]! & 0x3f) | 0x80;
  return toHex(id).replace(/^(.{8})(.{4})(.{4})(.{4})/, '$1-$2-$3-$4-');
}

/** The part of an event that links it to the others. */
interface Link {
  readonly sequence: number;
  readonly previousHash: string;
  readonly hash: string;
}

/** A hash that an anchored point states. */
export interface AnchoredHead {
  readonly tenantId: string;
  readonly sequence: number;
  readonly hash: string;
}

/** What the events show. */
export interface AuditVerdict {
  /** chained: everything holds. refuted: something does not hold. malformed: not events of an audit log. */
  readonly verdict: 'chained' | 'refuted' | 'malformed';
  /** Why it is not chained; absent if it is. */
  readonly reason?: string;
  readonly events: number;
  /** Sequences of the first and last event; absent if there are none. */
  readonly first?: number;
  readonly last?: number;
  /** Up to which sequence an anchored hash covers the events; absent if none does, such as that of the event before the first. */
  readonly anchored?: number;
  /** Whose log it is, as the anchored hashes say; the events do not. Absent without them. */
  readonly tenant_id?: string;
}

/** Collects the events of a log, in any order, and then verifies them. */
export class AuditLogVerifier {
  private readonly links = new Map<number, Link>();
  private problem: Pick<AuditVerdict, 'verdict' | 'reason'> | undefined;

  /** Adds a line: an event, or a page of the list of events. Lines without content are ignored. */
  add(text: string, line: number): void {
    if (text.trim() === '' || this.problem !== undefined) return;
    try {
      for (const event of eventsOf(parseJsonText(text))) this.take(linkOf(event));
    } catch (error) {
      if (!(error instanceof MalformedError || error instanceof RefutedError)) throw error;
      const verdict = error instanceof RefutedError ? 'refuted' : 'malformed';
      this.problem = { verdict, reason: `line ${line}: ${messageOf(error)}` };
    }
  }

  /** Returns the verdict on all events and on the anchored hashes that are said to cover them. */
  finish(heads: readonly AnchoredHead[] = []): AuditVerdict {
    const events = this.links.size;
    if (this.problem !== undefined) return { ...this.problem, events };
    if (events === 0) return { verdict: 'malformed', reason: 'no events', events };
    const sequences = [...this.links.keys()].sort((one, other) => one - other);
    const first = sequences[0]!;
    const last = sequences.at(-1)!;
    const span = { events, first, last };
    try {
      this.checkChain(sequences);
      const anchored = heads.map((head) => this.covered(head, first, last));
      const [tenantId, other] = new Set(heads.map((head) => head.tenantId));
      if (other !== undefined) throw new RefutedError(`anchored hashes are of the tenants ${tenantId} and ${other}`);
      const covered = Math.max(...anchored);
      return {
        ...{ verdict: 'chained', ...span },
        ...(covered >= first ? { anchored: covered } : {}),
        ...(tenantId === undefined ? {} : { tenant_id: tenantId }),
      };
    } catch (error) {
      if (!(error instanceof RefutedError)) throw error;
      return { verdict: 'refuted', reason: error.message, ...span };
    }
  }

  private take(link: Link): void {
    const known = this.links.get(link.sequence);
    // Pages that are read while events are added may overlap.
    if (known !== undefined && known.hash !== link.hash) {
      throw new RefutedError(`two different events have the sequence ${link.sequence}`);
    }
    this.links.set(link.sequence, link);
  }

  private checkChain(sequences: readonly number[]): void {
    let before: Link | undefined;
    for (const sequence of sequences) {
      const link = this.links.get(sequence)!;
      if (before !== undefined && sequence !== before.sequence + 1) {
        throw new RefutedError(`events ${before.sequence + 1} to ${sequence - 1} are missing`);
      }
      if (before !== undefined && link.previousHash !== before.hash) {
        throw new RefutedError(`event ${sequence} does not continue event ${before.sequence}`);
      }
      if (sequence === 1 && link.previousHash !== FIRST_PREVIOUS_HASH) {
        throw new RefutedError('event 1 continues another event');
      }
      before = link;
    }
  }

  /** Returns the last sequence that a head covers. */
  private covered({ sequence, hash }: AnchoredHead, first: number, last: number): number {
    if (sequence > last) throw new RefutedError(`event ${sequence} was anchored, but the events end at ${last}`);
    // The event before the first is known by its hash.
    const found = sequence === first - 1 ? this.links.get(first)!.previousHash : this.links.get(sequence)?.hash;
    if (found === undefined) throw new RefutedError(`event ${sequence} was anchored, but the events begin at ${first}`);
    if (found !== hash) throw new RefutedError(`event ${sequence} is not the one that was anchored`);
    return sequence;
  }
}

/**
 * Returns the hash that a proven point states.
 * @throws {MalformedError} if the point is not about an audit log, also if a device says that it is: then whoever has the
 *   key of a device could prove a log of their own
 */
export function anchoredHeadOf({
  tenant_id: tenantId,
  device_id: deviceId,
  payload,
}: Pick<Statement, 'tenant_id' | 'device_id' | 'payload'>): AnchoredHead {
  const { numericValues, stringValues } = parsePayload(payload);
  const sequence = numericValues.get(AUDIT_SEQUENCE_KEY);
  const hash = stringValues.get(AUDIT_HASH_KEY);
  if (deviceId !== auditLogId(tenantId) || !isSequence(sequence) || !isHash(hash))
    throw new MalformedError('the proven point is not about an audit log');
  return { tenantId, sequence, hash };
}

function eventsOf(value: unknown): Record<string, unknown>[] {
  if (!isObject(value)) throw new MalformedError('not an object');
  if (!('audit_events' in value)) return [value];
  // Else what looks like an event could be added, and not be verified.
  const other = Object.keys(value).find((name) => name !== 'audit_events' && name !== 'next_page_token');
  if (other !== undefined)
    throw new MalformedError(`a page of events must not have the field ${JSON.stringify(other)}`);
  const events: unknown = value['audit_events'];
  if (!Array.isArray(events) || !events.every(isObject))
    throw new MalformedError('audit_events is not a list of events');
  return events;
}

function linkOf(event: Record<string, unknown>): Link {
  const { sequence, previous_hash: previousHash, hash } = event;
  if (!isSequence(sequence)) throw new MalformedError('sequence is not a whole number from 1');
  for (const name of ['previous_hash', 'hash']) {
    if (!isHash(event[name])) throw new MalformedError(`${name} is not 64 hex digits`);
  }
  if (auditEventHash(event) !== hash) throw new RefutedError(`event ${sequence} was changed: its hash does not match`);
  return { sequence, previousHash: previousHash as string, hash };
}

const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === 'object' && value !== null && !Array.isArray(value);
const isSequence = (value: unknown): value is number => Number.isSafeInteger(value) && (value as number) >= 1;
const isHash = (value: unknown): value is string => typeof value === 'string' && /^[0-9a-f]{64}$/.test(value);
