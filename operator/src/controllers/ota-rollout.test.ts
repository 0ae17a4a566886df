import type { OtaRollout } from '@kellet/crds';
import { expect } from 'chai';
import { pauseReason, rolloutFindings, rolloutHappenings, toRolloutStatus } from './ota-rollout.ts';
import { makeObserved as observe, type ObservedFields } from './testing/test-observed.ts';

type Status = NonNullable<OtaRollout['status']>;

const paused = (...reasons: string[]): ObservedFields => ({
  phase: 'paused',
  pause_conditions: reasons.map((reason) => ({ reason, start_time: { seconds: 60n, nanos: 0 }, by: '' })),
});

describe('rolloutFindings', () => {
  // Condition → status and reason, as used by kstatus and Argo CD.
  const cases: [string, ObservedFields, Record<string, string>][] = [
    [
      'active',
      { phase: 'active' },
      { Progressing: 'True RollingOut', Degraded: 'False AsExpected', Ready: 'False RollingOut' },
    ],
    [
      'operator pause',
      paused('OperatorPause'),
      { Progressing: 'False OperatorPause', Degraded: 'False AsExpected', Ready: 'False OperatorPause' },
    ],
    ['approval', paused('StepApproval'), { Progressing: 'False StepApproval', Ready: 'False StepApproval' }],
    ['held by spec', paused(), { Progressing: 'False HeldBySpec', Ready: 'False HeldBySpec' }],
    [
      'threshold',
      paused('OperatorPause', 'FailureThresholdExceeded'),
      {
        Progressing: 'False FailureThresholdExceeded',
        Degraded: 'True FailureThresholdExceeded',
        Ready: 'False FailureThresholdExceeded',
        Stalled: 'True FailureThresholdExceeded',
      },
    ],
    [
      'rolling back',
      { phase: 'rolling_back' },
      { Progressing: 'True RollingBack', Degraded: 'True RollingBack', Ready: 'False RollingBack' },
    ],
    [
      'rolled back',
      { phase: 'completed', outcome: 'rolled_back' },
      { Degraded: 'True RolledBack', Ready: 'False RolledBack', Stalled: 'True RolledBack' },
    ],
    [
      'succeeded',
      { phase: 'completed', outcome: 'succeeded' },
      { Progressing: 'False Succeeded', Degraded: 'False AsExpected', Ready: 'True Succeeded' },
    ],
    [
      'cancelled',
      { phase: 'completed', outcome: 'cancelled' },
      { Degraded: 'False AsExpected', Ready: 'False Cancelled', Stalled: 'True Cancelled' },
    ],
    [
      'lowered',
      { phase: 'active', lowered_from_percent: 50 },
      { PercentLowered: 'True DevicesKept', Ready: 'False RollingOut' },
    ],
    [
      'lowered and over',
      { phase: 'completed', outcome: 'succeeded', lowered_from_percent: 50 },
      { Ready: 'True Succeeded' },
    ],
  ];
  for (const [name, partial, want] of cases) {
    it(name, () => {
      const found = Object.fromEntries(
        rolloutFindings(observe(partial)).map((f) => [f.type, `${f.status} ${f.reason}`]),
      );
      expect(found).to.include({ Accepted: 'True Accepted', Synced: 'True Synced', ...want });
      for (const type of ['Stalled', 'PercentLowered']) expect(type in found, type).to.equal(type in want);
    });
  }
});

describe('pauseReason', () => {
  it('returns the most severe reason', () => {
    expect(pauseReason(observe(paused('StepApproval', 'OperatorPause')))).to.equal('OperatorPause');
    expect(pauseReason(observe(paused('OperatorPause', 'SignatureRequired')))).to.equal('SignatureRequired');
    expect(pauseReason(observe(paused()))).to.equal('HeldBySpec');
  });
});

