import { expect } from 'chai';
import { KelletError } from '../../platform/errors.ts';
import { maximumStreams, OpenStreams } from './open-streams.ts';

describe('the open streams of a process', () => {
  const device = (deviceId: string, tenantId = 'acme') => ({ kind: 'device', tenantId, deviceId }) as const;
  const user = (tenantId = 'acme') => ({ kind: 'user', tenantId, deviceId: '' }) as const;
  const cases = [
    ['a device', device('a'), maximumStreams.ofDevice, [device('b'), device('a', 'other'), user()]],
    ['users and services of a tenant', user(), maximumStreams.ofOthers, [user('other'), device('a')]],
  ] as const;
  for (const [what, caller, most, others] of cases) {
    it(`are limited for ${what}, and for no others because of that`, () => {
      const streams = new OpenStreams();
      const leaves = Array.from({ length: most }, () => streams.enter(caller));
      expect(() => streams.enter(caller)).to.throw(KelletError, `at most ${most} streams`);
      for (const other of others) streams.enter(other);
      leaves[0]!();
      streams.enter(caller);
      expect(() => streams.enter(caller)).to.throw(KelletError);
      for (const leave of leaves.slice(1)) leave();
      streams.enter(caller);
    });
  }
});
