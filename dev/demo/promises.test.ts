import { expect } from 'chai';
import { Promises } from './promises.ts';

describe('table of promises', () => {
  const make = () => new Promises({ first: 'points are kept', second: 'pauses' });

  it('treats an unobserved promise as broken', () => {
    const promises = make();
    promises.observe('first', true, '5 of 5');
    expect(promises.areKept).to.equal(false);
    expect(promises.table().split('\n')).to.deep.equal([
      'promise          observed',
      'points are kept  5 of 5       ok',
      'pauses           not reached  NOT OK',
    ]);
  });

  it('is kept if all promises are', () => {
    const promises = make();
    promises.observe('first', true, '5 of 5');
    promises.observe('second', false, 'active');
    expect(promises.areKept).to.equal(false);
    promises.observe('second', true, 'paused');
    expect(promises.areKept).to.equal(true);
  });
});
