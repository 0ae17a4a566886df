import type { OtaRollout } from '@kellet/crds';
import { expect } from 'chai';
import { cut } from '../screen.ts';
import { formatBar, shares } from './bar.ts';
import { formatAge, formatBytes, formatDuration } from './duration.ts';
import { painter } from './paint.ts';
import { readiness, resourceRow } from './resource.ts';
import {
  nextSteps,
  phaseOf,
  progressOf,
  rolloutBar,
  rolloutDetails,
  rolloutLine,
  rolloutRow,
  stepsLine,
} from './rollout.ts';
import { formatTable } from './table.ts';

const plain = painter(false);
const now = Date.parse('2026-01-01T00:10:00Z');
const view = { paint: plain, hasUnicode: false, now };

const rollout = (status: OtaRollout['status'] = {}, spec: Partial<OtaRollout['spec']> = {}): OtaRollout => ({
  apiVersion: 'kellet.dev/v1alpha1',
  kind: 'OtaRollout',
  metadata: { name: 'r', creationTimestamp: '2026-01-01T00:00:00Z' },
  spec: { packageRef: { name: 'p' }, targetProfileRef: { name: 'd' }, canaryPercent: 20, ...spec },
  status,
});
const paused = (
  ...reasons: ('OperatorPause' | 'FailureThresholdExceeded' | 'StepApproval' | 'SignatureRequired')[]
) => ({
  phase: 'Paused' as const,
  pauseConditions: reasons.map((reason) => ({ reason, startTime: '2026-01-01T00:05:00Z', by: 'me' })),
});

describe('durations, ages and sizes', () => {
  for (const [seconds, want] of [
    [0, '0s'],
    [-5, '0s'],
    [119, '119s'],
    [120, '2m'],
    [200, '3m20s'],
    [600, '10m'],
    [10_799, '179m'],
    [10_800, '3h'],
    [12_000, '3h20m'],
    [28_800, '8h'],
    [172_799, '47h'],
    [172_800, '2d'],
  ] as const) {
    it(`${seconds} s: ${want}`, () => expect(formatDuration(seconds * 1000)).to.equal(want));
  }
  it('formats an age without a time as unknown', () => expect(formatAge(undefined, now)).to.equal('<unknown>'));
  for (const [bytes, want] of [
    [0, '0 B'],
    [1023, '1023 B'],
    [1024, '1.0 KiB'],
    [1_500_000, '1.4 MiB'],
    [5_000_000_000, '4.7 GiB'],
    [5_000_000_000_000, '4656.6 GiB'],
  ] as const) {
    it(`${bytes} bytes: ${want}`, () => expect(formatBytes(bytes)).to.equal(want));
  }
});

describe('tables', () => {
  it('have minimal widths, without trailing space', () => {
    const rows = [
      ['a', '', 'x'],
      ['longer', '1', { text: 'y', style: 'red' as const }],
    ];
    expect(formatTable(['NAME', 'N', 'LAST'], rows, plain)).to.equal(
      'NAME     N   LAST\na        -   x\nlonger   1   y\n',
    );
  });
  it('have the same widths in colour', () => {
    const rows = [[{ text: 'ab', style: 'red' as const }, 'x']];
    expect(formatTable(['A', 'B'], rows, painter(true))).to.equal('A    B\n\u001b[31mab\u001b[0m   x\n');
  });
});

