// Records audit events: durably before a call is acknowledged, or soon after for what was refused. Events of many calls are
// written by one statement, and wait in audit_pending until they are chained (audit-chain.ts).
import type { Counter } from 'prom-client';
import { type Clock, sleep } from '../clock.ts';
import type { Database, Transaction } from '../database/database.ts';
import { KelletError, unavailable } from '../errors.ts';
import { newId } from '../ids.ts';
import type { Logger } from '../observability/logger.ts';
import { counter, type Registry } from '../observability/metrics.ts';
import { outsideOfCalls } from '../observability/tracing.ts';
import { TokenBuckets } from '../token-bucket.ts';
import { type AuditFacts, type AuditRecord, auditRecord } from './audit-event.ts';
import { insertPending, insertPendingAlone } from './audit-store.ts';

/** Events written by one statement. */
const maximumWritten = 500;

/** Events that may wait to be written; beyond it calls that need one are refused before they begin. */
const maximumWaiting = 10_000;

/** How long a call waits for its event to become durable. */
const patienceMilliseconds = 10_000;

/** Refused attempts recorded for one log in a minute by one process; further ones are counted only. */
const refusedPerMinute = 1000;

/** The same for attempts that a client may repeat all the time, so that they leave room for the others. */
const repeatablePerMinute = 100;

/**
 * Attempts of either kind of one actor that are recorded, at once and in a day: they are kept for more than a year, and whoever may do
 * nothing could otherwise fill the disk. Strangers count together for each action.
 */
const ofActor = { burst: 1000, perSecond: 5000 / 86_400 };

/** Attempts of the second kind that are remembered in a minute, so that their repetitions are not recorded. */
const maximumRepeated = 10_000;

/** Characters of the resource's id, which the client chooses, by which such attempts are told apart. */
const comparedIdLength = 64;

/** How long `close` tries to write what waits. */
const closingMilliseconds = 5000;

interface Waiting {
  readonly record: AuditRecord;
  readonly since: number;
  /** Settles the call; absent for events that are not awaited. */
  settle: ((error?: KelletError) => void) | undefined;
}

/** What the trail works with. */
export interface AuditTrailParts {
  readonly database: Database;
  readonly clock: Clock;
  readonly logger: Logger;
  readonly metrics: Registry;
}

/** Records audit events. One for each process. */
export class AuditTrail {
  private readonly parts: AuditTrailParts;
  private readonly dropped: Counter<never>;
  private waiting: Waiting[] = [];
  private writing: Promise<void> | undefined;
  private readonly closing = new AbortController();
  private minute = 0;
  /** Refused attempts of the current minute by log, without those of {@link noteOnce}. */
  private readonly refused = new Map<string, number>();
  /** Those of {@link noteOnce} by log, without repetitions. */
  private readonly repeatable = new Map<string, number>();
  /** What tells them apart. */
  private readonly repeated = new Set<string>();
  private readonly allowance: TokenBuckets;

  constructor(parts: AuditTrailParts) {
    this.parts = parts;
    this.allowance = new TokenBuckets(parts.clock, ofActor);
    this.dropped = counter(
      parts.metrics,
      'kellet_audit_dropped_total',
      'Refused attempts that were not recorded, because there were too many.',
    );
  }

  /** Throws UNAVAILABLE if no event could be recorded now: then the call must not begin. */
  mustHaveRoom(): void {
    if (this.waiting.length >= maximumWaiting) throw unavailable('the audit log cannot be written: try again');
  }

  /**
   * Records an event, and resolves once it is durable. Throws DEADLINE_EXCEEDED if that takes too long: it is still
   * written as soon as possible, unless the process ends before.
   */
  record(facts: AuditFacts): Promise<void> {
    return new Promise((resolve, reject) => this.add(facts, (error) => (error ? reject(error) : resolve())));
  }

  /** Records a failed or denied attempt soon, at most {@link refusedPerMinute} of them. */
  note(facts: AuditFacts): void {
    this.beginMinute();
    this.noteWithin(this.refused, refusedPerMinute, facts, 'note');
  }

