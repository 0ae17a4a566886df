import { expect } from 'chai';
import {
  fromDocument,
  mergeLatest,
  mergePoint,
  noLatestValues,
  toDocument,
  type LatestDocument,
} from './latest-values.ts';

const point = (numericValues: Record<string, number>, stringValues: Record<string, string> = {}) => ({
  numericValues,
  stringValues,
});
const read = (latest: ReturnType<typeof noLatestValues>) => JSON.parse(toDocument(latest)) as LatestDocument;

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

  it('keep what arrived later of two values of one time', () => {
    const latest = noLatestValues();
    mergePoint(latest, point({ a: 1 }), 10n);
    mergePoint(latest, point({ a: 2 }), 10n);
    expect(read(latest).numeric.a).to.deep.equal([2, '10']);
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