describe('bars', () => {
  for (const [what, counts, total, width, want] of [
    ['no devices', [0, 0], 0, 10, [0, 0]],
    ['half', [5], 10, 10, [5]],
    ['one among thousands is visible', [9_999, 1], 10_000, 10, [9, 1]],
    ['three small parts and a large one', [97, 1, 1, 1], 100, 10, [7, 1, 1, 1]],
    ['all', [10], 10, 10, [10]],
    ['rounded down: full means all', [99], 100, 10, [9]],
  ] as const) {
    it(what, () => expect(shares(counts, total, width)).to.deep.equal(want));
  }
  it('have exactly the requested width', () => {
    for (let total = 1; total < 40; total += 3) {
      for (let first = 0; first <= total; first += 1) {
        const parts = [first, Math.floor((total - first) / 2)].map((count) => ({
          count,
          glyph: ['█', '#'] as const,
          style: undefined,
        }));
        expect(formatBar(parts, total, { width: 7, hasUnicode: false, paint: plain })).to.have.length(9);
      }
    }
  });
  it('show the states of the devices', () => {
    const counts = { eligible: 20, scheduled: 12, succeeded: 4, failed: 1, timedOut: 1, skipped: 2 };
    expect(rolloutBar(rollout({ counts }), 20, view)).to.equal('[####xx-->>>>........]');
  });
  it('are full once the rollout is over, however it ended', () => {
    const ended = (counts: NonNullable<OtaRollout['status']>['counts']) =>
      rolloutBar(rollout({ phase: 'Completed', outcome: 'RolledBack', counts }), 10, view);
    // Two of five devices were on their way when the rollback began, and five were never scheduled.
    expect(ended({ eligible: 10, scheduled: 5, sent: 5, succeeded: 2, failed: 1 })).to.equal('[##x-------]');
    expect(ended({ eligible: 3, scheduled: 3, succeeded: 1, failed: 1, skipped: 1 })).to.equal('[####xxx---]');
    expect(ended({ eligible: 0, scheduled: 0 })).to.equal('[----------]');
    const text = rolloutDetails(rollout({ phase: 'Completed', counts: { eligible: 9, scheduled: 4, sent: 4 } }), view);
    expect(text.join('\n')).to.contain('\n9 left out, 0 failed');
  });
});

describe('a line that is too long for the terminal', () => {
  it('is truncated, ignoring escape sequences', () => {
    expect(cut('abcdef', 3)).to.equal('abc');
    expect(cut('\u001b[31mabc\u001b[0mdef', 4)).to.equal('\u001b[31mabc\u001b[0md');
    expect(cut('░░░░', 2)).to.equal('░░');
  });
});

describe('a rollout', () => {
  for (const [what, status, want] of [
    ['not observed yet', undefined, 'Pending'],
    ['active', { phase: 'Active' }, 'Active'],
    ['succeeded', { phase: 'Completed', outcome: 'Succeeded' }, 'Completed'],
    ['rolled back', { phase: 'Completed', outcome: 'RolledBack' }, 'Completed (RolledBack)'],
    ['cancelled', { phase: 'Completed', outcome: 'Cancelled' }, 'Completed (Cancelled)'],
  ] as const) {
    it(`${what}: ${want}`, () => expect(phaseOf(rollout(status)).text).to.equal(want));
  }

  it('counts every device once', () => {
    const counts = {
      eligible: 10,
      scheduled: 8,
      sent: 6,
      succeeded: 3,
      failed: 1,
      timedOut: 1,
      skipped: 1,
      removed: 1,
    };
    expect(progressOf(rollout({ counts }))).to.deep.equal({
      eligible: 10,
      scheduled: 8,
      succeeded: 3,
      failed: 2,
      skipped: 1,
      underway: 2,
      leftOut: 0,
    });
    expect(progressOf(rollout())).to.include({ eligible: 0, underway: 0 });
  });

  it('is a row, with more columns if wide', () => {
    const counts = { eligible: 10, scheduled: 2, succeeded: 1, failed: 1 };
    const row = rolloutRow(rollout({ phase: 'Active', counts, failurePercent: 50, effectivePercent: 30 }), false, now);
    expect(row.map((cell) => (typeof cell === 'string' ? cell : cell.text))).to.deep.equal([
      'r',
      'Active',
      'p',
      'd',
      '30%',
      '2/10',
      '1',
      '1',
      '50',
      '10m',
    ]);
    expect(rolloutRow(rollout({}, { steps: [{ percent: 100 }] }), true, now)).to.include('20→100');
  });

  for (const [what, status, spec, want] of [
    ['runs', { phase: 'Active' as const }, {}, []],
    ['was paused by a command', paused('OperatorPause'), {}, ['resume']],
    ['waits for approval', paused('StepApproval'), {}, ['approve']],
    ['has an untrusted package', paused('SignatureRequired'), {}, ['trusted']],
    ['failed, without a rollback package', paused('FailureThresholdExceeded'), {}, ['devices', 'resume']],
    [
      'failed',
      paused('FailureThresholdExceeded'),
      { rollbackPackageRef: { name: 'old' } },
      ['devices', 'rollback', 'resume'],
    ],
    ['is held by its manifest', paused('OperatorPause'), { paused: true }, ['manifest']],
  ] as const) {
    it(`that ${what}: ${want.join(', ') || 'no next steps'}`, () => {
      const steps = nextSteps(rollout(status, spec));
      expect(steps).to.have.length(want.length);
      for (const [index, word] of want.entries()) expect(steps[index]).to.contain(word);
    });
  }

  it('shows its stages, marking those that have begun', () => {
    const steps = [
      { percent: 50, soakSeconds: 3600 },
      { percent: 100, approval: true, soakSeconds: 30 },
    ];
    expect(stepsLine(rollout({ effectivePercent: 50 }, { steps }))).to.equal(
      '20%* → 50% (after 60m)* → 100% (after 30s, approved)',
    );
  });

  it('shows who paused it, and when', () => {
    expect(rolloutDetails(rollout(paused('OperatorPause')), view).join('\n')).to.contain(
      'Paused:     OperatorPause, 5m ago, by me',
    );
  });

  it('is one line without a terminal, including the message', () => {
    expect(rolloutLine(rollout({ phase: 'Active', counts: { eligible: 4, scheduled: 2, succeeded: 1 } }))).to.equal(
      'r: Active, 1/4 ok, 0 failed, 2 scheduled',
    );
    const conditions = [
      {
        type: 'ReferencesResolved',
        status: 'False',
        reason: 'NotFound',
        message: 'no package p',
        lastTransitionTime: '',
      },
    ] as const;
    expect(rolloutLine(rollout({ conditions: [...conditions] }))).to.equal(
      'r: Pending, 0/0 ok, 0 failed, 0 scheduled: no package p',
    );
  });
});

