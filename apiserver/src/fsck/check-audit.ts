// Checks audit logs: each event has its hash and follows the one before, none is missing between the first and the head, and
// anchored heads are those of the log and leaves of batches.
import { auditEventHash, FIRST_PREVIOUS_HASH } from '@kellet/verify';
import { auditEventJson, type ChainedEvent } from '../platform/audit/audit-event.ts';
import { type AnchoredRow, chainEnds, eventsBetween, listAnchors, listLogs } from '../platform/audit/audit-store.ts';
import type { Transaction } from '../platform/database/database.ts';
import { longestBatchSeconds } from '../policies/batch-seconds.ts';
import { isLeaf } from '../telemetry/leaves/leaf-store.ts';
import { auditHeadPoint } from '../telemetry/points/audit-head-point.ts';
import { toHex } from '../telemetry/points/leaf-hashes.ts';
import { type Check, type CheckParts, Findings, nothing, type Outcome, snapshot } from './check.ts';

const eventsAtOnce = 1000;
const logsAtOnce = 100;
/** How long after a batch was due another process has sealed it, if its own has crashed, and its leaves are in the index. */
const sealingSeconds = 300;

/** Yields a check for each run of events of each log. */
export async function* auditChecks(parts: CheckParts): AsyncGenerator<Check> {
  if (parts.tenantId !== undefined) {
    yield* logChecks(parts, parts.tenantId);
    return;
  }
  for (let after: string | null = null; ;) {
    const start: string | null = after;
    const logs: string[] = await parts.database.systemRead((tx) => listLogs(tx, start, logsAtOnce));
    for (const tenantId of logs) yield* logChecks(parts, tenantId);
    if (logs.length < logsAtOnce) return;
    after = logs.at(-1)!;
  }
}

async function* logChecks(parts: CheckParts, tenantId: string): AsyncGenerator<Check> {
  const ends = await parts.database.systemRead((tx) => chainEnds(tx, tenantId));
  if (!ends) return;
  for (let from = Math.max(1, ends.first); from <= ends.head.sequence; from += eventsAtOnce) {
    const first = from;
    yield () => checkRun(parts, tenantId, first);
  }
}

function checkRun({ database, batchSeconds }: CheckParts, tenantId: string, from: number): Promise<Outcome> {
  return snapshot(database, async (tx) => {
    const ends = await chainEnds(tx, tenantId);
    // Events are removed from the beginning after their retention; a log may be purged meanwhile.
    if (!ends || ends.first === 0) return nothing;
    const to = Math.min(from + eventsAtOnce - 1, ends.head.sequence);
    // Each run includes the event before it, so that every event is compared with its predecessor.
    const events = await eventsBetween(tx, tenantId, from - 1, to);
    const anchors = (await listAnchors(tx, tenantId, to + 1, eventsAtOnce)).filter(({ sequence }) => sequence >= from);
    const findings = new Findings();
    const add = (sequence: number, problem: string | undefined): void => {
      if (problem !== undefined)
        findings.add('audit_event', `${tenantId || '_platform'}/${sequence}`, tenantId, problem);
    };
    const bySequence = new Map(events.map((event) => [event.sequence, event]));
    for (let sequence = Math.max(from, ends.first); sequence <= to; sequence += 1) {
      add(sequence, eventProblem(bySequence.get(sequence), bySequence.get(sequence - 1), sequence));
    }
    if (to === ends.head.sequence && bySequence.get(to)?.hash !== ends.head.hash) {
      add(to, 'it is the last event, but the head of the log has another hash');
    }
    const { anchored } = ends;
    if (anchored >= from && anchored <= to && anchors.every(({ sequence }) => sequence !== anchored)) {
      add(anchored, 'it was the last to be anchored, but its anchor is missing');
    }
    for (const anchor of anchors) add(anchor.sequence, anchorProblem(anchor, bySequence.get(anchor.sequence)));
    const due = Date.now() - (longestBatchSeconds(batchSeconds) + sealingSeconds) * 1000;
    const sealed = anchors.filter(({ time }) => time.getTime() < due);
    for (const anchor of await withoutLeaf(tx, tenantId, sealed)) {
      add(anchor.sequence, 'it was anchored by a leaf that no batch has');
    }
    const checked = events.filter(({ sequence }) => sequence >= from).length;
    return { checked: { audit_events: checked, audit_anchors: anchors.length }, findings: findings.all };
  });
}

/** Returns what is wrong with an event; `before` is undefined for the first stored one. */
function eventProblem(
  event: ChainedEvent | undefined,
  before: ChainedEvent | undefined,
  sequence: number,
): string | undefined {
  if (!event) return 'it is missing';
  if (auditEventHash(auditEventJson(event)) !== event.hash) return 'its hash differs from the stored one';
  const previous = sequence === 1 ? FIRST_PREVIOUS_HASH : before?.hash;
  return previous !== undefined && event.previousHash !== previous
    ? 'it does not follow the event before it'
    : undefined;
}

function anchorProblem(anchor: AnchoredRow, event: ChainedEvent | undefined): string | undefined {
  if (event && event.hash !== anchor.hash) return 'it was anchored with another hash';
  const { dataHash } = auditHeadPoint(anchor, Math.floor(anchor.time.getTime() / 1000));
  return toHex(dataHash) === anchor.dataHash ? undefined : 'it was anchored by a leaf with another hash';
}

/** Returns the anchored heads whose leaf is in no sealed batch. */
async function withoutLeaf(
  tx: Transaction,
  tenantId: string,
  anchors: readonly AnchoredRow[],
): Promise<readonly AnchoredRow[]> {
  const without: AnchoredRow[] = [];
  for (const anchor of anchors)
    if (!(await isLeaf(tx, tenantId, Buffer.from(anchor.dataHash, 'hex')))) without.push(anchor);
  return without;
}
