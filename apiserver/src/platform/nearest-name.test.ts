import { expect } from 'chai';
import { nearestName } from './nearest-name.ts';

describe('nearestName', () => {
  const names = ['rest-port', 'grpc-port', 'log-level', 'hot-hours'];
  for (const [given, want] of [
    ['rest-prot', 'rest-port'],
    ['restport', 'rest-port'],
    ['grcp-port', 'grpc-port'],
    ['loglevl', 'log-level'],
    ['hot-hour', 'hot-hours'],
    ['hot-hours', 'hot-hours'],
    ['', 'rest-port'],
    [`hot-hours${'x'.repeat(100_000)}`, 'hot-hours'],
  ] as const) {
    it(`finds ${want} for ${JSON.stringify(given.slice(0, 12))}`, () =>
      expect(nearestName(given, names)).to.equal(want));
  }

  it('counts two swapped letters as one change', () => expect(nearestName('ba', ['cc', 'ab', 'bcd'])).to.equal('ab'));
});