  /**
   * Records a refused attempt that a client may repeat all the time, such as a read: once a minute for an actor, an action, what
   * it acts on and the result, at most {@link repeatablePerMinute} of them.
   */
  noteOnce(facts: AuditFacts): void {
    this.beginMinute();
    const { tenantId, actor, action, resource, result } = facts;
    const key = JSON.stringify([
      tenantId,
      actor.kind,
      actor.id,
      action,
      resource.id.slice(0, comparedIdLength),
      result,
    ]);
    if (this.repeated.has(key)) return;
    if (this.repeated.size < maximumRepeated) this.repeated.add(key);
    this.noteWithin(this.repeatable, repeatablePerMinute, facts, 'once');
  }

  /** Records an attempt unless its log has had too many this minute, or its actor too many lately. */
  private noteWithin(counts: Map<string, number>, most: number, facts: AuditFacts, kind: 'note' | 'once'): void {
    const key = [kind, facts.tenantId, facts.actor.kind, facts.actor.id || facts.action].join('\n');
    const count = counts.get(facts.tenantId) ?? 0;
    if (count >= most || this.waiting.length >= maximumWaiting || this.allowance.take(key) > 0) {
      this.dropped.inc();
      return;
    }
    // Only what is recorded: an actor whose attempts are not must leave room for those of others.
    counts.set(facts.tenantId, count + 1);
    this.add(facts, undefined);
  }

  private beginMinute(): void {
    const minute = Math.floor(this.parts.clock.now() / 60_000);
    if (minute === this.minute) return;
    this.minute = minute;
    this.refused.clear();
    this.repeatable.clear();
    this.repeated.clear();
  }

  /** Records an event of the transaction's tenant in that transaction. */
  within(tx: Transaction, facts: AuditFacts): Promise<void> {
    return insertPending(tx, [this.recordOf(facts)]);
  }

  /** Writes what is waiting. Gives up after a few seconds if the database is unavailable. */
  async close(): Promise<void> {
    const late = setTimeout(() => this.closing.abort(), closingMilliseconds);
    while (this.writing && !this.closing.signal.aborted) await this.writing;
    clearTimeout(late);
  }

  private recordOf(facts: AuditFacts): AuditRecord {
    return auditRecord(facts, newId(), this.parts.clock.now());
  }

  private add(facts: AuditFacts, settle: Waiting['settle']): void {
    this.waiting.push({ record: this.recordOf(facts), since: performance.now(), settle });
    this.writing ??= outsideOfCalls(() => this.write());
  }

  /** Writes until nothing waits. */
  private async write(): Promise<void> {
    for (let delay = 0; this.waiting.length > 0 && !this.closing.signal.aborted;) {
      // Calls of the same turn share a statement.
      await (delay === 0 ? Promise.resolve() : sleep(delay, this.closing.signal));
      const batch = this.waiting.slice(0, maximumWritten);
      try {
        await insertPendingAlone(
          this.parts.database,
          batch.map(({ record }) => record),
        );
      } catch (error) {
        if (delay === 0) this.parts.logger.error({ err: error }, 'audit events cannot be written, trying again');
        delay = Math.min(delay === 0 ? 100 : delay * 2, 2000);
        this.rejectOverdue();
        continue;
      }
      delay = 0;
      this.waiting.splice(0, batch.length);
      for (const { settle } of batch) settle?.();
    }
    // In the same turn as the last look at what waits: what is added from now on is written by another run.
    this.writing = undefined;
  }

  /** Rejects calls that have waited too long. Their events are still written. */
  private rejectOverdue(): void {
    const before = performance.now() - patienceMilliseconds;
    for (const one of this.waiting) {
      if (one.since > before) break;
      one.settle?.(new KelletError('DEADLINE_EXCEEDED', 'the outcome is unknown: the audit log cannot be written'));
      one.settle = undefined;
    }
  }
}
