import { create } from '@bufbuild/protobuf';
import { WindowSchema } from '@kellet/proto/es/kellet/v1/common_pb';
import { expect } from 'chai';
import { insideWindow, judgeCommand, mayDeliver } from './delivery.ts';

describe('delivery windows', () => {
  // 2026-11-20 is a Friday.
  const cases: [string, { start: string; end: string; days?: string[]; timeZone?: string }, string, boolean][] = [
    ['inside', { start: '02:00', end: '04:00' }, '2026-11-20T03:00:00Z', true],
    ['at the start', { start: '02:00', end: '04:00' }, '2026-11-20T02:00:00Z', true],
    ['at the end', { start: '02:00', end: '04:00' }, '2026-11-20T04:00:00Z', false],
    ['before midnight', { start: '22:00', end: '02:00' }, '2026-11-20T23:00:00Z', true],
    ['after midnight', { start: '22:00', end: '02:00' }, '2026-11-20T01:59:00Z', true],
    ['between nights', { start: '22:00', end: '02:00' }, '2026-11-20T12:00:00Z', false],
    ['a named day', { start: '02:00', end: '04:00', days: ['fri'] }, '2026-11-20T03:00:00Z', true],
    ['another day', { start: '02:00', end: '04:00', days: ['sat'] }, '2026-11-20T03:00:00Z', false],
    [
      'the night belongs to its first day',
      { start: '22:00', end: '02:00', days: ['fri'] },
      '2026-11-21T01:00:00Z',
      true,
    ],
    ['and not to the next', { start: '22:00', end: '02:00', days: ['sat'] }, '2026-11-21T01:00:00Z', false],
    ['Sunday night into Monday', { start: '22:00', end: '02:00', days: ['sat'] }, '2026-11-22T01:00:00Z', true],
    ['in its time zone', { start: '02:00', end: '04:00', timeZone: 'Asia/Tokyo' }, '2026-11-20T18:00:00Z', true],
    [
      'across a change of clocks',
      { start: '02:30', end: '04:00', timeZone: 'Europe/Berlin' },
      '2026-03-29T01:10:00Z',
      true,
    ],
    ['the whole day', { start: '00:00', end: '00:00' }, '2026-11-20T13:00:00Z', true],
  ];
  for (const [name, window, now, want] of cases) {
    it(name, () => expect(insideWindow(create(WindowSchema, window), new Date(now))).to.equal(want));
  }

  const noon = new Date('2026-11-20T12:00:00Z');
  const closed = create(WindowSchema, { start: '02:00', end: '04:00' });
  const phases: [string, Parameters<typeof mayDeliver>[0], boolean][] = [
    ['an active rollout', { phase: 'active', outcome: '', window: undefined }, true],
    ['an active rollout outside its window', { phase: 'active', outcome: '', window: closed }, false],
    ['a paused rollout', { phase: 'paused', outcome: '', window: undefined }, false],
    ['a rollback outside the window', { phase: 'rolling_back', outcome: '', window: closed }, true],
    ['a finished rollback', { phase: 'completed', outcome: 'rolled_back', window: closed }, true],
    ['a finished rollout', { phase: 'completed', outcome: 'succeeded', window: undefined }, false],
    ['a cancelled rollout', { phase: 'completed', outcome: 'cancelled', window: undefined }, false],
  ];
  for (const [name, rollout, want] of phases) {
    it(`${want ? 'delivers' : 'holds'} the commands of ${name}`, () =>
      expect(mayDeliver(rollout, noon)).to.equal(want));
  }
});

describe('a rollout’s command that may be handed out', () => {
  type Given = [commandStatus: string, deviceState: string | undefined, sameCommand: boolean, isRollingBack?: boolean];
  const cases: [string, Given, string][] = [
    ['is delivered to a scheduled device', ['scheduled', 'scheduled', true], 'deliver'],
    ['is delivered again to a silent device', ['sent', 'sent', true], 'deliver'],
    ['is held from a device that reports progress', ['sent', 'downloading', true], 'hold'],
    ['is delivered first to a device that began by itself', ['scheduled', 'downloading', true], 'deliver'],
    ['is delivered to a device that timed out on its way back', ['scheduled', 'timed_out', true], 'deliver'],
    ['is withdrawn from a device with a newer command', ['sent', 'scheduled', false], 'withdraw'],
    ['is withdrawn from a device that left the rollout', ['sent', undefined, false], 'withdraw'],
    ['is withdrawn once the rollout rolls back', ['scheduled', 'scheduled', true, true], 'withdraw'],
    ['is not delivered again once the rollout rolls back', ['sent', 'sent', true, true], 'withdraw'],
  ];
  for (const [name, [status, state, isSame, isRollingBack = false], want] of cases) {
    it(name, () => {
      const device =
        state === undefined ? undefined : { state, correlation_id: isSame ? 'c1' : 'c2', rolling_back: false };
      expect(judgeCommand({ correlation_id: 'c1', status }, device, isRollingBack)).to.equal(want);
    });
  }
});
