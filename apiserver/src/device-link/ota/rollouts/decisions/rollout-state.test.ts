import { expect } from 'chai';
import { rolloutSpecOf } from './rollout-spec.ts';
import { describe as message, type RolloutState } from './rollout-state.ts';

const base: RolloutState = {
  changedDevices: [],
  tenantId: 'acme',
  rolloutId: 'r',
  name: 'r',
  namespace: 'kellet-acme',
  displayName: 'r',
  packageId: 'p',
  profileId: 'q',
  rollbackPackageId: undefined,
  spec: rolloutSpecOf({ packageRef: { name: 'p' }, targetProfileRef: { name: 'q' }, canaryPercent: 20 }),
  phase: 'active',
  outcome: '',
  pauseConditions: [],
  expandedToPercent: 0,
  loweredFromPercent: 0,
  resourceUid: '',
  acknowledgedFailures: 0,
  acknowledgedScheduled: 0,
  rollbackRequestedAt: undefined,
  rollbackRequestedBy: '',
  stepIndex: -1,
  approvedStepIndex: -1,
  eligible: 6,
  scheduledInitially: 6,
  scheduled: 6,
  sent: 6,
  succeeded: 0,
  failed: 0,
  timedOut: 0,
  skipped: 0,
  removed: 0,
  stageScheduled: 6,
  stageFailed: 0,
  lastTerminalAt: undefined,
  nextSendAt: undefined,
  nextHandOutAt: undefined,
  rollbackPending: 0,
  cohortReady: true,
  cohortCursor: undefined,
  cohortCount: 6,
  schedulingDue: false,
  coveredCount: 6,
  coveredRank: undefined,
  pendingWork: '',
  workCursor: undefined,
  resumes: 0,
  revision: 1n,
  createdAt: new Date(0),
  updatedAt: new Date(0),
};
const state = (change: Partial<RolloutState>): RolloutState => ({ ...base, ...change });

describe('the message of a rollout', () => {
  const succeeded = { phase: 'completed', outcome: 'succeeded' } as const;
  const returned = { phase: 'completed', outcome: 'rolled_back' } as const;
  const cases: [string, Partial<RolloutState>, string][] = [
    ['all succeeded', { ...succeeded, succeeded: 6 }, 'every target device succeeded'],
    ['some were skipped', { ...succeeded, succeeded: 1, skipped: 5 }, '1 of 6 devices succeeded; 5 skipped'],
    ['one has not reported', { succeeded: 5 }, '1 of 6 scheduled devices has not reported'],
    ['two have not reported', { succeeded: 4 }, '2 of 6 scheduled devices have not reported'],
    ['a fleet of one', { eligible: 1, scheduled: 1 }, '1 of 1 scheduled device has not reported'],
    ['one failed', { succeeded: 5, failed: 1 }, '1 device failed: retry or skip it to complete'],
    ['two failed', { succeeded: 4, failed: 1, timedOut: 1 }, '2 devices failed: retry or skip them to complete'],
    [
      'one failed late',
      { ...succeeded, succeeded: 5, failed: 1 },
      'completed; 1 of 6 devices has reported a failure since',
    ],
    ['all went back', { ...returned }, 'rolled back'],
    ['one stayed', { ...returned, rollbackPending: 1 }, 'rolled back; 1 device has not reported the rollback package'],
    [
      'some stayed',
      { ...returned, rollbackPending: 4 },
      'rolled back; 4 devices have not reported the rollback package',
    ],
  ];
  for (const [what, change, expected] of cases) {
    it(`${what}: ${expected}`, () => expect(message(state(change))).to.equal(expected));
  }
  it('states when a closed window opens, while devices wait', () => {
    const opens = new Date('2026-11-21T02:00:00Z');
    expect(message(state({ succeeded: 5 }), opens)).to.equal(
      'outside its window until 2026-11-21T02:00Z: 1 of 6 scheduled devices has not reported',
    );
    expect(message(state({ succeeded: 6 }), opens)).to.equal('6 of 6 eligible devices succeeded');
  });
});
