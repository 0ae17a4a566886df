import { expect } from 'chai';
import { seededRandom } from '../testing/test-values.ts';
import {
  fromDocument,
  LatestBuilder,
  type LatestDocument,
  mergeLatest,
  mergePoint,
  noLatestValues,
  removeOldest,
  toDocument,
} from './latest-values.ts';

const point = (numericValues: Record<string, number>, stringValues: Record<string, string> = {}) => ({
  numericValues,
  stringValues,
});
const read = (latest: ReturnType<typeof noLatestValues>) => JSON.parse(toDocument(latest)) as LatestDocument;

/** Returns the values of a builder's points. */
const latestOf = (builder: LatestBuilder) => {
  const values = noLatestValues();
  builder.mergeInto(values);
  return values;
};

describe('latest values', () => {
  it('keep the newest value of each key, whatever the order of arrival', () => {
    const latest = noLatestValues();
    mergePoint(latest, point({ a: 2, b: 2 }, { s: 'new' }), 20n);
    mergePoint(latest, point({ a: 1, c: 1 }, { s: 'old' }), 10n);
    expect(read(latest)).to.deep.equal({
      time: '20',
      numeric: { a: [2, '20'], b: [2, '20'], c: [1, '10'] },
      string: { s: ['new', '20'] },
    });
  });

  it('keep the later arrival of two values with the same time', () => {
    const latest = noLatestValues();
    mergePoint(latest, point({ a: 1 }), 10n);
    mergePoint(latest, point({ a: 2 }), 10n);
    expect(read(latest).numeric.a).to.deep.equal([2, '10']);
  });

  it('lose the oldest once they take too much memory', () => {
    const latest = noLatestValues();
    mergePoint(latest, point({ a: 1 }, { s: 'x'.repeat(100) }), 30n);
    mergePoint(latest, point({ b: 1 }, { t: 'x'.repeat(100) }), 10n);
    mergePoint(latest, point({ c: 1 }), 20n);
    removeOldest(latest, 10_000);
    expect(read(latest)).to.have.nested.property('string.t');
    removeOldest(latest, 700);
    expect(Object.keys({ ...read(latest).numeric, ...read(latest).string })).to.deep.equal(['a', 'c', 's']);
  });

  it('take a bounded number of bytes, although each point has other keys', () => {
    const builder = new LatestBuilder();
    let most = 0;
    for (let n = 0; n < 300; n += 1) {
      const values = Object.fromEntries(Array.from({ length: 256 }, (_, index) => [`key-${n}-${index}`, n]));
      builder.add({ ...point(values), time: BigInt(n), payload: JSON.stringify(values) });
      most = Math.max(most, builder.bytes);
    }
    expect(most).to.be.within(1024 * 1024, 5 * 1024 * 1024);
    expect([...latestOf(builder).numeric.keys()])
      .to.include.members(['key-299-0', 'key-298-0', 'key-290-255'])
      .and.not.include('key-0-0');
  });

  it('merge key by key', () => {
    const stored = fromDocument({ time: '30', numeric: { a: [3, '30'], b: [1, '5'] }, string: {} });
    const later = noLatestValues();
    mergePoint(later, point({ a: 2, b: 2 }), 20n);
    mergeLatest(stored, later);
    expect(read(stored)).to.deep.equal({ time: '30', numeric: { a: [3, '30'], b: [2, '20'] }, string: {} });
  });

  it('keep a key named __proto__ and times beyond 2^53', () => {
    const latest = noLatestValues();
    mergePoint(
      latest,
      JSON.parse('{"numericValues":{"__proto__":7},"stringValues":{}}') as never,
      1795264200123456789n,
    );
    const text = toDocument(latest);
    expect(text).to.contain('"__proto__":[7,"1795264200123456789"]');
    expect(toDocument(fromDocument(JSON.parse(text) as LatestDocument))).to.equal(text);
  });
});

describe('LatestBuilder', () => {
  it('equals merging point by point, for any order of times and keys', () => {
    const random = seededRandom(11);
    const forms = new Map<string, object>();
    for (let round = 0; round < 1000; round += 1) {
      const builder = new LatestBuilder();
      const expected = noLatestValues();
      for (let count = 0; count < 12; count += 1) {
        const keys = ['a', 'b', 'c'].filter(() => random() < 0.7);
        const values = point(
          Object.fromEntries(keys.map((key) => [key, count])),
          random() < 0.5 ? { s: `${count}` } : {},
        );
        const time = BigInt(Math.floor(random() * 6));
        // As the kernel does, for some of the points.
        const isNamed = random() < 0.5;
        const form = [...keys, '/', ...Object.keys(values.stringValues)].join();
        const names = forms.get(form) ?? {};
        forms.set(form, names);
        builder.add({ ...values, time, payload: '', ...(isNamed && { names }) });
        mergePoint(expected, values, time);
        if (random() < 0.2) latestOf(builder);
      }
      expect(sorted(latestOf(builder))).to.deep.equal(sorted(expected));
    }
  });

  it('equals merging point by point after another builder is put before it', () => {
    const random = seededRandom(12);
    const make = (first: number) => {
      const points = Array.from({ length: 1 + Math.floor(random() * 3) }, (_, n) => {
        const keys = ['a', 'b'].filter(() => random() < 0.7);
        const numericValues = Object.fromEntries(keys.map((key) => [key, first + n]));
        return { ...point(numericValues), time: BigInt(Math.floor(random() * 4)), payload: 'p' };
      });
      const builder = new LatestBuilder();
      for (const one of points) builder.add(one);
      return { points, builder };
    };
    let singles = 0;
    for (let round = 0; round < 1000; round += 1) {
      const [earlier, later] = [make(0), make(100)];
      const expected = noLatestValues();
      for (const one of [...earlier.points, ...later.points]) mergePoint(expected, one, one.time);
      later.builder.addBefore(earlier.builder);
      expect(sorted(latestOf(later.builder))).to.deep.equal(sorted(expected));
      if (!later.builder.parts.older) singles += 1;
    }
    expect(singles, 'replaced whole').to.be.greaterThan(10);
  });
});

const sorted = (latest: ReturnType<typeof noLatestValues>) => {
  const { time, numeric, string } = read(latest);
  return { time, numeric: Object.entries(numeric).sort(), string: Object.entries(string).sort() };
};
