import { expect } from 'chai';
import { exceedsThreshold, failurePercent, phaseOf } from './pause-decision.ts';

describe('the decision to pause a rollout', () => {
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
});
