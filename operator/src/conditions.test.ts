import type { Condition } from '@kellet/crds';
import { expect } from 'chai';
import { fails, type Finding, holds, kubernetesTime, toConditions, unknown, withReady } from './conditions.ts';
import { meaningOf, refusalFindings } from './refusals.ts';

describe('withReady', () => {
  const ready = { reason: 'Synced', message: 'fine' };
  const cases: [string, Finding[], string][] = [
    ['all are True', [holds('Accepted', 'A'), holds('Synced', 'S')], 'True Synced'],
    ['one is False', [holds('Accepted', 'A'), fails('Synced', 'Broken', 'x')], 'False Broken'],
    ['unknown, then failing', [unknown('Accepted', 'U', ''), fails('Synced', 'Broken', 'x')], 'False Broken'],
    ['unknown', [unknown('Accepted', 'U', ''), holds('Synced', 'S')], 'Unknown U'],
    ['no findings', [], 'True Synced'],
  ];
  for (const [name, findings, want] of cases) {
    it(`${name}: ${want}`, () => {
      const summary = withReady(findings, ready).at(-1)!;
      expect(summary.type).to.equal('Ready');
      expect(`${summary.status} ${summary.reason}`).to.equal(want);
    });
  }
  it('skips ignored types', () => {
    expect(withReady([fails('Degraded', 'X', '')], ready, ['Degraded']).at(-1)!.status).to.equal('True');
  });
});

describe('toConditions', () => {
  const before: Condition[] = [
    {
      type: 'Synced',
      status: 'True',
      reason: 'Old',
      message: '',
      lastTransitionTime: '2026-01-01T00:00:00Z',
      observedGeneration: 1,
    },
    { type: 'Stalled', status: 'True', reason: 'Old', message: '', lastTransitionTime: '2026-01-01T00:00:00Z' },
  ];
  it('keeps the transition time while the status is unchanged, and drops conditions without a finding', () => {
    const now = Date.parse('2026-02-01T00:00:00.999Z');
    const same = toConditions(before, [holds('Synced', 'New', 'm')], 2, now);
    expect(same).to.deep.equal([
      {
        type: 'Synced',
        status: 'True',
        reason: 'New',
        message: 'm',
        lastTransitionTime: '2026-01-01T00:00:00Z',
        observedGeneration: 2,
      },
    ]);
    expect(toConditions(before, [fails('Synced', 'New', 'm')], 2, now)[0]!.lastTransitionTime).to.equal(
      '2026-02-01T00:00:00Z',
    );
  });
  it('truncates messages to the length allowed by the schema', () => {
    expect(toConditions(undefined, [fails('A', 'B', 'x'.repeat(9999))], 1, 0)[0]!.message).to.have.length(2048);
  });
  it('formats times in whole seconds', () => expect(kubernetesTime(1999)).to.equal('1970-01-01T00:00:01Z'));
});

describe('refusalFindings', () => {
  const aspects = ['Accepted', 'ReferencesResolved', 'Synced'];
  const found = (reason: string): string[] =>
    refusalFindings({ reason, message: 'why' }, aspects).map((f) => `${f.type} ${f.status} ${f.reason}`);
  it('marks earlier aspects True, the refused one False, and later ones Unknown', () => {
    expect(found('ReferenceNotFound')).to.deep.equal([
      'Accepted True Accepted',
      'ReferencesResolved False ReferenceNotFound',
      'Synced Unknown Refused',
    ]);
  });
  it('reports an aspect that the kind does not have as not accepted', () => {
    expect(found('ChecksumMismatch')[0]).to.equal('Accepted False ChecksumMismatch');
  });
  it('handles unknown and malformed reasons', () => {
    expect(found('SomethingNew')[0]).to.equal('Accepted False SomethingNew');
    expect(found('not a reason')[0]).to.equal('Accepted False Refused');
  });
  it('retries refusals that may resolve without a change of the resource', () => {
    expect(meaningOf({ reason: 'FetchFailed', message: '' })).to.deep.include({
      final: false,
      retryMilliseconds: 30_000,
    });
    expect(meaningOf({ reason: 'InvalidSpec', message: '' })).to.deep.equal({ aspect: 'Accepted', final: true });
    expect(meaningOf({ reason: 'SomethingNew', message: '' }).retryMilliseconds).to.be.greaterThan(0);
  });
});
