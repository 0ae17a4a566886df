// Evaluates rules for committed points. Each batch is one transaction that deletes the points, writes what follows from
// them and queues events and actions: a process that dies in it leaves the points to another one.
import {
  alarmJson,
  type AlarmRow,
  announceAlarms,
  changeAlarms,
  insertAlarms,
} from '../../device-registry/alarms/alarm-store.ts';
import { Loop } from '../../platform/background/loop.ts';
import type { Clock } from '../../platform/clock.ts';
import { Pauses } from '../../platform/concurrency/pauses.ts';
import { rulePointsChannel } from '../../platform/database/channels.ts';
import type { Database, Transaction } from '../../platform/database/database.ts';
import { retriedTransactions } from '../../platform/database/retry-conflicts.ts';
import { cloudEvent } from '../../platform/events/cloud-event.ts';
import { alarmSubject } from '../../platform/events/subjects.ts';
import { newId } from '../../platform/ids.ts';
import type { Logger } from '../../platform/observability/logger.ts';
import { type Counter, counter, Histogram, readGauge, type Registry } from '../../platform/observability/metrics.ts';
import type { DeviceFacts } from '../../policies/inheritance.ts';
import { enqueueActions, type NewAction, reportActionError } from '../actions/action-queue.ts';
import { purgeDeletedRule } from '../rules/rule-store.ts';
import { devicesOfBatch } from './batch-devices.ts';
import { CompiledRules } from './compiled-rules.ts';
import { type BatchOutput, evaluateBatch, type Firing } from './evaluate-batch.ts';
import {
  failingRules,
  lastPointBytes,
  memberships,
  oldestPointSeconds,
  readDevices,
  returnPoints,
  takePoints,
  tenantsWithPoints,
  writeLastPoints,
  writeReports,
  writeStates,
} from './state-store.ts';
import { Turns } from './turns.ts';

/** Dependencies of the engine. */
export interface EngineParts {
  readonly database: Database;
  readonly clock: Clock;
  readonly logger: Logger;
  readonly metrics: Registry;
  readonly devices: { lookup(tenantId: string, ids: readonly string[]): Promise<ReadonlyMap<string, DeviceFacts>> };
  /** Called when actions have been queued. */
  readonly queued: () => void;
}

/** How long after points were stored they are evaluated, so that those of several flushes are together. */
const gatherMilliseconds = 50;
/** Interval between checks for points that were not announced. */
const pollMilliseconds = 2000;
/** How long a tenant is left to another process that evaluates its points. */
const leaveMilliseconds = 200;
/** Tenants whose points are evaluated concurrently. */
const tenantsAtOnce = 4;
/** A tenant whose evaluation failed is left alone for this long, so that the others are not delayed. */
const failureMilliseconds = 5_000;
const purgeMilliseconds = 60_000;

/** Evaluates points in the background. Any number of processes share the tenants. */
export class RuleEngine {
  private readonly parts: EngineParts;
  private readonly rules = new CompiledRules();
  private readonly retryAt = new Map<string, number>();
  private readonly evaluations: Counter<'result'>;
  private readonly seconds: Histogram;
  private readonly evaluation: Loop;
  private readonly loops: readonly Loop[];
  /** Tenants whose points are being evaluated. */
  private readonly running = new Map<string, Promise<void>>();
  /** The last tenant that was looked at. */
  private after = '';

  constructor(parts: EngineParts) {
    this.parts = parts;
    const { database, logger, metrics } = parts;
    this.evaluation = new Loop(logger, 'evaluation of rules', pollMilliseconds, (signal) => this.evaluateNext(signal));
    const wake = () => this.evaluation.wakeIn(gatherMilliseconds);
    database.listen([rulePointsChannel], wake, wake);
    this.loops = [
      this.evaluation,
      new Loop(logger, 'purge of deleted rules', purgeMilliseconds, () => database.system(purgeDeletedRule)),
    ];
    this.evaluations = counter(metrics, 'kellet_rule_evaluations_total', 'Evaluations of rules by result.', ['result']);
    this.seconds = new Histogram({
      name: 'kellet_rule_batch_seconds',
      help: 'Duration of evaluating a batch of points.',
      buckets: [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10],
      registers: [metrics],
    });
    readGauge(parts, 'kellet_rule_lag_seconds', 'Age of the oldest point waiting for the evaluation of rules.', () =>
      database.systemRead(oldestPointSeconds),
    );
  }

  start(): void {
    for (const loop of this.loops) loop.start();
  }

  /** Resolves when the running batches have ended. */
  async stop(): Promise<void> {
    await Promise.all(this.loops.map((loop) => loop.stop()));
    await Promise.all(this.running.values());
  }

  /**
   * Begins to evaluate a batch of each of the next tenants with points. It waits for none of them but for room, so that a long batch
   * holds up only its own tenant; each that ends looks for more.
   */
  private async evaluateNext(signal: AbortSignal): Promise<void> {
    const found = await this.parts.database.systemRead((tx) => tenantsWithPoints(tx, this.after));
    this.after = found.length === 100 ? found.at(-1)! : '';
    const now = performance.now();
    const isDue = (tenantId: string): boolean =>
      !this.running.has(tenantId) && (this.retryAt.get(tenantId) ?? 0) <= now;
    for (const tenantId of found.filter(isDue)) {
      while (this.running.size >= tenantsAtOnce) await Promise.race(this.running.values());
      if (signal.aborted) return;
      this.running.set(tenantId, this.evaluateOnce(tenantId));
    }
    // Those behind the last one.
    if (this.after !== '') this.evaluation.wake();
  }

