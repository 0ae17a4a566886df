import { expect } from 'chai';
import { AuditTrail } from '../../platform/audit/audit-trail.ts';
import { systemClock } from '../../platform/clock.ts';
import { createLogger } from '../../platform/observability/logger.ts';
import { createMetrics } from '../../platform/observability/metrics.ts';
import { createTestDatabase } from '../../platform/testing/test-database.ts';
import { insertTenant } from '../testing/test-fixtures.ts';
import { factsOfFailure, type FailedSignIn, SignInEvents } from './sign-in-events.ts';

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

  it('leave room for others when a stranger repeats attempts that are refused unseen', async () => {
    const test = await createTestDatabase();
    await insertTenant(test.database, 'acme');
    // One minute, however long the test takes.
    const clock = { ...systemClock, now: () => 60_000 };
    const parts = { database: test.database, clock, logger: createLogger('silent'), metrics: createMetrics() };
    const trail = new AuditTrail(parts);
    const events = new SignInEvents(trail);
    for (let n = 0; n < 7; n += 1) events.failed({ ...failure, accounts: [ann] }, origin);
    for (let n = 0; n < 1100; n += 1)
      events.failed({ ...failure, accounts: [ann], code: 'RESOURCE_EXHAUSTED' }, origin);
    trail.note(factsOfFailure({ ...failure, accounts: [{ ...ann, user_id: 'u2' }] }, origin)[0]!);
    await trail.close();
    const { rows } = await test.database.system((tx) =>
      tx.query<{ n: number; result: string; actor: string }>(
        `SELECT count(*)::int4 AS n, result, actor_id AS actor FROM audit_pending WHERE tenant_id = 'acme'
         GROUP BY result, actor_id ORDER BY 3, 2`,
      ),
    );
    expect(rows).to.deep.equal([
      { n: 1, result: 'RESOURCE_EXHAUSTED', actor: 'u1' },
      { n: 7, result: 'UNAUTHENTICATED', actor: 'u1' },
      { n: 1, result: 'UNAUTHENTICATED', actor: 'u2' },
    ]);
    await test.drop();
  });
});
