// A rollout in words: its row, its bar, why it stands still and what can be done about it. From the custom resource alone.
import type { OtaRollout } from '@kellet/crds';
import type { Paint, Style } from '../terminal.ts';
import { formatBar } from './bar.ts';
import { formatAge, formatDuration } from './duration.ts';
import type { Cell } from './table.ts';

/** Where and when things are shown. */
export interface View {
  readonly paint: Paint;
  readonly hasUnicode: boolean;
  /** Milliseconds since 1970. */
  readonly now: number;
}

/** Devices by what became of them; every one is counted once. */
export interface Progress {
  readonly eligible: number;
  readonly scheduled: number;
  readonly succeeded: number;
  /** Failed and timed out. */
  readonly failed: number;
  readonly skipped: number;
  /** Scheduled and not over. */
  readonly underway: number;
}

/** The counts of a rollout's status. */
export function progressOf({ status }: OtaRollout): Progress {
  const counts = status?.counts ?? {};
  const { eligible = 0, scheduled = 0, succeeded = 0, skipped = 0, removed = 0 } = counts;
  const failed = (counts.failed ?? 0) + (counts.timedOut ?? 0);
  const underway = Math.max(0, scheduled - succeeded - failed - skipped - removed);
  return { eligible: Math.max(eligible, scheduled), scheduled, succeeded, failed, skipped, underway };
}

/** Phase, and how it ended when that was not success. */
export function phaseOf({ status }: OtaRollout): { text: string; style: Style | undefined } {
  const phase = status?.phase;
  if (phase === undefined) return { text: 'Pending', style: 'gray' };
  if (phase === 'Completed') {
    const { outcome } = status!;
    const isGood = outcome === undefined || outcome === 'Succeeded';
    return { text: isGood ? phase : `${phase} (${outcome})`, style: isGood ? 'green' : 'red' };
  }
  const hasFailed = status!.pauseConditions?.some(({ reason }) => reason === 'FailureThresholdExceeded');
  if (phase === 'Paused') return { text: phase, style: hasFailed ? 'red' : 'yellow' };
  return { text: phase, style: phase === 'RollingBack' ? 'yellow' : 'blue' };
}

/** The bar of a rollout over its eligible devices. */
export function rolloutBar(rollout: OtaRollout, width: number, { paint, hasUnicode }: View): string {
  const { eligible, succeeded, failed, skipped, underway } = progressOf(rollout);
  const parts = [
    { count: succeeded, glyph: ['█', '#'], style: 'green' },
    { count: failed, glyph: ['█', 'x'], style: 'red' },
    { count: skipped, glyph: ['▒', '-'], style: 'gray' },
    { count: underway, glyph: ['▒', '>'], style: 'blue' },
  ] as const;
  return formatBar(parts, eligible, { width, hasUnicode, paint });
}

/** Headings of {@link rolloutRow}. */
export const rolloutHeadings = (isWide: boolean): string[] => [
  ...['NAME', 'PHASE', 'PACKAGE', 'PROFILE', 'COVER', 'SCHEDULED', 'OK', 'FAILED', 'FAIL%', 'AGE'],
  ...(isWide ? ['STEPS', 'THRESHOLD', 'ROLLOUT-ID', 'MESSAGE'] : []),
];

/** A rollout as a row. */
export function rolloutRow(rollout: OtaRollout, isWide: boolean, now: number): Cell[] {
  const { metadata, spec, status } = rollout;
  const { eligible, scheduled, succeeded, failed } = progressOf(rollout);
  const steps = [spec.canaryPercent, ...(spec.steps ?? []).map(({ percent }) => percent)];
  return [
    metadata.name,
    phaseOf(rollout),
    spec.packageRef.name,
    spec.targetProfileRef.name,
    `${status?.effectivePercent ?? spec.canaryPercent}%`,
    `${scheduled}/${eligible}`,
    String(succeeded),
    { text: String(failed), style: failed > 0 ? 'red' : undefined },
    String(status?.failurePercent ?? 0),
    formatAge(metadata.creationTimestamp, now),
    ...(isWide
      ? [steps.join('→'), `${spec.failureThresholdPercent ?? 10}%`, status?.rolloutId ?? '', messageOf(rollout)]
      : []),
  ];
}