  private async evaluateOnce(tenantId: string): Promise<void> {
    try {
      // Another process may hold the tenant's lock: do not ask again at once.
      if (!(await this.evaluateTenant(tenantId))) this.retryAt.set(tenantId, performance.now() + leaveMilliseconds);
      else this.retryAt.delete(tenantId);
    } catch (error) {
      this.retryAt.set(tenantId, performance.now() + failureMilliseconds);
      this.parts.logger.error({ err: error, tenantId }, 'rules could not be evaluated');
    } finally {
      this.running.delete(tenantId);
      this.evaluation.wake();
    }
  }

  /** Evaluates the tenant's oldest points. Returns false if another process does. */
  async evaluateTenant(tenantId: string): Promise<boolean> {
    const { database } = this.parts;
    const end = this.seconds.startTimer();
    const output = await retriedTransactions(database)(tenantId, (tx) => this.batch(tx, tenantId));
    if (output === undefined) return false;
    end();
    for (const [result, count] of Object.entries(output.counts)) this.evaluations.inc({ result }, count);
    if (output.firings.length > 0) this.parts.queued();
    return true;
  }

  private async batch(tx: Transaction, tenantId: string): Promise<BatchOutput | undefined> {
    const taken = await takePoints(tx, tenantId);
    if (!taken) return undefined;
    const { points, places } = taken;
    const rules = await this.rules.of(tx, tenantId);
    const ids = [...new Set(points.map(({ deviceId }) => deviceId))];
    const [devices, bytes] = await Promise.all([
      this.parts.devices.lookup(tenantId, ids),
      lastPointBytes(tx, tenantId, ids),
    ]);
    const deviceIds = devicesOfBatch(ids, devices, rules, bytes);
    const ruleIds = rules.map(({ row }) => row.rule_id);
    const groupIds = [...new Set(rules.flatMap(({ row }) => row.device_group_id ?? []))];
    const [groups, known, failing] = await Promise.all([
      memberships(tx, tenantId, deviceIds, groupIds),
      readDevices(tx, tenantId, deviceIds, ruleIds),
      failingRules(tx, tenantId),
    ]);
    const chosen = new Set(deviceIds);
    const { now = [], later = [] } = Object.groupBy(points, ({ deviceId }) => (chosen.has(deviceId) ? 'now' : 'later'));
    const output = await evaluateBatch(
      {
        ...{ points: now, rules, devices, failing, newId },
        memberships: groups,
        ...known,
        now: this.parts.clock.now(),
      },
      new Turns(),
    );
    output.left.push(...later);
    await returnPoints(tx, tenantId, output.left, places);
    await this.write(tx, tenantId, output);
    return output;
  }

  private async write(tx: Transaction, tenantId: string, output: BatchOutput): Promise<void> {
    const { clock, logger } = this.parts;
    const raised = output.raised.map((row) => ({
      ...{ alarmId: row.alarm_id, deviceId: row.device_id, ruleId: row.rule_id!, type: row.type },
      ...{ severity: row.severity, count: row.count, firstAt: row.first_at, lastAt: row.last_at },
      ...{ details: row.details ?? undefined, clearedAt: row.cleared_at ?? undefined },
    }));
    await Promise.all([
      writeLastPoints(tx, tenantId, output.lastPoints),
      writeStates(tx, tenantId, output.states),
      writeReports(tx, tenantId, output.reports),
    ]);
    const changed = await changeAlarms(tx, tenantId, output.changed);
    const inserted = await insertAlarms(tx, tenantId, raised);
    // A device may have been deleted since its facts were read.
    const existing = new Map([...inserted, ...changed].map((row) => [row.alarm_id, row]));
    const news = output.raised.filter(({ alarm_id }) => existing.has(alarm_id));
    const asRaised = news.map((row): AlarmRow => ({ ...row, status: 'active', cleared_at: null }));
    await announceAlarms(tx, tenantId, 'raised', asRaised, clock);
    const cleared = [...news, ...changed].filter(({ cleared_at }) => cleared_at !== null);
    await announceAlarms(tx, tenantId, 'cleared', cleared, clock);
    const firings = output.firings.flatMap(({ rule, alarm }) => {
      const row = existing.get(alarm.alarm_id);
      return row ? [{ rule, alarm: { ...alarm, details: row.details } }] : [];
    });
    const actions: NewAction[] = [];
    const pauses = new Pauses();
    for (const firing of firings) {
      actions.push(...newActions(tenantId, firing, clock));
      await pauses.next();
    }
    const dropped = await enqueueActions(tx, tenantId, actions);
    const muted = new Set([...output.muted, ...dropped.map(({ ruleId }) => ruleId)]);
    if (muted.size === 0) return;
    logger.warn({ tenantId, ruleIds: [...muted] }, 'actions of rules were left out: too many are waiting');
    for (const ruleId of muted) await reportActionError(tx, tenantId, ruleId, 'too many actions are waiting');
  }
}

function newActions(tenantId: string, { rule, alarm }: Firing, clock: Clock): NewAction[] {
  const facts = {
    type: alarmSubject('raised', tenantId, alarm.alarm_id),
    subject: `alarms/${alarm.alarm_id}`,
    tenantId,
    at: clock.now(),
  };
  const data = alarmJson(alarm);
  return Array.from({ length: rule.row.action_count }, (_, place) => {
    const actionId = newId();
    return {
      ...{ actionId, ruleId: rule.row.rule_id, deviceId: alarm.device_id, place },
      event: JSON.stringify({ ...cloudEvent({ id: actionId, ...facts }), data }),
    };
  });
}
