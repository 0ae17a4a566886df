import { expect } from 'chai';
import { formatNanoseconds, parseTimestamp, toNanoseconds } from './timestamp.ts';

describe('parseTimestamp', () => {
  const good: [string, number, number][] = [
    ['1970-01-01T00:00:00Z', 0, 0],
    ['2024-02-29T23:59:59.123456789Z', Date.UTC(2024, 1, 29, 23, 59, 59) / 1000, 123456789],
    ['2000-02-29T12:00:00.5Z', Date.UTC(2000, 1, 29, 12) / 1000, 500000000],
    ['2026-11-21T12:30:00+05:30', Date.UTC(2026, 10, 21, 7) / 1000, 0],
    ['2026-12-31T23:00:00.000001-01:00', Date.UTC(2027, 0, 1) / 1000, 1000],
    ['2026-01-01t00:00:00z', Date.UTC(2026, 0, 1) / 1000, 0],
    ['1969-12-31T23:59:59Z', -1, 0],
    ['1969-12-31T23:59:59-00:01', 59, 0],
  ];
  for (const [text, seconds, nanoseconds] of good) {
    it(`reads ${text}`, () => expect(parseTimestamp(text)).to.deep.equal({ seconds, nanoseconds }));
  }

  const bad = [
    '',
    'yesterday',
    '2026-11-21',
    '2026-11-21T12:30:00',
    '2026-11-21 12:30:00Z',
    '2026-13-01T00:00:00Z',
    '2026-00-01T00:00:00Z',
    '2023-02-29T00:00:00Z',
    '1900-02-29T00:00:00Z',
    '2026-11-31T00:00:00Z',
    '2026-11-21T24:00:00Z',
    '2026-11-21T12:60:00Z',
    '2026-11-21T12:30:60Z',
    '2026-11-21T12:30:00.Z',
    '2026-11-21T12:30:00.1234567890Z',
    '2026-11-21T12:30:00+0530',
    '2026-11-21T12:30:00+24:00',
    '2026-11-21T12:30:00Zjunk',
    '2026-11-21T12:3x:00Z',
    '+026-11-21T12:30:00Z',
    '2026/11/21T12:30:00Z',
  ];
  for (const text of bad) it(`rejects ${JSON.stringify(text)}`, () => expect(parseTimestamp(text)).to.equal(undefined));

  it('agrees with Date on every day of four centuries', () => {
    for (let day = 0; day < 146097; day += 1) {
      const text = new Date(day * 86400_000).toISOString();
      expect(parseTimestamp(text)!.seconds).to.equal(day * 86400);
    }
  });
});

describe('formatNanoseconds', () => {
  for (const text of [
    '1970-01-01T00:00:00Z',
    '2026-11-21T12:30:00.500Z',
    '2026-11-21T12:30:00.000001Z',
    '2026-11-21T12:30:00.123456789Z',
    '2026-11-21T12:30:00.100000001Z',
  ]) {
    it(`formats ${text} as it was parsed`, () =>
      expect(formatNanoseconds(toNanoseconds(parseTimestamp(text)!))).to.equal(text));
  }
});
