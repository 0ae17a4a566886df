// A pure model of one rollout and its fleet, written from the rules alone: it keeps what happened to each device and derives every
// counter from that, where the service keeps counters. For the model test.
import { rank } from '../rollouts/decisions/cohort.ts';
import type { DeviceState } from '../rollouts/decisions/rollout-state.ts';

/** The versions of the update and of the rollback package, and one that the update would downgrade. */
export const versions = { update: '2.0.0', rollback: '1.0.0', later: '9.9.9' } as const;

type Reason = 'OperatorPause' | 'FailureThresholdExceeded' | 'StepApproval';

/** The manifest, as far as it is modelled. */
export interface ModelSpec {
  canaryPercent: number;
  failureThresholdPercent: number;
  minFailures: number;
  maxAttempts: number;
  paused: boolean;
  steps: readonly { percent: number; approval: boolean }[];
}

/** Seconds until a device that got its command counts as silent. */
export const deviceTimeoutSeconds = 600;

/** What a rollout knows about a device. */
export interface ModelMember {
  state: DeviceState;
  stage: number;
  attempts: number;
  failedIn: number;
  /** Milliseconds. */
  deadline: number | undefined;
  rollingBack: boolean;
  hasLeft: boolean;
  command: 'undelivered' | 'delivered' | 'ended';
  /** The version in its last terminal report. */
  reported: string;
  /** The update was delivered to it, or it reported on it. */
  reached: boolean;
  /** The result of the update, once the device is sent back. */
  before: { state: DeviceState; wasSent: boolean } | undefined;
  /** It was skipped after its command was delivered, or after it reported. */
  wasSent: boolean;
}

/** A device of the fleet. */
export interface ModelDevice {
  readonly id: string;
  readonly place: Buffer;
  deleted: boolean;
  profile: 'target' | 'other';
  version: string;
  override: 'fw' | 'sw' | undefined;
  member: ModelMember | undefined;
}

/** Why a verb is refused; `nothing` if it is not. */
export type Refusal = 'nothing' | 'NOT_FOUND' | 'FAILED_PRECONDITION' | 'INVALID_ARGUMENT';

const failures: readonly DeviceState[] = ['failure', 'timed_out'];
const running: readonly DeviceState[] = ['scheduled', 'sent', 'downloading'];

/** The model. Every method is one transaction of the service. */
export class RolloutModel {
  readonly devices: ModelDevice[] = [];
  readonly events: string[] = ['started'];
  readonly conditions: Reason[] = [];
  outcome: '' | 'succeeded' | 'rolled_back' | 'cancelled' = '';
  stepIndex = -1;
  approvedStepIndex = -1;
  expandedTo = 0;
  resumes = 0;
  removed = 0;
  scheduledInitially = 0;
  private isRollingBack = false;
  /** Devices that were removed while they were being sent back: the counts of the update keep them. */
  private readonly ghosts: { state: DeviceState; wasSent: boolean }[] = [];
  private eligibleAtEnd = 0;
  spec: ModelSpec;
  private readonly packageId: string;

  constructor(packageId: string, spec: ModelSpec, deviceIds: readonly string[]) {
    this.packageId = packageId;
    this.spec = spec;
    for (const id of deviceIds) this.add(id);
    if (this.phase === 'active') this.scheduledInitially = this.covered;
    this.schedule();
  }

  get phase(): 'active' | 'paused' | 'rolling_back' | 'completed' {
    if (this.outcome !== '') return 'completed';
    if (this.isRollingBack) return 'rolling_back';
    return this.spec.paused || this.conditions.length > 0 ? 'paused' : 'active';
  }

  get percent(): number {
    const step = this.stepIndex >= 0 ? this.spec.steps[this.stepIndex]!.percent : 0;
    return Math.min(100, Math.max(this.spec.canaryPercent, step, this.expandedTo));
  }

  /** The eligible devices in the package's order. */
  get cohort(): ModelDevice[] {
    return this.devices.filter((device) => this.isEligible(device)).sort((a, b) => Buffer.compare(a.place, b.place));
  }

  get eligible(): number {
    return this.outcome === '' ? this.cohort.length : this.eligibleAtEnd;
  }