describe('rolloutHappenings', () => {
  const status = (phase: Status['phase'], more: Partial<Status> = {}): Status => ({ phase, message: 'why', ...more });
  const exceeded: Partial<Status> = { pauseConditions: [{ reason: 'FailureThresholdExceeded', startTime: '' }] };
  const lowered: Partial<Status> = {
    conditions: [
      { type: 'PercentLowered', status: 'True', reason: 'DevicesKept', message: '', lastTransitionTime: '' },
    ],
  };
  const cases: [string, Status | undefined, Status, string[]][] = [
    ['first seen', undefined, status('Active'), ['Normal Started']],
    ['only counts changed', status('Active'), status('Active', { scheduledCount: 3 }), []],
    ['paused by a user', status('Active'), status('Paused'), ['Normal Paused']],
    ['paused by failures', status('Active'), status('Paused', exceeded), ['Warning FailureThresholdExceeded']],
    ['failures while paused', status('Paused'), status('Paused', exceeded), ['Warning FailureThresholdExceeded']],
    ['still paused by failures', status('Paused', exceeded), status('Paused', exceeded), []],
    ['resumed', status('Paused', exceeded), status('Active'), ['Normal Resumed']],
    ['rolling back', status('Paused', exceeded), status('RollingBack'), ['Warning RollingBack']],
    ['rolled back', status('RollingBack'), status('Completed', { outcome: 'RolledBack' }), ['Warning RolledBack']],
    ['succeeded', status('Active'), status('Completed', { outcome: 'Succeeded' }), ['Normal Completed']],
    ['cancelled', status('Active'), status('Completed', { outcome: 'Cancelled' }), ['Normal Cancelled']],
    [
      'over before it was created',
      undefined,
      status('Completed', { outcome: 'Succeeded' }),
      ['Warning AlreadyCompleted'],
    ],
    ['lowered', status('Active'), status('Active', lowered), ['Warning PercentLowered']],
    ['still lowered', status('Active', lowered), status('Active', lowered), []],
    ['lowered and paused', status('Active'), status('Paused', lowered), ['Warning PercentLowered', 'Normal Paused']],
  ];
  const refused = (reason: string): Status => ({
    conditions: [{ type: 'Ready', status: 'False', reason, message: 'why', lastTransitionTime: '' }],
  });
  cases.push(
    ['not started', undefined, refused('ReferenceNotFound'), ['Warning ReferenceNotFound']],
    ['still not started', refused('ReferenceNotFound'), refused('ReferenceNotFound'), []],
    [
      'not started for another reason',
      refused('ReferenceNotFound'),
      refused('RolloutInProgress'),
      ['Warning RolloutInProgress'],
    ],
  );
  for (const [name, before, after, want] of cases) {
    it(name, () => expect(rolloutHappenings(before, after).map((h) => `${h.type} ${h.reason}`)).to.deep.equal(want));
  }
});

describe('toRolloutStatus', () => {
  it('converts the observation, rounding percentages up', () => {
    const status = toRolloutStatus(
      'id',
      observe({
        ...paused('FailureThresholdExceeded'),
        failure_percent: 10.01,
        effective_percent: 20,
        counts: { eligible: 100, scheduled: 20, failed: 2, timed_out: 1 },
        scheduled_initially: 15,
      }),
    );
    expect(status).to.deep.include({ phase: 'Paused', failurePercent: 11, scheduledCount: 15, outcome: undefined });
    expect(status.counts).to.deep.include({ eligible: 100, failed: 2, timedOut: 1 });
    expect(status.pauseConditions).to.deep.equal([
      { reason: 'FailureThresholdExceeded', startTime: '1970-01-01T00:01:00Z', by: undefined },
    ]);
  });

  it('cuts the names of those who acted, which may be those of service accounts, to what the schema allows', () => {
    const by = `system:serviceaccount:kellet-acme:${'a'.repeat(253)}`;
    const start_time = { seconds: 60n, nanos: 0 };
    const status = toRolloutStatus(
      'id',
      observe({
        ...{ phase: 'paused', rollback_requested_by: by },
        pause_conditions: [{ reason: 'OperatorPause', start_time, by }],
      }),
    );
    expect(status.pauseConditions![0]!.by).to.equal(by.slice(0, 256));
    expect(status.control!.by).to.equal(by.slice(0, 256));
  });
});
