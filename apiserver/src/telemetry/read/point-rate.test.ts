import { expect } from 'chai';
import { Rates } from './point-rate.ts';

const minute = 60_000;
/** The beginning of a minute. */
const start = 29_000_000 * minute;

describe('rates of points', () => {
  const cases: { name: string; added: [key: string, points: number, at: number][]; at: number; want: number }[] = [
    { name: 'nothing', added: [], at: 0, want: 0 },
    { name: 'points of another key', added: [['b', 60, 0]], at: 0, want: 0 },
    {
      name: 'points of this minute',
      added: [
        ['a', 20, 0],
        ['a', 40, 30_000],
      ],
      at: 59_999,
      want: 1,
    },
    { name: 'points of the last minute, at the beginning of this one', added: [['a', 60, 0]], at: minute, want: 1 },
    { name: 'half of the last minute in the middle of this one', added: [['a', 60, 0]], at: 1.5 * minute, want: 0.5 },
    {
      name: 'both minutes',
      added: [
        ['a', 60, 0],
        ['a', 30, minute],
      ],
      at: 1.5 * minute,
      want: 1,
    },
    { name: 'nothing of two minutes ago', added: [['a', 60, 0]], at: 2 * minute, want: 0 },
    {
      name: 'points of this minute after the clock was put back a little, into the last one',
      added: [['a', 60, minute]],
      at: minute - 1,
      want: 1,
    },
    { name: 'nothing of a minute from which the clock was put back', added: [['a', 60, 5 * minute]], at: 0, want: 0 },
    {
      name: 'points since the clock was put back',
      added: [
        ['a', 60, 5 * minute],
        ['a', 120, 0],
      ],
      at: 1000,
      want: 2,
    },
  ];
  for (const { name, added, at, want } of cases) {
    it(`count ${name}`, () => {
      const rates = new Rates();
      for (const [key, points, when] of added) rates.add(key, points, start + when);
      expect(rates.perSecond('a', start + at)).to.equal(want);
    });
  }

  it('have a limited number of counters, which the next minute frees', () => {
    const rates = new Rates();
    for (let device = 0; device <= 200_000; device += 1) rates.add(`acme/${device}`, 60, start);
    expect(rates.perSecond('acme/199999', start)).to.equal(1);
    expect(rates.perSecond('acme/200000', start)).to.equal(0);
    rates.add('acme/200000', 60, start + minute);
    expect(rates.perSecond('acme/200000', start + minute)).to.equal(1);
  });
});