  private get covered(): number {
    return Math.ceil((this.cohort.length * this.percent) / 100);
  }

  /** Devices that are in the rollout. */
  get members(): ModelMember[] {
    return this.devices.flatMap(({ member }) => (member && !member.hasLeft ? [member] : []));
  }

  /** Devices that are to go back and have not. */
  get rollbackPending(): number {
    return this.members.filter((member) => member.rollingBack && member.state !== 'rolled_back').length;
  }

  counts() {
    const counted = [...this.members.map((member) => member.before ?? member), ...this.ghosts];
    const inState = (...states: DeviceState[]) => counted.filter(({ state }) => states.includes(state)).length;
    const unsent = counted.filter(({ state, wasSent }) => state === 'scheduled' || (state === 'skipped' && !wasSent));
    return {
      eligible: this.eligible,
      scheduled: counted.length,
      sent: counted.length - unsent.length,
      succeeded: inState('successful'),
      failed: inState('failure'),
      timedOut: inState('timed_out'),
      skipped: inState('skipped'),
      removed: this.removed,
    };
  }

  // The fleet.

  add(id: string): void {
    const place = rank(this.packageId, id);
    this.devices.push({
      ...{ id, place, deleted: false, profile: 'target', version: '', override: undefined, member: undefined },
    });
  }

  remove(device: ModelDevice): Refusal {
    if (device.deleted) return 'NOT_FOUND';
    this.change(device, () => (device.deleted = true));
    if (device.member && device.member.command !== 'ended') device.member.command = 'ended';
    return 'nothing';
  }

  move(device: ModelDevice, profile: 'target' | 'other'): Refusal {
    if (device.deleted) return 'NOT_FOUND';
    if (device.profile !== profile) this.change(device, () => (device.profile = profile));
    return 'nothing';
  }

  override(device: ModelDevice, type: 'fw' | 'sw' | undefined): Refusal {
    if (device.deleted) return 'NOT_FOUND';
    if (type === undefined && device.override === undefined) return 'NOT_FOUND';
    const before = device.override;
    if (before !== type) this.change(device, () => (device.override = type), before === 'fw');
    return 'nothing';
  }

  private isEligible(device: ModelDevice): boolean {
    if (device.deleted || device.profile !== 'target') return false;
    if (device.member && !device.member.hasLeft) return true;
    return device.override !== 'fw' && device.version !== versions.update && device.version !== versions.later;
  }

  /** A change of a device's facts. `wasOverridden`: its own assignment of the package's type ends. */
  private change(device: ModelDevice, apply: () => void, wasOverridden = false): void {
    const was = this.isEligible(device);
    const overriddenBefore = device.override === 'fw';
    apply();
    if (this.outcome !== '') return;
    const { member } = device;
    const isMember = member && !member.hasLeft;
    const moved = device.profile !== 'target' && this.phase !== 'rolling_back';
    const leaves = isMember && (device.deleted || moved || (device.override === 'fw' && !overriddenBefore));
    if (leaves) this.leave(device, member);
    const is = this.isEligible(device);
    if (!was && is && device.member && wasOverridden && this.phase === 'active') this.enroll(device);
    if (leaves || was !== is) this.pauseIfExceeded();
  }

  private leave(device: ModelDevice, member: ModelMember): void {
    this.removed += 1;
    if (member.before) this.ghosts.push(member.before);
    if (device.deleted) {
      device.member = undefined;
      return;
    }
    if (running.includes(member.state)) member.command = 'ended';
    member.hasLeft = true;
    member.state = 'skipped';
    member.rollingBack = false;
    member.before = undefined;
    member.deadline = undefined;
  }

  // Scheduling.

  /** Schedules whatever the percentage covers. */
  schedule(): void {
    if (this.phase !== 'active') return;
    const chosen = this.cohort.slice(0, this.covered);
    if (this.members.length + this.ghosts.length === 0 && this.scheduledInitially === 0) {
      this.scheduledInitially = chosen.length;
    }
    for (const device of chosen) if (!device.member || device.member.hasLeft) this.enroll(device);
  }

