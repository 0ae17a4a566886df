// How many users and keys a tenant or a device may have, and what is deleted of those that have ended, and of attempts to sign in.
import { User_Role } from '@kellet/proto/es/kellet/v1/auth_pb';
import { expect } from 'chai';
import { unknownGroups } from '../device-registry/devices/group-members.ts';
import type { Transaction } from '../platform/database/database.ts';
import { newId } from '../platform/ids.ts';
import { eventually } from '../platform/testing/eventually.ts';
import { outcomeOf, refusal } from '../platform/testing/refusals.ts';
import { deleteEndedKeys } from './api-keys/api-keys.ts';
import { DeviceCredentials } from './device-credentials/device-credentials.ts';
import { mintDeviceKey } from './device-credentials/device-keys.ts';
import { deleteExpiredPending } from './second-factors/pending-sign-ins.ts';
import { createAuth } from './service.ts';
import { LoginThrottle } from './sign-in/login-throttle.ts';
import { deleteExpiredReturns } from './sso/provider-store.ts';
import { method, password, TestAuth } from './testing/test-auth.ts';
import { clusterAway, MovableClock, testPlatform } from './testing/test-platform.ts';

describe('the number of users and keys', function () {
  this.timeout(60_000);
  const at = TestAuth.define();
  const query = async <Row extends Record<string, unknown>>(text: string, values: readonly unknown[] = []) =>
    (await at.test.database.system((tx) => tx.query<Row>(text, values))).rows;
  const count = async (condition: string, values: readonly unknown[] = []) =>
    (await query<{ number: number }>(`SELECT count(*)::int4 AS number FROM api_keys WHERE ${condition}`, values))[0]!
      .number;
  /** Adds keys of service accounts that ended so many hours ago; 0: that are in force. */
  const addKeys = (number: number, endedHours: number) =>
    query(
      `INSERT INTO api_keys (key_id, tenant_id, name, key_hash, prefix, last4, revoked_at)
       SELECT gen_random_uuid(), 'acme', '', sha256(gen_random_uuid()::text::bytea), 'p', 'l',
         CASE WHEN $2 > 0 THEN now() - $2 * interval '1 hour' END FROM generate_series(1, $1::int4)`,
      [number, endedHours],
    );

  it('of users has a maximum, and a user who is deleted makes room', async () => {
    await at.makeUser();
    await query(
      `UPDATE kept_sums SET amount = amount + 100000 - kept_sum('acme', 'users', owner_id) - 1
       WHERE (tenant_id, kind) = ('acme', 'users') AND part = (
         SELECT min(part) FROM kept_sums WHERE (tenant_id, kind) = ('acme', 'users'))`,
    );
    const outcomes = await Promise.all(Array.from({ length: 4 }, () => outcomeOf(at.makeUser())));
    expect(outcomes.toSorted()).to.deep.equal(['OK', ...Array<string>(3).fill('RESOURCE_EXHAUSTED')]);
    expect((await refusal(at.makeUser())).message).to.equal('a tenant has at most 100000 users');
    await at.makeUser('viewer', 'other');
    await query(`DELETE FROM users WHERE user_id = (SELECT user_id FROM users WHERE tenant_id = 'acme' LIMIT 1)`);
    expect(await outcomeOf(at.makeUser())).to.equal('OK');
    await query(`DELETE FROM users WHERE tenant_id = 'acme'`);
    await query(`DELETE FROM kept_sums WHERE tenant_id = 'acme'`);
  });

  it('of members of a group has a maximum, whether they are added to it or it is to them, however many at once', async () => {
    const { caller } = await at.signedIn();
    const context = { tenantId: 'acme' };
    const { groupId } = await at.call(method.createGroup, { name: 'large', scopes: ['ota:write'] }, caller, context);
    await query(
      `WITH made AS (
         INSERT INTO users (user_id, tenant_id, email, role, password_hash)
         SELECT gen_random_uuid(), 'acme', gen_random_uuid() || '@test', 'viewer', '' FROM generate_series(1, 998)
         RETURNING user_id)
       INSERT INTO user_group_members (tenant_id, group_id, user_id) SELECT 'acme', $1, user_id FROM made`,
      [groupId],
    );
    const make = () =>
      at.call(
        method.createUser,
        { email: `${newId()}@test`, role: User_Role.viewer, password, groupIds: [groupId] },
        caller,
        context,
      );
    const others = [await at.makeUser('viewer'), await at.makeUser('viewer'), await at.makeUser('viewer')];
    const change = (userId: string) =>
      at.call(
        method.updateUser,
        { userId, groupIds: [groupId], updateMask: { paths: ['group_ids'] } },
        caller,
        context,
      );
    const joins = [make(), make(), ...others.map((user) => change(user.user_id))];
    const outcomes = await Promise.all(joins.map(outcomeOf));
    expect(outcomes.toSorted()).to.deep.equal(['OK', 'OK', ...Array<string>(3).fill('RESOURCE_EXHAUSTED')]);
    expect((await refusal(make())).message).to.equal('a group has at most 1000 members');
    const { userIds } = await at.call(method.getGroup, { groupId }, caller, context);
    expect(userIds).to.have.length(1000);
    // A member stays one.
    expect(await outcomeOf(change(userIds[0]!))).to.equal('OK');
  });

  it('of service accounts’ keys has a maximum, which those that ended long ago do not count towards', async () => {
    const { caller } = await at.signedIn();
    const make = () =>
      at.call(method.createApiKey, { name: 'k', scopes: ['devices:read'] }, caller, { tenantId: 'acme' });
    await addKeys(5000, 0);
    await addKeys(3000, 2);
    await addKeys(2000, 48);
    const { code, message } = await refusal(make());
    expect({ code, message }).to.deep.equal({
      code: 'RESOURCE_EXHAUSTED',
      message: 'a tenant has at most 10000 API keys, including those that ended within a day',
    });
    const sweep = (limit: number) =>
      at.test.database.system((tx) => deleteEndedKeys(tx, new Date(Date.now() - 86_400_000), limit));
    expect([await sweep(1500), await sweep(1500), await sweep(1500)]).to.deep.equal([1500, 500, 0]);
    expect(await count(`tenant_id = 'acme' AND device_id IS NULL`)).to.equal(8000);
    expect(await outcomeOf(make())).to.equal('OK');
  });

  it('of a device’s keys is bounded, and those that have ended are deleted with a rotation', async () => {
    const { database } = at.test;
    const settings = { controlSecret: 'c'.repeat(32), previousControlSecret: '', deviceCertificateDays: 30 };
    const credentials = new DeviceCredentials(settings, at.clock);
    const holder = { tenantId: 'acme', deviceId: newId() };
    const rotate = (graceSeconds: number) =>
      database.tenant('acme', (tx) => credentials.rotate(tx, holder, { type: 'api_key' }, graceSeconds));
    const held = () => count('device_id = $1', [holder.deviceId]);
    await database.tenant('acme', (tx) => mintDeviceKey(tx, 'acme', holder.deviceId));
    for (let rotation = 0; rotation < 3; rotation += 1) await rotate(0);
    // The one that this rotation has ended, and the new one.
    expect(await held()).to.equal(2);
    for (let rotation = 0; rotation < 49; rotation += 1) await rotate(3600);
    const { code, message } = await refusal(rotate(3600));
    expect({ code, message }).to.deep.equal({
      code: 'RESOURCE_EXHAUSTED',
      message: 'a device has at most 50 keys that have not ended',
    });
    await query(`UPDATE api_keys SET expires_at = now() WHERE device_id = $1 AND expires_at IS NOT NULL`, [
      holder.deviceId,
    ]);
    expect((await rotate(0)).apiKey).to.match(/^sk_live_/);
    expect(await held()).to.equal(2);
  });
});

