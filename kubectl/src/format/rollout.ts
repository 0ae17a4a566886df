// Formats rollouts, using only the custom resource: table row, progress bar, reasons for a pause and next steps.
import type { OtaRollout } from '@kellet/crds';
import { formatBar } from './bar.ts';
import { formatAge, formatDuration } from './duration.ts';
import type { Paint, Style } from './paint.ts';
import type { Cell } from './table.ts';

/** Properties of the output. */
export interface View {
  readonly paint: Paint;
  readonly hasUnicode: boolean;
  /** Milliseconds since 1970. */
  readonly now: number;
}

/** Number of devices by state; each device is counted once. */
export interface Progress {
  readonly eligible: number;
  readonly scheduled: number;
  readonly succeeded: number;
  /** Failed and timed out. */
  readonly failed: number;
  readonly skipped: number;
  /** Scheduled and not finished; none once the rollout is over. */
  readonly underway: number;
  /** Neither succeeded, failed nor skipped, and no longer to be: the rollout is over. */
  readonly leftOut: number;
}

/** Returns the counts of a rollout's status. */
export function progressOf({ status }: OtaRollout): Progress {
  const counts = status?.counts ?? {};
  const { scheduled = 0, succeeded = 0, skipped = 0 } = counts;
  const eligible = Math.max(counts.eligible ?? 0, scheduled);
  const failed = (counts.failed ?? 0) + (counts.timedOut ?? 0);
  const finished = succeeded + failed + skipped;
  const [underway, leftOut] =
    status?.phase === 'Completed' ? [0, Math.max(0, eligible - finished)] : [Math.max(0, scheduled - finished), 0];
  return { eligible, scheduled, succeeded, failed, skipped, underway, leftOut };
}

/** Returns the phase, with the outcome if it was not a success. */
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

/** Returns the progress bar of a rollout over its eligible devices, which is full once the rollout is over. */
export function rolloutBar(rollout: OtaRollout, width: number, { paint, hasUnicode }: View): string {
  const { eligible, succeeded, failed, skipped, underway, leftOut } = progressOf(rollout);
  // A rollout without devices can be over too.
  const isEmpty = eligible === 0 && rollout.status?.phase === 'Completed';
  const parts = [
    { count: succeeded, glyph: ['█', '#'], style: 'green' },
    { count: failed, glyph: ['█', 'x'], style: 'red' },
    { count: isEmpty ? 1 : skipped + leftOut, glyph: ['▒', '-'], style: 'gray' },
    { count: underway, glyph: ['▒', '>'], style: 'blue' },
  ] as const;
  return formatBar(parts, isEmpty ? 1 : eligible, { width, hasUnicode, paint });
}

/** Headings of {@link rolloutRow}. */
export const rolloutHeadings = (isWide: boolean): string[] => [
  ...['NAME', 'PHASE', 'PACKAGE', 'PROFILE', 'COVER', 'SCHEDULED', 'OK', 'FAILED', 'FAIL%', 'AGE'],
  ...(isWide ? ['STEPS', 'THRESHOLD', 'ROLLOUT-ID', 'MESSAGE'] : []),
];

/** Formats a rollout as a table row. */
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

/** Returns the status message, or the reason for which the rollout was not accepted. */
export function messageOf({ status }: OtaRollout): string {
  if (status?.message) return status.message;
  const wrong = status?.conditions?.find(
    ({ type, status: holds }) => ['Accepted', 'ReferencesResolved', 'Synced'].includes(type) && holds !== 'True',
  );
  return wrong?.message ?? '';
}

/** Suggests commands for a paused rollout. */
export function nextSteps({ metadata: { name }, spec, status }: OtaRollout): string[] {
  if (status?.phase !== 'Paused') return [];
  const reasons = new Set(status.pauseConditions?.map(({ reason }) => reason));
  const steps: string[] = [];
  if (reasons.has('FailureThresholdExceeded')) {
    steps.push(`list failed devices:    kubectl kellet devices ${name} --state failure`);
    if (spec.rollbackPackageRef) steps.push(`roll them back:         kubectl kellet rollback ${name}`);
    steps.push(`accept the failures:    kubectl kellet resume ${name}`);
  }
  if (reasons.has('StepApproval')) steps.push(`approve the step:       kubectl kellet approve ${name}`);
  if (reasons.has('SignatureRequired')) {
    steps.push(`once its key is trusted: kubectl kellet resume ${name}`);
  }
  if (spec.paused === true) steps.push('held by spec.paused: change the manifest to resume it');
  else if (reasons.has('OperatorPause')) steps.push(`resume it:              kubectl kellet resume ${name}`);
  return steps;
}

/** Formats all details of a rollout, as lines. */
export function rolloutDetails(rollout: OtaRollout, view: View): string[] {
  const { metadata, spec, status } = rollout;
  const { paint, now } = view;
  const { text, style } = phaseOf(rollout);
  const { eligible, scheduled, succeeded, failed, skipped, underway, leftOut } = progressOf(rollout);
  const open = status?.phase === 'Completed' ? `${leftOut} left out` : `${underway} in progress`;
  const fact = (name: string, value: string): string => `${`${name}:`.padEnd(11)} ${value}`;
  const lines = [
    `${paint('bold', `otarollout/${metadata.name}`)}  ${paint(style, text)}  ${formatAge(metadata.creationTimestamp, now)} old`,
    '',
    `${rolloutBar(rollout, 40, view)} ${succeeded} of ${eligible} devices`,
    `${open}, ${failed} failed (${status?.failurePercent ?? 0} %, pauses above ${spec.failureThresholdPercent ?? 10} %), ${skipped} skipped, ${scheduled} scheduled`,
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

/** Formats the stages, marking those that have begun. */
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

/** Formats the state of a rollout as one line, for output that is not a terminal. */
export function rolloutLine(rollout: OtaRollout): string {
  const { eligible, scheduled, succeeded, failed } = progressOf(rollout);
  const message = messageOf(rollout);
  const counts = `${succeeded}/${eligible} ok, ${failed} failed, ${scheduled} scheduled`;
  return `${rollout.metadata.name}: ${phaseOf(rollout).text}, ${counts}${message ? `: ${message}` : ''}`;
}
