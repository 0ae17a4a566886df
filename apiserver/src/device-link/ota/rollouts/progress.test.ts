import { expect } from 'chai';
import { exceedsThreshold, failurePercent, mayMove, phaseOf, reportedState, stateOnWayBack } from './progress.ts';

describe('rollout progress', () => {
  const counts = {
    scheduled: 100,
    failures: 0,
    stageScheduled: 100,
    stageFailures: 0,
    acknowledgedFailures: 0,
    acknowledgedScheduled: 0,
  };
  const cases: [string, Partial<typeof counts>, { thresholdPercent: number; minFailures: number }, boolean][] = [
    ['nothing failed', {}, { thresholdPercent: 0, minFailures: 0 }, false],
    ['exactly at the threshold', { failures: 10, stageFailures: 10 }, { thresholdPercent: 10, minFailures: 1 }, false],
    ['the spec: 11 % over 10', { failures: 11, stageFailures: 11 }, { thresholdPercent: 10, minFailures: 1 }, true],
    [
      'threshold 0: the first failure',
      { failures: 1, stageFailures: 1 },
      { thresholdPercent: 0, minFailures: 1 },
      true,
    ],
    ['threshold 100 never', { failures: 100, stageFailures: 100 }, { thresholdPercent: 100, minFailures: 1 }, false],
    ['below the least number', { failures: 2, stageFailures: 2 }, { thresholdPercent: 1, minFailures: 3 }, false],
    [
      'a small canary',
      { scheduled: 3, failures: 1, stageScheduled: 3, stageFailures: 1 },
      { thresholdPercent: 33, minFailures: 1 },
      true,
    ],
    [
      'the stage alone crosses',
      { scheduled: 1000, failures: 11, stageScheduled: 100, stageFailures: 11 },
      { thresholdPercent: 10, minFailures: 1 },
      true,
    ],
    [
      'acknowledged failures no longer count',
      {
        scheduled: 20,
        failures: 5,
        stageScheduled: 15,
        stageFailures: 0,
        acknowledgedFailures: 5,
        acknowledgedScheduled: 5,
      },
      { thresholdPercent: 10, minFailures: 1 },
      false,
    ],
    [
      'what came after a resume counts',
      {
        scheduled: 20,
        failures: 7,
        stageScheduled: 10,
        stageFailures: 2,
        acknowledgedFailures: 5,
        acknowledgedScheduled: 5,
      },
      { thresholdPercent: 10, minFailures: 1 },
      true,
    ],
    [
      'nothing scheduled any more',
      { scheduled: 0, failures: 0, stageScheduled: 0 },
      { thresholdPercent: 0, minFailures: 1 },
      false,
    ],
  ];
  for (const [name, change, policy, want] of cases) {
    it(`${want ? 'pauses' : 'continues'}: ${name}`, () =>
      expect(exceedsThreshold({ ...counts, ...change }, policy)).to.equal(want));
  }

  it('states the share in percent with two decimals', () => {
    expect(failurePercent(0, 0)).to.equal(0);
    expect(failurePercent(3, 1)).to.equal(33.33);
    expect(failurePercent(200, 1)).to.equal(0.5);
  });

  const nothing = { completed: false, rollingBack: false, heldBySpec: false, pauseConditions: [] };
  const condition = { reason: 'OperatorPause', start_time: '2026-01-01T00:00:00Z', by: 'a' } as const;
  for (const [want, change] of [
    ['active', {}],
    ['paused', { heldBySpec: true }],
    ['paused', { pauseConditions: [condition] }],
    ['rolling_back', { rollingBack: true, pauseConditions: [condition] }],
    ['completed', { completed: true, rollingBack: true, heldBySpec: true }],
  ] as const) {
    it(`is ${want} with ${JSON.stringify(change)}`, () => expect(phaseOf({ ...nothing, ...change })).to.equal(want));
  }

  it('judges a success by its version', () => {
    expect(reportedState({ success: true, firmwareVersion: '2.0.0', expectedVersion: '2.0.0' }).state).to.equal(
      'successful',
    );
    expect(reportedState({ success: true, firmwareVersion: '1.0.0', expectedVersion: '2.0.0' }).state).to.equal(
      'failure',
    );
    expect(reportedState({ success: false, firmwareVersion: '2.0.0', expectedVersion: '2.0.0' }).state).to.equal(
      'failure',
    );
  });

  it('counts a terminal report once and lets a success be revoked', () => {
    const table: [string, 'successful' | 'failure', boolean][] = [
      ['scheduled', 'successful', true],
      ['sent', 'failure', true],
      ['downloading', 'successful', true],
      ['successful', 'successful', false],
      ['successful', 'failure', true],
      ['failure', 'failure', false],
      ['failure', 'successful', false],
      ['timed_out', 'successful', true],
      ['skipped', 'failure', false],
    ];
    for (const [from, to, want] of table) expect(mayMove(from, to), `${from} → ${to}`).to.equal(want);
  });

  it('does not take a late report of the update for a response to the rollback', () => {
    const table: [string, boolean, string, 'rolled_back' | 'failure' | undefined][] = [
      ['scheduled', true, '2.0.0', undefined],
      ['scheduled', false, '1.5.0', undefined],
      ['scheduled', true, '1.0.0', 'rolled_back'],
      ['sent', true, '1.0.0', 'rolled_back'],
      ['downloading', true, '2.0.0', undefined],
      ['downloading', true, '1.5.0', 'failure'],
      ['sent', false, '2.0.0', 'failure'],
      ['failure', true, '1.0.0', 'rolled_back'],
      ['timed_out', true, '1.0.0', 'rolled_back'],
      ['timed_out', false, '2.0.0', undefined],
      ['rolled_back', true, '1.0.0', undefined],
      ['rolled_back', false, '1.0.0', undefined],
    ];
    for (const [from, success, firmwareVersion, want] of table) {
      const report = { from, success, firmwareVersion, updateVersion: '2.0.0', rollbackVersion: '1.0.0' };
      expect(stateOnWayBack(report), JSON.stringify(report)).to.equal(want);
    }
  });
});
