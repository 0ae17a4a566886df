// Evaluates the rules of a tenant for a batch of points, given what is stored about their devices. No I/O.
import type { JsonObject } from '@bufbuild/protobuf';
import type { AlarmChange, AlarmRow, OpenAlarm } from '../../device-registry/alarms/alarm-store.ts';
import type { DeviceFacts } from '../../policies/inheritance.ts';
import { formatNanoseconds } from '../../telemetry/points/timestamp.ts';
import { decide, initialState, type RuleState } from './alarm-decision.ts';
import { bind, type RulePoint, type StoredPayload, storedPoint } from './bindings.ts';
import type { CompiledRule } from './compiled-rules.ts';
import type { LastPoint, RuleReport, StateRow, WaitingPoint } from './state-store.ts';
import type { Turns } from './turns.ts';

/** The input of a batch's evaluation. */
export interface BatchInput {
  readonly points: readonly WaitingPoint[];
  readonly rules: readonly CompiledRule[];
  readonly devices: ReadonlyMap<string, DeviceFacts>;
  /** `group/device` for the groups that rules name. */
  readonly memberships: ReadonlySet<string>;
  readonly lastPoints: readonly LastPoint[];
  readonly states: readonly StateRow[];
  /** Open alarms of rules. */
  readonly alarms: readonly OpenAlarm[];
  /** Rules whose last evaluation failed. */
  readonly failing: ReadonlySet<string>;
  /** Milliseconds since 1970. */
  readonly now: number;
  readonly newId: () => string;
}

/** Actions to be taken for a match. */
export interface Firing {
  readonly rule: CompiledRule;
  /** The alarm as of the match; without its details if it was open before. */
  readonly alarm: AlarmRow;
}

/** The results of a batch's evaluation. */
export interface BatchOutput {
  readonly lastPoints: LastPoint[];
  readonly states: StateRow[];
  /** New alarms in their final state. */
  readonly raised: AlarmRow[];
  readonly changed: AlarmChange[];
  /** The bytes of the alarms that are raised and cleared, about. */
  alarmBytes: number;
  readonly firings: Firing[];
  /** The bytes of their actions, about. */
  actionBytes: number;
  /** Rules with matches whose actions are left out because there are too many. */
  readonly muted: Set<string>;
  readonly reports: RuleReport[];
  readonly counts: { matched: number; unmatched: number; failed: number };
  /** Points for which there was no time, in an order in which they can be evaluated later. */
  readonly left: WaitingPoint[];
}

/** An alarm while a batch is evaluated. */
interface WorkingAlarm {
  /** Without details if it was open before. */
  row: AlarmRow;
  readonly isNew: boolean;
  readonly detailsBytes: number;
  added: number;
  hasFired: boolean;
}

/** Matches of a batch that lead to actions, and the bytes of these actions: bounds the memory that they take. */
const maxFirings = 2000;
const maxActionBytes = 32 * 1024 * 1024;

/** Bytes of alarms that a batch raises and clears: each is written and announced. A single point may exceed it. */
const maxAlarmBytes = 2 * 1024 * 1024;

/**
 * Steps of the rules that apply to a device, for a point: those of 1,000 rules that each iterate over all values. A point is evaluated
 * by all rules in one transaction, so that the rules beyond are not evaluated.
 */
const maxPointCost = 5_000_000;
const tooDear = {
  error: `the rules that come before this one for a device cost ${maxPointCost} steps, the most for a point`,
};

/** The bytes of an event besides the details of the alarm, at most. */
const eventBytes = 1024;
const maxDetailsBytes = 8192;
const nanosecondsPerMillisecond = 1_000_000n;

