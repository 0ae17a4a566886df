import { expect } from 'chai';
import { tenantPayload } from '../../auth/credentials/revocations.ts';
import { newId } from '../../platform/ids.ts';
import { type Caller, publicCaller } from '../../platform/rpc.ts';
import { RememberedIdentities } from './remembered-identities.ts';

describe('Remembered identities', () => {
  const until = 1;
  const remember = (identities: RememberedIdentities, hash: string, caller: Partial<Caller>): void =>
    identities.set(hash, {
      identity: { caller: { ...publicCaller, credentialHash: hash, ...caller }, rateLimitPerMinute: 0 },
      until,
    });
  const grants = () =>
    Array.from({ length: 20 }, () => ({
      scopes: ['telemetry:read', 'devices:read'],
      deviceGroupIds: Array.from({ length: 20 }, newId),
    }));

  it('of users with many device groups take a bounded number of bytes', () => {
    const identities = new RememberedIdentities();
    remember(identities, 'device', { tenantId: 'other', kind: 'device' });
    const own = identities.bytes;
    expect(own).to.be.below(2000);
    for (let n = 0; n < 4000; n += 1) {
      remember(identities, `user ${n}`, { tenantId: 'acme', limitedGrants: grants() });
      // One that is in use stays.
      if (n % 100 === 0) expect(identities.get('device')).not.to.equal(undefined);
    }
    expect(identities.bytes).to.be.within(60 * 2 ** 20, 64 * 2 ** 20);
    expect([identities.get('user 0'), identities.get('user 3999')?.until]).to.deep.equal([undefined, until]);
    identities.forget(tenantPayload('acme'));
    expect(identities.bytes).to.equal(own);
    identities.forget('*');
    expect(identities.bytes).to.equal(0);
  });
});
