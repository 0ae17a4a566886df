import { expect } from 'chai';
import { age, count, dateTime, duration, measure, percent, plain, short, words } from './format.ts';

const now = Date.parse('2026-11-23T12:00:00Z');

describe('the text', () => {
  for (const [time, text] of [
    [undefined, 'never'],
    ['', 'never'],
    ['nonsense', 'never'],
    ['2026-11-23T12:00:30Z', 'just now'],
    ['2026-11-23T11:59:56Z', 'just now'],
    ['2026-11-23T11:59:30Z', '30 s ago'],
    ['2026-11-23T11:01:00Z', '59 min ago'],
    ['2026-11-22T13:00:00Z', '23 h ago'],
    ['2026-11-21T12:00:00Z', '2 days ago'],
  ] as const) {
    it(`of the age of ${time} is ${text}`, () => expect(age(time, now)).to.equal(text));
  }

  for (const [seconds, text] of [
    [0, '0 s'],
    [119, '119 s'],
    [600, '10 min'],
    [7200, '2 h'],
    [7500, '2 h 5 min'],
    [86_400 * 3, '3 days'],
  ] as const) {
    it(`of ${seconds} s is ${text}`, () => expect(duration(seconds)).to.equal(text));
  }

  it('of numbers has separators, and at most six significant digits', () => {
    expect(count(100_000, 'en')).to.equal('100,000');
    expect(measure(21.123456789, 'en')).to.equal('21.1235');
    expect(measure(0.1 + 0.2, 'en')).to.equal('0.3');
    expect(percent(12.34, 'en')).to.equal('12.3 %');
  });

  it('of times is in the time zone of the reader', () => {
    expect(dateTime('2026-11-23T12:00:00Z', 'en', 'Asia/Tokyo')).to.match(/Nov 23, 2026.*9:00:00/);
    expect(dateTime(undefined)).to.equal('–');
  });

  it('of names, ids and JSON is readable', () => {
    expect(words('rolling_back')).to.equal('rolling back');
    expect(short('0123456789abcdef0123456789abcdef')).to.equal('01234567…abcdef');
    expect(short('station-01')).to.equal('station-01');
    expect(plain('a "quoted" text')).to.equal('a "quoted" text');
    expect(plain({ a: [1, null] })).to.equal('{"a":[1,null]}');
    expect(plain(undefined)).to.equal('');
  });
});