describe('the other kinds', () => {
  const resource = (status: object | undefined, generation = 1) => ({
    kind: 'OtaPackage',
    metadata: { name: 'p', generation, creationTimestamp: '2026-01-01T00:00:00Z' },
    spec: { type: 'Firmware', version: '1.0.0', artifact: { uri: 'upload://', sha256: '', sizeBytes: 2048 } },
    ...(status ? { status } : {}),
  });
  const ready = (status: string, observedGeneration = 1) => ({
    observedGeneration,
    conditions: [{ type: 'Ready', status, reason: 'Uploading', message: 'waits', lastTransitionTime: '' }],
  });
  for (const [what, given, want] of [
    ['has not been observed', resource(undefined), 'Unknown'],
    ['is ready', resource(ready('True')), 'True'],
    ['is not ready', resource(ready('False')), 'Uploading'],
    ['was ready before its last change', resource(ready('True', 1), 2), 'Unknown'],
  ] as const) {
    it(`one that ${what}: ${want}`, () => {
      const { cell } = readiness(given);
      expect(typeof cell === 'string' ? cell : cell.text).to.equal(want);
    });
  }
  it('are rows with columns specific to the kind', () => {
    expect(resourceRow('OtaPackage', resource(ready('True')), false, now).slice(0, 3)).to.deep.equal([
      'p',
      'Firmware 1.0.0',
      '2.0 KiB',
    ]);
    const unstated = resource(ready('True'));
    delete (unstated.spec.artifact as { sizeBytes?: number }).sizeBytes;
    expect(resourceRow('OtaPackage', unstated, false, now)[2], 'an undeclared size is not shown as 0').to.equal('');
    const measured = { ...unstated, status: { ...unstated.status, sizeBytes: 3072 } } as Parameters<
      typeof resourceRow
    >[1];
    expect(resourceRow('OtaPackage', measured, false, now)[2]).to.equal('3.0 KiB');
  });
  it('are rows also without optional fields', () => {
    const profile = { kind: 'DeviceProfile', metadata: { name: 'bare' }, spec: {} };
    const row = resourceRow('DeviceProfile', profile, true, now);
    expect(formatTable(['NAME', 'TYPE', 'ANCHORING'], [row.slice(0, 3)], plain)).to.match(/^bare +- +-$/m);
    expect(row).to.not.include(undefined);
  });
});
