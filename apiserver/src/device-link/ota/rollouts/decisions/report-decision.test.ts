import { expect } from 'chai';
import { mayMove, reportedState, stateOnWayBack } from './report-decision.ts';

describe('the meaning of a report', () => {
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
    for (const [from, to, want] of table) expect(mayMove(from, to, false), `${from} → ${to}`).to.equal(want);
    expect(mayMove('skipped', 'successful', true), 'after a cancellation').to.equal(true);
    expect(mayMove('failure', 'successful', true), 'after a cancellation').to.equal(false);
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