/** What the operator says of it: its own message, or why it cannot be honoured. */
export function messageOf({ status }: OtaRollout): string {
  if (status?.message) return status.message;
  const wrong = status?.conditions?.find(
    ({ type, status: holds }) => ['Accepted', 'ReferencesResolved', 'Synced'].includes(type) && holds !== 'True',
  );
  return wrong?.message ?? '';
}

/** What a person can do next; nothing when there is nothing to do. */
export function nextSteps({ metadata: { name }, spec, status }: OtaRollout): string[] {
  if (status?.phase !== 'Paused') return [];
  const reasons = new Set(status.pauseConditions?.map(({ reason }) => reason));
  const steps: string[] = [];
  if (reasons.has('FailureThresholdExceeded')) {
    steps.push(`see which failed:       kubectl kellet devices ${name} --state failure`);
    if (spec.rollbackPackageRef) steps.push(`bring them back:        kubectl kellet rollback ${name}`);
    steps.push(`accept the failures:    kubectl kellet resume ${name}`);
  }
  if (reasons.has('StepApproval')) steps.push(`let the step begin:     kubectl kellet approve ${name}`);
  if (spec.paused === true) steps.push('it is held by spec.paused: change the manifest to go on');
  else if (reasons.has('OperatorPause')) steps.push(`go on:                  kubectl kellet resume ${name}`);
  return steps;
}

/** Everything about one rollout, as lines. */
export function rolloutDetails(rollout: OtaRollout, view: View): string[] {
  const { metadata, spec, status } = rollout;
  const { paint, now } = view;
  const { text, style } = phaseOf(rollout);
  const { eligible, scheduled, succeeded, failed, skipped, underway } = progressOf(rollout);
  const fact = (name: string, value: string): string => `${`${name}:`.padEnd(11)} ${value}`;
  const lines = [
    `${paint('bold', `otarollout/${metadata.name}`)}  ${paint(style, text)}  ${formatAge(metadata.creationTimestamp, now)} old`,
    '',
    `${rolloutBar(rollout, 40, view)} ${succeeded} of ${eligible} devices`,
    `${underway} under way, ${failed} failed (${status?.failurePercent ?? 0} %, pauses above ${spec.failureThresholdPercent ?? 10} %), ${skipped} skipped, ${scheduled} scheduled`,
    '',
    fact('Package', spec.packageRef.name),
    fact('Profile', spec.targetProfileRef.name),
    ...(spec.rollbackPackageRef ? [fact('Rollback', spec.rollbackPackageRef.name)] : []),
    fact('Steps', stepsLine(rollout)),
    ...(status?.rolloutId ? [fact('Id', status.rolloutId)] : []),
    ...(messageOf(rollout) ? [fact('Message', messageOf(rollout))] : []),
  ];
  for (const { reason, startTime, by } of status?.pauseConditions ?? []) {
    lines.push(fact('Paused', `${reason}, ${formatAge(startTime, now)} ago${by ? `, by ${by}` : ''}`));
  }
  const steps = nextSteps(rollout);
  if (steps.length > 0) lines.push('', ...steps);
  return lines;
}

/** The stages, with the ones that have begun marked. */
export function stepsLine({ spec, status }: OtaRollout): string {
  const covered = status?.effectivePercent ?? 0;
  const stages = [{ percent: spec.canaryPercent }, ...(spec.steps ?? [])];
  return stages
    .map((stage) => {
      const { percent, soakSeconds, approval } = stage;
      const conditions = [
        ...(soakSeconds ? [`after ${formatDuration(soakSeconds * 1000)}`] : []),
        ...(approval ? ['approved'] : []),
      ];
      return `${percent}%${conditions.length > 0 ? ` (${conditions.join(', ')})` : ''}${percent <= covered ? '*' : ''}`;
    })
    .join(' → ');
}

/** One line that says where a rollout stands, for output that is no terminal. */
export function rolloutLine(rollout: OtaRollout): string {
  const { eligible, scheduled, succeeded, failed } = progressOf(rollout);
  const message = messageOf(rollout);
  const counts = `${succeeded}/${eligible} ok, ${failed} failed, ${scheduled} scheduled`;
  return `${rollout.metadata.name}: ${phaseOf(rollout).text}, ${counts}${message ? `: ${message}` : ''}`;
}