describe('what is known of attempts to sign in', () => {
  const at = TestAuth.define();

  for (const [what, table, columns, values, sweep] of [
    [
      'returns from providers',
      'sso_returns',
      'state_hash, tenant_id, expires_at',
      `sha256(n::text::bytea), 'acme', time`,
      deleteExpiredReturns,
    ],
    [
      'sign-ins that waited for a second factor',
      'pending_sign_ins',
      'token_hash, user_id, tenant_id, expires_at',
      `sha256(n::text::bytea), (SELECT user_id FROM users WHERE tenant_id = 'acme' LIMIT 1), 'acme', time`,
      deleteExpiredPending,
    ],
    [
      'failures',
      'login_failures',
      'subject, failures, last_failure_at, blocked_until',
      `sha256(n::text::bytea), 1, time, time`,
      (_tx: Transaction, before: Date, limit: number) =>
        // The time is that of the failures that no longer count, an hour after the last.
        new LoginThrottle(at.test.database, at.clock).sweep(limit, before.getTime() + 3_600_000),
    ],
  ] as const) {
    // One statement for all that strangers have added could take longer than a statement may.
    describe(what, () => {
      it('is deleted some at a time, the oldest first', async () => {
        await at.makeUser();
        const { database } = at.test;
        await database.system((tx) =>
          tx.query(
            `INSERT INTO ${table} (${columns}) SELECT ${values} FROM (
             SELECT n, '2020-01-01'::timestamptz + n * interval '1 minute' AS time FROM generate_series(1, 10) AS n) AS g`,
          ),
        );
        const before = new Date('2020-01-01T00:08:00Z');
        const swept = async () => database.system((tx) => sweep(tx, before, 5));
        expect([await swept(), await swept(), await swept()]).to.deep.equal([5, 2, 0]);
        const { rows } = await database.system((tx) => tx.query(`SELECT FROM ${table}`));
        expect(rows).to.have.length(3);
      });
    });
  }
});

describe('what a process deletes of sign-ins and sessions', () => {
  const at = TestAuth.define();

  it('is what has ended by the clock of the database, however wrong its own is', async () => {
    const { database } = at.test;
    const { user } = await at.signedIn();
    const query = async (text: string, values: unknown[] = []) =>
      (await database.system((tx) => tx.query(text, values))).rowCount;
    await query(
      `INSERT INTO pending_sign_ins (token_hash, user_id, tenant_id, expires_at)
       SELECT sha256(n::text::bytea), $1, 'acme', now() + n * interval '5 minutes' FROM unnest(ARRAY[-1, 1]) AS n`,
      [user.user_id],
    );
    const clock = new MovableClock();
    clock.advance(40 * 86_400_000);
    const auth = createAuth(testPlatform(database, clock), clusterAway, unknownGroups, async () => []);
    await auth.start?.();
    try {
      await eventually(async () => (await query('SELECT FROM pending_sign_ins WHERE expires_at < now()')) === 0);
    } finally {
      await auth.stop?.();
    }
    expect(await query('SELECT FROM pending_sign_ins WHERE expires_at > now()')).to.equal(1);
    expect(await query('SELECT FROM sessions WHERE user_id = $1', [user.user_id])).to.equal(1);
  });
});