/** Evaluates a batch, device by device in order of time, as far as there is time and room for it; at least one point. */
export async function evaluateBatch(input: BatchInput, turns: Pick<Turns, 'next' | 'isOver'>): Promise<BatchOutput> {
  const output: BatchOutput = {
    ...{ lastPoints: [], states: [], raised: [], changed: [], firings: [], reports: [], left: [] },
    alarmBytes: 0,
    actionBytes: 0,
    muted: new Set(),
    counts: { matched: 0, unmatched: 0, failed: 0 },
  };
  const isOver = (): boolean => output.alarmBytes >= maxAlarmBytes || turns.isOver();
  const reports = new Map<string, { matches: number; error: string }>();
  const lastPoints = new Map(input.lastPoints.map((point) => [point.device_id, point]));
  const states = Map.groupBy(input.states, ({ device_id }) => device_id);
  const alarms = Map.groupBy(input.alarms, ({ device_id }) => device_id);
  for (const [deviceId, points] of Map.groupBy(input.points, (point) => point.deviceId)) {
    const device = input.devices.get(deviceId);
    if (!device) continue;
    const rules = input.rules.filter(({ row }) => appliesTo(row, device, input.memberships));
    if (rules.length === 0) continue;
    // Stable: points of equal time stay in the order of their commits.
    const inOrder = points.toSorted((one, other) => (one.time < other.time ? -1 : one.time > other.time ? 1 : 0));
    if (isOver()) {
      output.left.push(...inOrder);
      continue;
    }
    const ofDevice = new DeviceEvaluation(device, rules, input, output, reports, {
      last: lastPoints.get(deviceId),
      states: states.get(deviceId) ?? [],
      alarms: alarms.get(deviceId) ?? [],
    });
    for (const [index, point] of inOrder.entries()) {
      if (index > 0 && isOver()) {
        output.left.push(...inOrder.slice(index));
        break;
      }
      await ofDevice.take(point, turns);
    }
    ofDevice.finish();
  }
  for (const [ruleId, report] of reports) {
    if (report.matches > 0 || report.error !== '' || input.failing.has(ruleId))
      output.reports.push({ ruleId, ...report });
  }
  return output;
}

/** Reports whether a rule applies to a device. */
const appliesTo = (
  rule: Pick<CompiledRule['row'], 'profile_id' | 'device_group_id'>,
  device: Pick<DeviceFacts, 'deviceId' | 'profileId'>,
  groups: ReadonlySet<string>,
): boolean =>
  (rule.profile_id === null || rule.profile_id === device.profileId) &&
  (rule.device_group_id === null || groups.has(`${rule.device_group_id}/${device.deviceId}`));

/** The evaluation of one device's points. */
class DeviceEvaluation {
  private readonly device: DeviceFacts;
  private readonly rules: readonly CompiledRule[];
  /** Those for which there are no steps left. */
  private readonly beyond: ReadonlySet<CompiledRule>;
  private readonly input: BatchInput;
  private readonly output: BatchOutput;
  private readonly reports: Map<string, { matches: number; error: string }>;
  private last: LastPoint | undefined;
  private readonly lastBefore: LastPoint | undefined;
  private previous: RulePoint | undefined;
  private readonly states = new Map<string, RuleState>();
  private readonly changedStates = new Set<string>();
  private readonly open = new Map<string, WorkingAlarm>();

  constructor(
    device: DeviceFacts,
    rules: readonly CompiledRule[],
    input: BatchInput,
    output: BatchOutput,
    reports: Map<string, { matches: number; error: string }>,
    known: { last: LastPoint | undefined; states: readonly StateRow[]; alarms: readonly OpenAlarm[] },
  ) {
    this.device = device;
    this.rules = rules;
    let cost = 0;
    this.beyond = new Set(rules.filter((rule) => (cost += costOf(rule)) > maxPointCost));
    this.input = input;
    this.output = output;
    this.reports = reports;
    this.last = this.lastBefore = known.last;
    this.previous = known.last && storedPoint(known.last.time, JSON.parse(known.last.payload) as StoredPayload);
    const versions = new Map(rules.map(({ row }) => [row.rule_id, row.version]));
    for (const row of known.states) {
      const isCurrent = versions.get(row.rule_id) === row.version;
      this.states.set(row.rule_id, {
        holdsSince: isCurrent ? (row.holds_since ?? undefined) : undefined,
        actedAt: row.acted_at?.getTime(),
      });
    }
    for (const { details_bytes: detailsBytes, ...row } of known.alarms) {
      const alarm = { ...row, details: null };
      this.open.set(row.rule_id!, { row: alarm, isNew: false, detailsBytes, added: 0, hasFired: false });
    }
  }

  /** Evaluates a point, unless it is older than the last one or the same again. */
  async take({ time, payload }: WaitingPoint, turns: Pick<Turns, 'next'>): Promise<void> {
    const text = JSON.stringify(payload);
    if (this.last && (time < this.last.time || (time === this.last.time && text === this.last.payload))) return;
    const point = storedPoint(time, payload);
    const bindings = bind(this.device, point, this.previous);
    for (const rule of this.rules) {
      this.evaluate(rule, time, payload, bindings);
      const pause = turns.next();
      if (pause) await pause;
    }
    this.last = { device_id: this.device.deviceId, time, payload: text };
    this.previous = point;
  }

