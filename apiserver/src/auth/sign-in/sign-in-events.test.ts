import { expect } from 'chai';
import { factsOfFailure, type FailedSignIn } from './sign-in-events.ts';

const origin = { userAgent: 'browser', address: '192.0.2.1', requestId: 'r1' };
const failure: FailedSignIn = {
  factor: { kind: 'password', id: '' },
  accounts: [],
  email: 'ann@acme.test',
  code: 'UNAUTHENTICATED',
};
const ann = { user_id: 'u1', tenant_id: 'acme', email: 'ann@acme.test' };

describe('the events of a failed sign-in', () => {
  it('are in the log of the account’s tenant', () =>
    expect(factsOfFailure({ ...failure, accounts: [ann], email: 'ANN@acme.test' }, origin)).to.deep.equal([
      {
        tenantId: 'acme',
        actor: { kind: 'user', id: 'u1', name: 'ann@acme.test' },
        action: 'auth.login_failed',
        resource: { kind: 'password', id: '' },
        result: 'UNAUTHENTICATED',
        ...origin,
      },
    ]));

  it('do not tell several tenants the address of the client', () => {
    const accounts = [ann, { ...ann, user_id: 'u2', tenant_id: 'other' }];
    const events = factsOfFailure({ ...failure, accounts }, origin);
    expect(events.map(({ tenantId, address, userAgent }) => [tenantId, address, userAgent])).to.deep.equal([
      ['acme', '', ''],
      ['other', '', ''],
    ]);
  });

  it('are in the platform’s log for a platform administrator', () => {
    const [event] = factsOfFailure({ ...failure, accounts: [{ ...ann, tenant_id: null }] }, origin);
    expect(event).to.deep.include({ tenantId: '', actor: { kind: 'platform', id: 'u1', name: 'ann@acme.test' } });
  });

  for (const [email, name] of [
    ['nobody@acme.test', 'nobody@acme.test'],
    ['my secret password', ''],
    ['hunter2', ''],
  ] as const) {
    it(`are in the platform’s log for an unknown account, with the name "${name}"`, () => {
      const [event] = factsOfFailure({ ...failure, email }, origin);
      expect(event).to.deep.include({ tenantId: '', actor: { kind: 'public', id: '', name } });
    });
  }

  it('are in the log of a known tenant without an account', () =>
    expect(factsOfFailure({ ...failure, email: '', tenantId: 'acme' }, origin)[0]).to.include({ tenantId: 'acme' }));
});
