import { create } from '@bufbuild/protobuf';
import { WindowSchema } from '@kellet/proto/es/kellet/control/v1/control_pb';
import { expect } from 'chai';
import { insideWindow, mayDeliver } from './delivery.ts';

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

  it('holds commands of a paused rollout, and never a way back', () => {
    const now = new Date('2026-11-20T12:00:00Z');
    const closed = create(WindowSchema, { start: '02:00', end: '04:00' });
    expect(mayDeliver({ phase: 'active', window: undefined }, now)).to.equal(true);
    expect(mayDeliver({ phase: 'active', window: closed }, now)).to.equal(false);
    expect(mayDeliver({ phase: 'paused', window: undefined }, now)).to.equal(false);
    expect(mayDeliver({ phase: 'rolling_back', window: closed }, now)).to.equal(true);
    expect(mayDeliver({ phase: 'completed', window: undefined }, now)).to.equal(false);
  });
});
