import { setImmediate } from 'node:timers/promises';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { create } from '@bufbuild/protobuf';
import { WindowSchema } from '@kellet/proto/es/kellet/v1/common_pb';
import { expect } from 'chai';
import { afterOpen, insideWindow, nextChange } from './delivery-window.ts';

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
});

describe('the time zones of windows', () => {
  const original = Intl.DateTimeFormat;
  after(() => (Intl.DateTimeFormat = original));

  it('take little memory, although each has countless spellings', async () => {
    const made: WeakRef<Intl.DateTimeFormat>[] = [];
    Intl.DateTimeFormat = function (...given: ConstructorParameters<typeof Intl.DateTimeFormat>) {
      const format = new original(...given);
      made.push(new WeakRef(format));
      return format;
    } as unknown as typeof Intl.DateTimeFormat;
    const capitals = (number: number) =>
      [...'comodrivadavia'].map((letter, place) => ((number >> place) & 1 ? letter.toUpperCase() : letter)).join('');
    for (let number = 0; number < 3000; number += 1) {
      const window = create(WindowSchema, {
        start: '02:00',
        end: '04:00',
        timeZone: `America/Argentina/${capitals(number)}`,
      });
      insideWindow(window, new Date('2026-11-20T03:00:00Z'));
    }
    setFlagsFromString('--expose-gc');
    await setImmediate();
    (runInNewContext('gc') as () => void)();
    expect(made).to.have.length(3000);
    expect(made.filter((format) => format.deref()).length).to.be.within(1, 500);
  });
});

describe('the next change of a window', () => {
  const night = { start: '22:00', end: '02:00' };
  // 2026-11-20 is a Friday.
  const cases: [string, { start: string; end: string; days?: string[]; timeZone?: string }, string, string?][] = [
    ['opens today', { start: '02:00', end: '04:00' }, '2026-11-20T01:30:30Z', '2026-11-20T02:00:00Z'],
    ['closes', { start: '02:00', end: '04:00' }, '2026-11-20T02:00:00Z', '2026-11-20T04:00:00Z'],
    ['opens tomorrow', { start: '02:00', end: '04:00' }, '2026-11-20T04:00:00Z', '2026-11-21T02:00:00Z'],
    ['closes after midnight', night, '2026-11-20T23:10:00Z', '2026-11-21T02:00:00Z'],
    ['opens on its day', { ...night, days: ['thu'] }, '2026-11-20T23:10:00Z', '2026-11-26T22:00:00Z'],
    ['closes the day after', { ...night, days: ['fri'] }, '2026-11-20T23:10:00Z', '2026-11-21T02:00:00Z'],
    ['never', { start: '00:00', end: '00:00' }, '2026-11-20T13:00:00Z'],
    ['a whole day', { start: '00:00', end: '00:00', days: ['sat'] }, '2026-11-20T13:00:00Z', '2026-11-21T00:00:00Z'],
    [
      'in its time zone',
      { start: '02:00', end: '04:00', timeZone: 'Asia/Tokyo' },
      '2026-11-20T12:00:00Z',
      '2026-11-20T17:00:00Z',
    ],
    [
      'across a change of clocks',
      { start: '06:00', end: '07:00', timeZone: 'Europe/Berlin' },
      '2026-03-28T20:00:00Z',
      '2026-03-29T04:00:00Z',
    ],
    [
      'in the next week, if the clocks skip it in this one',
      { start: '02:15', end: '02:45', days: ['sun'], timeZone: 'Europe/Berlin' },
      '2026-03-22T02:00:00Z',
      '2026-04-05T00:15:00Z',
    ],
  ];
  for (const [name, window, now, want] of cases) {
    it(name, () => {
      const change = nextChange(create(WindowSchema, window), new Date(now));
      expect(change?.toISOString()).to.equal(want && new Date(want).toISOString());
    });
  }
});

describe('the time that a window takes', () => {
  const hour = 3_600_000;
  const two = create(WindowSchema, { start: '02:00', end: '04:00' });
  const from = new Date('2026-11-20T03:00:00Z');
  for (const [hours, want] of [
    [0, '2026-11-20T03:00:00Z'],
    [1, '2026-11-20T04:00:00Z'],
    [2, '2026-11-21T03:00:00Z'],
    [3, '2026-11-21T04:00:00Z'],
    [14 * 1000, '2046-01-19T03:00:00Z'],
  ] as const) {
    it(`for ${hours} hours ends at ${want}`, () =>
      expect(afterOpen(two, from, hours * hour).toISOString()).to.equal(new Date(want).toISOString()));
  }
  it('goes on across a week in which the clocks skip it', () => {
    const skipped = create(WindowSchema, { start: '02:15', end: '02:45', days: ['sun'], timeZone: 'Europe/Berlin' });
    const opens = new Date('2026-03-22T01:15:00Z');
    expect(afterOpen(skipped, opens, hour).toISOString()).to.equal('2026-04-05T00:45:00.000Z');
    expect(afterOpen(skipped, opens, 52 * hour).getTime()).to.be.above(opens.getTime());
  });
  it('is short to work out', () => {
    const started = Date.now();
    afterOpen(create(WindowSchema, { start: '02:00', end: '02:01' }), from, 4_000_000 * 60_000);
    expect(Date.now() - started).to.be.lessThan(500);
  });
});
