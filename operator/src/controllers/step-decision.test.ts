import type { OtaRolloutSpec } from '@kellet/crds';
import type { OtaRolloutObserved } from '@kellet/proto/ts/kellet/control/v1/control';
import { expect } from 'chai';
import { decideRollout, type RolloutDecision, toAdvanceRequest } from './step-decision.ts';
import { makeObserved, type ObservedFields } from './testing/test-observed.ts';

const at = (milliseconds: number) => ({
  seconds: BigInt(Math.floor(milliseconds / 1000)),
  nanos: (milliseconds % 1000) * 1e6,
});
const now = 1_000_000;

/** An active rollout of 100 devices whose canary of 20 devices has succeeded at second 990. */
const observe = (changes: ObservedFields = {}): OtaRolloutObserved =>
  makeObserved({
    phase: 'active',
    counts: { eligible: 100, scheduled: 20, sent: 20, succeeded: 20 },
    effective_percent: 20,
    covered: 20,
    step_index: -1,
    stage_finished: true,
    last_terminal_at: at(now - 10_000),
    now: at(now),
    revision: 7n,
    ...changes,
  });
const step = (percent: number, soakSeconds = 0, approval = false) => ({ percent, soakSeconds, approval });
const everyone = { eligible: 100, scheduled: 100, sent: 100, succeeded: 100 };

describe('decideRollout', () => {
  const cases: [string, NonNullable<OtaRolloutSpec['steps']>, OtaRolloutObserved, RolloutDecision][] = [
    ['completed: nothing', [], observe({ phase: 'completed', next_timeout_at: at(now - 1) }), {}],
    ['no steps: a healthy canary does not expand', [], observe(), { requeueAfterMilliseconds: undefined }],
    [
      'a covered device may not be scheduled yet',
      [],
      observe({ scheduling_due: true }),
      { requeueAfterMilliseconds: 5000 },
    ],
    [
      'a deadline has passed, whatever else there is to do',
      [],
      observe({ next_timeout_at: at(now), scheduling_due: true }),
      { action: 'expire_devices' },
    ],
    [
      'a deadline has passed while paused',
      [],
      observe({ phase: 'paused', next_timeout_at: at(now - 1) }),
      { action: 'expire_devices' },
    ],
    ['a future deadline', [], observe({ next_timeout_at: at(now + 5000) }), { requeueAfterMilliseconds: 5000 }],
    [
      'an imminent deadline is waited for at least a second',
      [],
      observe({ next_timeout_at: at(now + 1) }),
      { requeueAfterMilliseconds: 1000 },
    ],
    [
      'paused: no further step',
      [step(50)],
      observe({ phase: 'paused', covered: 50, scheduling_due: true }),
      { requeueAfterMilliseconds: undefined },
    ],
    [
      'rolling back, devices pending',
      [],
      observe({ phase: 'rolling_back', rollback_pending: 3, next_timeout_at: at(now + 9000) }),
      { requeueAfterMilliseconds: 9000 },
    ],
    ['rolled back', [], observe({ phase: 'rolling_back', rollback_pending: 0 }), { action: 'finish_rollback' }],
    [
      'rolling back, a device is overdue',
      [],
      observe({ phase: 'rolling_back', rollback_pending: 1, next_timeout_at: at(now - 1) }),
      { action: 'expire_devices' },
    ],
    [
      'all devices succeeded',
      [],
      observe({ counts: everyone, effective_percent: 100, covered: 100 }),
      { action: 'complete' },
    ],
    [
      'all devices succeeded or were skipped',
      [],
      observe({ counts: { ...everyone, succeeded: 98, skipped: 2 }, effective_percent: 100, covered: 100 }),
      { action: 'complete' },
    ],
    [
      'not completed while a covered device may not be scheduled yet',
      [],
      observe({ counts: everyone, effective_percent: 100, covered: 100, scheduling_due: true }),
      { requeueAfterMilliseconds: 5000 },
    ],
    [
      'a tolerated failure keeps it open',
      [],
      observe({ counts: { ...everyone, succeeded: 99, failed: 1 }, effective_percent: 100, covered: 100 }),
      { requeueAfterMilliseconds: undefined },
    ],
    [
      'no eligible devices: never vacuously complete',
      [step(100)],
      observe({ counts: {}, effective_percent: 20, covered: 0, stage_finished: false, last_terminal_at: undefined }),
      { requeueAfterMilliseconds: undefined },
    ],
    [
      'no eligible devices at 100 %',
      [],
      observe({ counts: {}, effective_percent: 100, covered: 0 }),
      { requeueAfterMilliseconds: undefined },
    ],
    [
      'the stage is not finished',
      [step(50)],
      observe({ stage_finished: false }),
      { requeueAfterMilliseconds: undefined },
    ],
    ['the next step begins', [step(50)], observe(), { action: { begin_step: 0 } }],
    ['the step after it', [step(20), step(100)], observe({ step_index: 0 }), { action: { begin_step: 1 } }],
    ['no further step', [step(20)], observe({ step_index: 0 }), { requeueAfterMilliseconds: undefined }],
    ['soaking', [step(50, 30)], observe(), { requeueAfterMilliseconds: 20_000 }],
    [
      'soaking, with a deadline before its end',
      [step(50, 30)],
      observe({ next_timeout_at: at(now + 4000) }),
      { requeueAfterMilliseconds: 4000 },
    ],
    [
      'devices wait for the window, which opens before the deadline',
      [],
      observe({ stage_finished: false, next_timeout_at: at(now + 9000), window_changes_at: at(now + 5000) }),
      { requeueAfterMilliseconds: 5000 },
    ],
    ['soaked exactly long enough', [step(50, 10)], observe(), { action: { begin_step: 0 } }],
    ['soaked, approval is missing', [step(50, 10, true)], observe(), { action: { request_approval: 0 } }],
    [
      'approval is not requested before the soak ends',
      [step(50, 30, true)],
      observe(),
      { requeueAfterMilliseconds: 20_000 },
    ],
    ['approved', [step(50, 10, true)], observe({ next_step_approved: true }), { action: { begin_step: 0 } }],
    [
      'approved early, still soaking',
      [step(50, 30, true)],
      observe({ next_step_approved: true }),
      { requeueAfterMilliseconds: 20_000 },
    ],
    [
      'raised past a step by a command',
      [step(50, 3600)],
      observe({ effective_percent: 60, covered: 20, stage_finished: false }),
      { action: { begin_step: 0 } },
    ],
  ];
  for (const [name, steps, observed, want] of cases) {
    it(name, () => expect(decideRollout(steps, observed)).to.deep.equal(want));
  }
});

describe('toAdvanceRequest', () => {
  it('contains the revision and one action', () => {
    const head = { tenant_id: 'acme', rollout_id: 'r', revision: 7n };
    expect(toAdvanceRequest('acme', 'r', 7n, 'complete')).to.deep.equal({ ...head, complete: {} });
    expect(toAdvanceRequest('acme', 'r', 7n, { begin_step: 2 })).to.deep.equal({
      ...head,
      begin_step: { step_index: 2 },
    });
    expect(toAdvanceRequest('acme', 'r', 7n, { request_approval: 0 })).to.deep.equal({
      ...head,
      request_approval: { step_index: 0 },
    });
  });
});