  private enroll(device: ModelDevice): void {
    if (device.member) this.removed -= 1;
    device.member = {
      state: 'scheduled',
      stage: this.percent,
      attempts: 0,
      failedIn: device.member?.failedIn ?? 0,
      deadline: undefined,
      rollingBack: false,
      hasLeft: false,
      command: 'undelivered',
      reported: '',
      reached: false,
      before: undefined,
      wasSent: false,
    };
  }

  // Devices.

  /** The device asks for its commands. Reports whether it gets the rollout's. */
  poll(device: ModelDevice, now: number): boolean {
    const { member } = device;
    if (device.deleted || !member || member.hasLeft || member.command !== 'undelivered') return false;
    const isBack = this.phase === 'rolling_back' || this.outcome === 'rolled_back';
    if (this.phase !== 'active' && !isBack) return false;
    if (this.isRollingBack && !member.rollingBack) {
      member.command = 'ended';
      return false;
    }
    member.command = 'delivered';
    member.attempts += 1;
    member.reached = true;
    member.deadline = running.includes(member.state) ? now + deviceTimeoutSeconds * 1000 : undefined;
    if (member.state === 'scheduled') member.state = 'sent';
    return true;
  }

  report(device: ModelDevice, version: string, success: boolean): Refusal {
    const { member } = device;
    if (!member) {
      this.pauseIfExceeded();
      return 'NOT_FOUND';
    }
    const isMember = !member.hasLeft;
    if (version !== '' && device.version !== version && !device.deleted) {
      if (isMember && device.profile === 'target') device.version = version;
      else this.change(device, () => (device.version = version));
    }
    if (member.rollingBack) this.reportOnWayBack(member, version, success);
    else this.reportOnUpdate(member, version, success);
    this.pauseIfExceeded();
    return 'nothing';
  }

  private reportOnUpdate(member: ModelMember, version: string, success: boolean): void {
    const to = success && version === versions.update ? 'successful' : 'failure';
    const mayMove =
      running.includes(member.state) ||
      member.state === 'timed_out' ||
      // Nothing is skipped any more: a device that was left alone may still have finished the update.
      (member.state === 'skipped' && this.outcome === 'cancelled' && !member.hasLeft) ||
      (member.state === 'successful' && to === 'failure');
    if (!mayMove) return;
    if (to === 'failure' && !failures.includes(member.state)) member.failedIn = this.resumes;
    member.state = to;
    member.reached = true;
    member.reported = version;
    member.deadline = undefined;
    member.command = 'ended';
  }

  private reportOnWayBack(member: ModelMember, version: string, success: boolean): void {
    let to: DeviceState | undefined;
    if (success && version === versions.rollback) to = member.state === 'rolled_back' ? undefined : 'rolled_back';
    else if (member.state === 'sent' || member.state === 'downloading') {
      to = success && version === versions.update ? undefined : 'failure';
    }
    if (!to) return;
    member.state = to;
    member.reported = version;
    member.deadline = undefined;
    member.command = 'ended';
  }

  progress(device: ModelDevice): Refusal {
    const { member } = device;
    this.pauseIfExceeded();
    if (!member) return 'NOT_FOUND';
    if (!running.includes(member.state) || (member.rollingBack && member.state === 'scheduled')) return 'nothing';
    member.state = 'downloading';
    if (!member.rollingBack) member.reached = true;
    this.pauseIfExceeded();
    return 'nothing';
  }

  // Verbs.

  pause(): Refusal {
    if (this.hasEnded) return 'FAILED_PRECONDITION';
    this.hold('OperatorPause');
    return 'nothing';
  }

  resume(percent: number | undefined): Refusal {
    if (this.hasEnded || this.spec.paused) return 'FAILED_PRECONDITION';
    if (percent !== undefined) {
      if (this.conditions.includes('StepApproval') || percent < this.percent) return 'FAILED_PRECONDITION';
      if (percent > this.percent) this.expandedTo = percent;
    }
    if (!this.conditions.some((reason) => reason !== 'StepApproval')) {
      return this.conditions.length > 0 ? 'FAILED_PRECONDITION' : 'nothing';
    }
    this.release('OperatorPause', 'FailureThresholdExceeded');
    this.resumes += 1;
    this.events.push('resumed');
    return 'nothing';
  }

