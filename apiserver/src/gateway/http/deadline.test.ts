import { expect } from 'chai';
import { timeoutMilliseconds, withinDeadline } from './deadline.ts';

describe('grpc-timeout', () => {
  for (const [header, milliseconds] of [
    ['1H', 3_600_000],
    ['2M', 120_000],
    ['3S', 3000],
    ['40m', 40],
    ['5000u', 5],
    ['99999999n', 99.999999],
    ['0S', 0],
  ] as const) {
    it(`reads ${header}`, () => expect(timeoutMilliseconds(header)).to.be.closeTo(milliseconds, 1e-9));
  }
  for (const header of ['', '1', 'S', '1s', '-1S', '1.5S', '100000000S', '1S ', '1 S']) {
    it(`rejects ${JSON.stringify(header)}`, () =>
      expect(() => timeoutMilliseconds(header)).to.throw('grpc-timeout must be'));
  }

  it('ends only the call whose deadline has passed', async () => {
    let aborted = 0;
    const abort = () => (aborted += 1);
    expect(await withinDeadline(Date.now() + 2 ** 40, abort, async () => 'response')).to.equal('response');
    const late = withinDeadline(Date.now() + 20, abort, () => new Promise(() => undefined));
    const error = await late.catch((thrown: unknown) => thrown);
    expect(error).to.include({ code: 'DEADLINE_EXCEEDED' });
    expect(aborted).to.equal(1);
  });
});
