import type { Schema } from '@kellet/client';
import { expect } from 'chai';
import { countsOf, pauseText, progressOf, stagesOf, type Verb, verbsOf } from './rollout-view.ts';

type Rollout = Schema<'Rollout'>;

const counts = { ...countsOf({}), eligible: 100 };

describe('the page of a rollout', () => {
  const table: [Rollout['status'], Rollout['pause_reasons'], string, Verb[]][] = [
    ['active', [], 'p', ['pause', 'rollback', 'cancel']],
    ['active', [], '', ['pause', 'cancel']],
    ['paused', ['operator_pause'], 'p', ['resume', 'rollback', 'cancel']],
    ['paused', ['failure_threshold_exceeded'], '', ['resume', 'cancel']],
    ['paused', ['step_approval'], '', ['approve', 'cancel']],
    ['paused', ['operator_pause', 'step_approval'], '', ['approve', 'resume', 'cancel']],
    ['rolling_back', [], 'p', []],
    ['completed', [], 'p', []],
    [undefined, [], 'p', []],
  ];
  for (const [status, pause_reasons, rollback_package_id, verbs] of table) {
    const package_ = rollback_package_id === '' ? 'without' : 'with';
    it(`offers ${verbs.join(', ') || 'nothing'} when it is ${status} (${pause_reasons.join(', ')}), ${package_} a rollback package`, () =>
      expect(verbsOf({ status, pause_reasons, rollback_package_id })).to.deep.equal(verbs));
  }

  const steps = [
    { percent: 50, soak_seconds: 60, approval: true },
    { percent: 100, soak_seconds: 0, approval: false },
  ];
  const stages: [reached: number, status: Rollout['status'], states: string[]][] = [
    [0, 'active', ['coming', 'coming', 'coming']],
    [10, 'active', ['current', 'coming', 'coming']],
    [50, 'paused', ['done', 'current', 'coming']],
    // Raised by hand between two steps.
    [70, 'active', ['done', 'current', 'coming']],
    [100, 'active', ['done', 'done', 'current']],
    [100, 'completed', ['done', 'done', 'done']],
    [10, 'completed', ['done', 'coming', 'coming']],
  ];
  for (const [effective_percent, status, states] of stages) {
    it(`shows the stages as ${states.join(', ')} at ${effective_percent} % (${status})`, () =>
      expect(
        stagesOf({ status, canary_percent: 10, steps, effective_percent }).map(({ state }) => state),
      ).to.deep.equal(states));
  }

  it('divides the bar among all eligible devices', () => {
    const parts = progressOf({
      counts: { ...counts, scheduled: 40, sent: 30, succeeded: 20, failed: 2, timed_out: 1, skipped: 4, removed: 3 },
    });
    expect(parts.map(({ name, count, percent }) => [name, count, percent])).to.deep.equal([
      ['succeeded', 20, 20],
      ['failed', 3, 3],
      ['under way', 10, 10],
      ['skipped', 4, 4],
    ]);
  });

  it('has an empty bar without devices, and never more than a full one', () => {
    expect(progressOf({}).map(({ percent }) => percent)).to.deep.equal([0, 0, 0, 0]);
    // Devices that left the profile after their update are no longer eligible.
    const left = { ...counts, eligible: 1, scheduled: 3, succeeded: 3 };
    expect(progressOf({ counts: left })[0]!.percent).to.equal(100);
  });

  it('states every reason for a pause', () => {
    expect(pauseText(['operator_pause', 'step_approval'])).to.equal(
      'an operator has paused it, and the next step waits for an approval',
    );
    expect(pauseText([])).to.equal('');
  });
});