  raise(percent: number): Refusal {
    if (this.hasEnded || this.phase === 'paused' || percent < this.percent) return 'FAILED_PRECONDITION';
    if (percent > this.percent) this.expandedTo = percent;
    return 'nothing';
  }

  approve(): Refusal {
    if (this.hasEnded) return 'FAILED_PRECONDITION';
    if (!this.conditions.includes('StepApproval')) {
      return this.approvedStepIndex === this.stepIndex + 1 ? 'nothing' : 'FAILED_PRECONDITION';
    }
    this.approvedStepIndex = this.stepIndex + 1;
    this.release('StepApproval');
    return 'nothing';
  }

  cancel(): Refusal {
    if (this.hasEnded) return 'FAILED_PRECONDITION';
    for (const member of this.members) {
      if (!running.includes(member.state)) continue;
      member.wasSent = member.state !== 'scheduled';
      Object.assign(member, { state: 'skipped', deadline: undefined, command: 'ended' });
    }
    this.end('cancelled');
    return 'nothing';
  }

  retry(devices: readonly ModelDevice[]): Refusal {
    if (this.hasEnded) return 'FAILED_PRECONDITION';
    if (devices.some(({ member }) => !member)) return 'NOT_FOUND';
    const named = devices.length > 0 ? devices.map(({ member }) => member!) : this.members;
    for (const member of named) {
      if (!failures.includes(member.state)) continue;
      Object.assign(member, { state: 'scheduled', attempts: 0, deadline: undefined, command: 'undelivered' });
    }
    return 'nothing';
  }

  skip(device: ModelDevice): Refusal {
    if (this.hasEnded) return 'FAILED_PRECONDITION';
    const { member } = device;
    if (!member) return 'NOT_FOUND';
    if (member.state === 'successful' || member.state === 'skipped') return 'nothing';
    member.wasSent = member.state !== 'scheduled';
    Object.assign(member, { state: 'skipped', deadline: undefined, command: 'ended' });
    return 'nothing';
  }

  rollback(now: number): Refusal {
    if (this.phase === 'rolling_back') return 'nothing';
    if (this.outcome !== '') return 'FAILED_PRECONDITION';
    this.isRollingBack = true;
    this.conditions.length = 0;
    this.events.push('rolling_back');
    for (const device of this.devices) if (device.member) this.turnBack(device, device.member, now);
    return 'nothing';
  }

  private turnBack(device: ModelDevice, member: ModelMember, now: number): void {
    if (member.hasLeft) return;
    if (member.state === 'scheduled' && !member.reached) {
      Object.assign(member, { state: 'skipped', wasSent: false, deadline: undefined, command: 'ended' });
      return;
    }
    const isReached =
      member.state !== 'skipped' ||
      member.wasSent ||
      member.attempts > 0 ||
      member.reached ||
      device.version === versions.update;
    const isSettled =
      member.state === 'successful' ||
      member.state === 'failure' ||
      ((member.state === 'skipped' || member.state === 'scheduled') && member.reported !== '');
    if (member.command === 'undelivered') member.command = 'ended';
    if (!isReached) return;
    if (isSettled && device.version === versions.rollback) {
      if (member.state === 'scheduled') {
        Object.assign(member, { state: 'skipped', wasSent: false, deadline: undefined, command: 'ended' });
      }
      return;
    }
    member.before = { state: member.state, wasSent: member.wasSent };
    member.rollingBack = true;
    member.state = 'scheduled';
    member.attempts = 0;
    member.deadline = now + deviceTimeoutSeconds * 1000;
    member.command = 'undelivered';
  }

  apply(change: Partial<ModelSpec>): void {
    if (this.outcome !== '') return;
    const before = this.percent;
    const wasHeld = this.spec.paused;
    this.spec = { ...this.spec, ...change };
    if (this.percent < before && this.counts().scheduled > 0) this.expandedTo = before;
    if (wasHeld && this.phase === 'active') this.events.push('resumed');
    this.pauseIfExceeded();
  }

  // The operator's actions. Each returns whether it is carried out.

