import { expect } from 'chai';
import { MovableClock } from '../../auth/testing/test-platform.ts';
import { KelletError } from '../../platform/errors.ts';
import { ClaimThrottle } from './claim-throttle.ts';

describe('throttle of refused claims', () => {
  const [one, two] = [Buffer.from('one'), Buffer.from('two')];
  const isLimited = (throttle: ClaimThrottle, key: Buffer, address: string): boolean => {
    try {
      throttle.check(key, address);
      return false;
    } catch (error) {
      expect(error).to.be.instanceOf(KelletError).and.include({ code: 'RESOURCE_EXHAUSTED' });
      expect((error as KelletError).retryAfterSeconds).to.be.greaterThan(0);
      return true;
    }
  };

  it('limits a key from one address, until some time has passed', () => {
    const clock = new MovableClock();
    const throttle = new ClaimThrottle(clock);
    for (let count = 0; count < 100; count += 1) {
      expect(isLimited(throttle, one, '192.0.2.1')).to.equal(false);
      throttle.refused(one, '192.0.2.1');
    }
    expect(isLimited(throttle, one, '192.0.2.1')).to.equal(true);
    expect(isLimited(throttle, two, '192.0.2.1')).to.equal(false);
    expect(isLimited(throttle, one, '192.0.2.2')).to.equal(false);
    clock.advance(1000);
    expect(isLimited(throttle, one, '192.0.2.1')).to.equal(false);
  });

  it('limits an address that tries many keys, and its whole IPv6 network', () => {
    const throttle = new ClaimThrottle(new MovableClock());
    for (let count = 0; count < 1000; count += 1) throttle.refused(Buffer.from(String(count)), `2001:db8::${count}`);
    expect(isLimited(throttle, one, '2001:db8::ffff')).to.equal(true);
    expect(isLimited(throttle, one, '2001:db8:0:1::1')).to.equal(false);
  });
});