  private evaluate(rule: CompiledRule, time: bigint, payload: StoredPayload, bindings: ReturnType<typeof bind>): void {
    const { rule_id: ruleId } = rule.row;
    const alarm = this.open.get(ruleId);
    const isBeyond = this.beyond.has(rule);
    const matches = isBeyond ? tooDear : rule.matches(bindings);
    const clears = alarm && !isBeyond ? rule.clears?.(bindings) : undefined;
    const failure = [matches, clears].find((outcome) => typeof outcome === 'object');
    const report = this.reports.get(ruleId) ?? { matches: 0, error: '' };
    report.error = failure?.error ?? '';
    if (matches === true) report.matches += 1;
    this.reports.set(ruleId, report);
    this.output.counts[typeof matches === 'object' ? 'failed' : matches ? 'matched' : 'unmatched'] += 1;

    const state = this.states.get(ruleId) ?? initialState;
    const verdict = { matches: decided(matches), clears: decided(clears) };
    const decision = decide(rule.timing, state, alarm !== undefined, verdict, time, this.input.now);
    if (decision.state.holdsSince !== state.holdsSince || decision.state.actedAt !== state.actedAt) {
      this.states.set(ruleId, decision.state);
      this.changedStates.add(ruleId);
    }
    const at = new Date(Number(time / nanosecondsPerMillisecond));
    if (decision.alarm === 'raise') this.open.set(ruleId, this.raise(rule, at, time, payload));
    else if (decision.alarm === 'count') {
      alarm!.row = { ...alarm!.row, count: alarm!.row.count + 1, last_at: at };
      alarm!.added += 1;
    } else if (decision.alarm === 'clear') {
      this.open.delete(ruleId);
      this.output.alarmBytes += eventBytes + alarm!.detailsBytes;
      this.settle({ ...alarm!, row: { ...alarm!.row, status: 'cleared', cleared_at: new Date(this.input.now) } });
    }
    if (decision.acts && rule.row.action_count > 0) this.fire(rule, this.open.get(ruleId)!);
  }

  private fire(rule: CompiledRule, alarm: WorkingAlarm): void {
    const { rule_id: ruleId, action_count: count, action_bytes: bytes } = rule.row;
    const actionBytes = bytes + count * (alarm.detailsBytes + eventBytes);
    if (this.output.firings.length === maxFirings || this.output.actionBytes + actionBytes > maxActionBytes) {
      this.output.muted.add(ruleId);
      return;
    }
    this.output.firings.push({ rule, alarm: alarm.row });
    this.output.actionBytes += actionBytes;
    alarm.hasFired = true;
  }

  private raise({ row }: CompiledRule, at: Date, time: bigint, payload: StoredPayload): WorkingAlarm {
    const details: JsonObject = { rule: row.name, timestamp: formatNanoseconds(time) };
    const withValues = { ...details, ...payload };
    const bytes = JSON.stringify(withValues).length;
    const isSmall = bytes <= maxDetailsBytes;
    const detailsBytes = isSmall ? bytes : JSON.stringify(details).length;
    this.output.alarmBytes += eventBytes + detailsBytes;
    return {
      ...{ isNew: true, detailsBytes, added: 0, hasFired: false },
      row: {
        alarm_id: this.input.newId(),
        device_id: this.device.deviceId,
        rule_id: row.rule_id,
        type: row.alarm_type,
        severity: row.severity ?? 'indeterminate',
        status: 'active',
        count: 1,
        first_at: at,
        last_at: at,
        details: isSmall ? withValues : details,
        acknowledged_at: null,
        cleared_at: null,
      },
    };
  }

  /** Records the final state of an alarm. */
  private settle({ row, isNew, added, hasFired }: WorkingAlarm): void {
    if (isNew) this.output.raised.push(row);
    else if (added > 0 || row.cleared_at !== null) {
      const clearedAt = row.cleared_at ?? undefined;
      const isShown = hasFired || clearedAt !== undefined;
      this.output.changed.push({ alarmId: row.alarm_id, added, lastAt: row.last_at, clearedAt, isShown });
    }
  }

  finish(): void {
    for (const alarm of this.open.values()) this.settle(alarm);
    if (this.last && this.last !== this.lastBefore) this.output.lastPoints.push(this.last);
    for (const { row } of this.rules) {
      if (!this.changedStates.has(row.rule_id)) continue;
      const { holdsSince, actedAt } = this.states.get(row.rule_id)!;
      this.output.states.push({
        ...{ device_id: this.device.deviceId, rule_id: row.rule_id, version: row.version },
        holds_since: holdsSince ?? null,
        acted_at: actedAt === undefined ? null : new Date(actedAt),
      });
    }
  }
}

const costOf = ({ matches, clears }: CompiledRule): number => matches.cost + (clears?.cost ?? 0);

const decided = (outcome: boolean | object | undefined): boolean | undefined =>
  typeof outcome === 'boolean' ? outcome : undefined;