  beginStep(): boolean {
    const index = this.stepIndex + 1;
    const step = this.spec.steps[index];
    if (this.phase !== 'active' || !step || (step.approval && this.approvedStepIndex < index)) return false;
    this.stepIndex = index;
    this.schedule();
    return true;
  }

  requestApproval(): boolean {
    if (this.phase !== 'active' || this.approvedStepIndex > this.stepIndex) return false;
    this.hold('StepApproval');
    return true;
  }

  /** Completes an active rollout that has nothing to schedule. */
  complete(): boolean {
    const { succeeded, skipped, scheduled } = this.counts();
    const isDone = this.percent === 100 && succeeded > 0 && succeeded + skipped === scheduled;
    if (this.phase !== 'active' || !isDone) return false;
    this.end('succeeded');
    return true;
  }

  finishRollback(): boolean {
    if (this.phase !== 'rolling_back' || this.members.some(({ deadline }) => deadline !== undefined)) return false;
    this.end('rolled_back');
    return true;
  }

  expire(now: number): boolean {
    const overdue = this.members.filter(({ deadline }) => deadline !== undefined && deadline <= now);
    for (const member of overdue) {
      member.deadline = undefined;
      if (!member.rollingBack && member.attempts < this.spec.maxAttempts && this.phase === 'active') {
        member.state = 'sent';
        member.command = 'undelivered';
      } else if (!member.rollingBack || member.attempts > 0) {
        member.state = 'timed_out';
        member.failedIn = this.resumes;
        if (!member.rollingBack) member.command = 'ended';
      }
      // Otherwise it has not got its rollback command: it stays scheduled, and nothing waits for it.
    }
    if (overdue.length > 0) this.pauseIfExceeded();
    return overdue.length > 0;
  }

  /** What the data plane and the operator do until nothing is left to do, in a rollout without soak times or time limits. */
  drive(): void {
    for (let isDone = false; !isDone;) {
      this.schedule();
      isDone = !(this.finishRollback() || this.complete() || this.nextStep());
    }
  }

  /** Begins the next step, or requests its approval, once every device of the stages so far has ended and one has a result. */
  private nextStep(): boolean {
    const step = this.spec.steps[this.stepIndex + 1];
    if (this.phase !== 'active' || !step) return false;
    const { scheduled, skipped } = this.counts();
    const isFinished = skipped < scheduled && !this.members.some(({ state }) => running.includes(state));
    const isPassed = step.percent <= this.percent && !step.approval;
    if (!isFinished && !isPassed) return false;
    return this.beginStep() || this.requestApproval();
  }

  // Pauses.

  private get hasEnded(): boolean {
    return this.phase === 'completed' || this.phase === 'rolling_back';
  }

  private end(outcome: 'succeeded' | 'rolled_back' | 'cancelled'): void {
    this.eligibleAtEnd = this.cohort.length;
    this.outcome = outcome;
    this.conditions.length = 0;
    this.events.push('completed');
  }

  private hold(reason: Reason): boolean {
    if (this.conditions.includes(reason)) return false;
    this.conditions.push(reason);
    return true;
  }

  private release(...reasons: Reason[]): void {
    for (const reason of reasons) {
      const at = this.conditions.indexOf(reason);
      if (at >= 0) this.conditions.splice(at, 1);
    }
  }

  /** Failures that no resume has acknowledged, of all scheduled devices or of the current stage, above the threshold. */
  private pauseIfExceeded(): void {
    if (this.hasEnded) return;
    const isFailed = ({ state }: ModelMember) => failures.includes(state);
    const counting = this.members.filter((member) => !isFailed(member) || member.failedIn === this.resumes);
    const failed = counting.filter(isFailed).length;
    if (failed < Math.max(1, this.spec.minFailures)) return;
    const stage = counting.filter((member) => member.stage === this.percent);
    const isAbove = (of: readonly ModelMember[]) =>
      of.length > 0 && of.filter(isFailed).length * 100 > this.spec.failureThresholdPercent * of.length;
    if ((isAbove(counting) || isAbove(stage)) && this.hold('FailureThresholdExceeded')) this.events.push('paused');
  }
}
