import { generateKeyPairSync } from 'node:crypto';
import { create, type JsonObject, type MessageInitShape, type MessageShape } from '@bufbuild/protobuf';
import { timestampDate, timestampMs } from '@bufbuild/protobuf/wkt';
import { ApplyRequestSchema, Kind, ObjectMetaSchema } from '@kellet/proto/es/kellet/control/v1/control_pb';
import { AuthService, ValidateTokenResponse_Reason as Reason } from '@kellet/proto/es/kellet/v1/auth_pb';
import { AnchoringPolicy_Mode } from '@kellet/proto/es/kellet/v1/common_pb';
import { expect } from 'chai';
import { insertUser } from '../auth/accounts/account-store.ts';
import { mintDeviceKey } from '../auth/device-credentials/device-keys.ts';
import { type AuthModule, createAuth } from '../auth/service.ts';
import { clusterAway, MovableClock, testPlatform } from '../auth/testing/test-platform.ts';
import { Dispatcher } from '../control/dispatcher.ts';
import type { Specs } from '../control/manifest-mapping.ts';
import { countDevices } from '../device-registry/devices/device-counts.ts';
import { createDevice } from '../device-registry/devices/devices.ts';
import { unknownGroups } from '../device-registry/devices/group-members.ts';
import { revocationChannel, tenantChannel } from '../platform/database/channels.ts';
import { newId } from '../platform/ids.ts';
import type { KubernetesApi, KubernetesObject } from '../platform/kubernetes/kubernetes.ts';
import { internalContext, publicCaller, ServiceRegistry } from '../platform/rpc.ts';
import { eventually } from '../platform/testing/eventually.ts';
import { codeOf, refusal } from '../platform/testing/refusals.ts';
import { createTestDatabase, type TestDatabase } from '../platform/testing/test-database.ts';
import { tenantOfNamespace } from '../policies/tenant-reader.ts';
import { createTenants } from './service.ts';
import { changedSettings, TenantApplier } from './tenant-applier.ts';
import { markRestored, type TenantSettings } from './tenant-store.ts';

const { method } = AuthService;
const password = 'correct horse battery';

describe('tenants', () => {
  let test: TestDatabase;
  let auth: AuthModule;
  let applier: TenantApplier;
  let clock: MovableClock;
  /** What the Kubernetes API returns of a Tenant resource. */
  let manifest: KubernetesObject | undefined;
  let measurements = 0;
  let measurementMilliseconds = 0;
  const registry = new ServiceRegistry();
  const notified: string[] = [];

  before(async () => {
    test = await createTestDatabase();
    clock = new MovableClock();
    const platform = testPlatform(test.database, clock);
    auth = createAuth(platform, clusterAway, unknownGroups, async () => []);
    applier = new TenantApplier(platform);
    auth.register(registry);
    createTenants(
      platform,
      { ...clusterAway, get: (async () => manifest) as KubernetesApi['get'] },
      async (tx, tenantId) => {
        measurements += 1;
        clock.advance(measurementMilliseconds);
        return { devices: await countDevices(tx, tenantId) };
      },
    ).register(registry);
    let listening = false;
    test.database.listen(
      [revocationChannel, tenantChannel],
      (channel, payload) => notified.push(`${channel} ${payload}`),
      (lost) => (listening = !lost),
    );
    await eventually(() => listening);
  });
  after(() => test.drop());

  const apply = (tenantId: string, spec: Specs['Tenant'] = {}) =>
    applier.apply(create(ObjectMetaSchema, { tenantId, name: tenantId }), {
      ...{ adminEmail: `admin@${tenantId}.test`, adminPassword: password, ...spec },
    });
  const remove = (tenantId: string, uid = '', detach = false) =>
    applier.remove(create(ObjectMetaSchema, { tenantId, name: tenantId, uid }), detach);
  const versionsOf = async (tenantId: string) => {
    const text = 'SELECT FROM applied_versions WHERE tenant_id = $1';
    return (await test.database.system((tx) => tx.query(text, [tenantId]))).rowCount;
  };
  const call = <M extends (typeof method)[keyof typeof method]>(
    of: M,
    request: MessageInitShape<M['input']>,
    tenantId = '',
  ) =>
    registry.unary(
      of,
      create(of.input, request) as MessageShape<M['input']>,
      internalContext(publicCaller, { tenantId }),
    );
  const login = (tenantId: string, secret = password) =>
    call(method.login, { email: `admin@${tenantId}.test`, password: secret });
  const publicKey = generateKeyPairSync('ed25519').publicKey.export({ format: 'pem', type: 'spki' }).toString();

  describe('by manifest', () => {
    it('are created with their administrator, and applying again changes nothing', async () => {
      const spec: Specs['Tenant'] = {
        name: 'Acme Ltd',
        rateLimitPerMinute: 60,
        quotas: { devices: 10 },
        ipAllowlist: ['10.0.0.0/8'],
        trustedSigningKeys: [publicKey],
        defaults: {
          tags: { site: 'a' },
          anchoringPolicy: { mode: 'Chain' },
          telemetrySchema: { keys: { t: { type: 'Number' } } },
        },
      };
      const first = await apply('acme', spec);
      expect(first.refusal).to.equal(undefined);
      const tenant = await call(method.getOwnTenant, {}, 'acme');
      expect(tenant).to.deep.include({ tenantId: 'acme', name: 'Acme Ltd', rateLimitPerMinute: 60 });
      expect(tenant).to.deep.include({ ipAllowlist: ['10.0.0.0/8'], trustedSigningKeys: [publicKey] });
      expect(tenant.quotas!.devices).to.equal(10);
      expect(tenant.defaults!.anchoringPolicy!.mode).to.equal(AnchoringPolicy_Mode.chain);
      expect(Object.keys(tenant.defaults!.telemetrySchema!.keys)).to.deep.equal(['t']);
      const second = await apply('acme', { ...spec, adminPassword: 'another good password' });
      expect(second).to.deep.equal(first);
      expect((await call(method.getOwnTenant, {}, 'acme')).updatedAt).to.deep.equal(tenant.updatedAt);
      expect(await codeOf(login('acme')), 'from an address that is not allowed').to.equal('PERMISSION_DENIED');
      expect((await apply('acme', { ...spec, ipAllowlist: [] })).refusal).to.equal(undefined);
      await login('acme');
      expect(await codeOf(login('acme', 'another good password'))).to.equal('UNAUTHENTICATED');
    });

    it('record in the audit log that they create an administrator', async () => {
      const { observed } = await apply('recorded');
      await apply('recorded', { rateLimitPerMinute: 70 });
      const { rows } = await test.database.system((tx) =>
        tx.query('SELECT action, actor_kind, resource_id FROM audit_pending WHERE tenant_id = $1', ['recorded']),
      );
      expect(rows).to.deep.equal([
        { action: 'auth.tenant_administrator_created', actor_kind: 'system', resource_id: observed!.adminUserId },
      ]);
    });

    describe('whose administrator was replaced by another one and deleted', () => {
      const replace = async (tenantId: string) => {
        const user = {
          tenantId,
          email: 'second@owned.test',
          name: '',
          role: 'tenant_admin',
          passwordHash: '',
        } as const;
        await test.database.system(async (tx) => {
          await insertUser(tx, { ...user, userId: newId(), disabled: false });
          await tx.query('DELETE FROM users WHERE tenant_id = $1 AND email LIKE $2', [tenantId, 'admin@%']);
        });
      };

      it('do not bring it back, with the password that it had, when they are applied again', async () => {
        await apply('owned');
        await replace('owned');
        const again = await apply('owned', { rateLimitPerMinute: 70 });
        expect(again).to.deep.equal({ id: 'owned', observed: { adminUserId: '' } });
        expect((await call(method.getOwnTenant, {}, 'owned')).rateLimitPerMinute).to.equal(70);
        expect(await codeOf(login('owned'))).to.equal('UNAUTHENTICATED');
      });

      it('nor if an earlier release has applied them', async () => {
        await apply('earlier');
        await replace('earlier');
        await test.database.system((tx) =>
          tx.query(`UPDATE tenants SET applied = applied - 'admin_email' WHERE tenant_id = 'earlier'`),
        );
        for (const rateLimitPerMinute of [70, 80]) await apply('earlier', { rateLimitPerMinute });
        expect(await codeOf(login('earlier'))).to.equal('UNAUTHENTICATED');
      });

      it('are applied without a password if a request has created them', async () => {
        await apply('requested');
        await replace('requested');
        const meta = create(ObjectMetaSchema, { tenantId: 'requested', name: 'requested', intentId: newId() });
        const applied = await applier.apply(meta, { adminEmail: 'admin@requested.test', rateLimitPerMinute: 70 });
        expect(applied.refusal).to.equal(undefined);
        expect((await call(method.getOwnTenant, {}, 'requested')).rateLimitPerMinute).to.equal(70);
      });

      it('create another one when they begin to name it', async () => {
        await apply('renewed');
        await replace('renewed');
        await apply('renewed', { adminEmail: 'third@renewed.test' });
        await call(method.login, { email: 'third@renewed.test', password });
      });
    });

    it('have a namespace once the operator states it, as long as it does', async () => {
      const owner = (namespace: string) => test.database.systemRead((tx) => tenantOfNamespace(tx, namespace));
      await apply('housed', { name: 'Housed' });
      // Planned: somebody else may have a namespace of this name.
      expect(await owner('kellet-housed')).to.equal(undefined);
      await apply('housed', { name: 'Housed', namespace: 'kellet-housed' });
      expect(await owner('kellet-housed')).to.include({ tenant_id: 'housed' });
      // As the request that creates a tenant, if the operator is faster.
      await apply('housed', { name: 'Housed' });
      expect(await owner('kellet-housed')).to.include({ tenant_id: 'housed' });
      notified.length = 0;
      await apply('housed', { name: 'Another name', namespace: '' });
      expect(await owner('kellet-housed')).to.equal(undefined);
      await eventually(() => notified.includes('kellet_tenants housed'));
      expect((await call(method.getTenant, { tenantId: 'housed' })).name).to.equal('Housed');
      await apply('housed', { name: 'Housed', namespace: 'kellet-housed' });
      expect(await owner('kellet-housed')).to.include({ tenant_id: 'housed' });
      expect(await apply('never-made', { namespace: '' })).to.deep.equal({ id: 'never-made' });
      expect(await versionsOf('never-made')).to.equal(0);
      expect(await codeOf(call(method.getTenant, { tenantId: 'never-made' }))).to.equal('NOT_FOUND');
    });

    it('are the same with several concurrent appliers', async () => {
      const results = await Promise.all(Array.from({ length: 5 }, () => apply('crowd')));
      for (const result of results) expect(result).to.deep.equal(results[0]);
    });

    it('keep changes of the API until the manifest changes that field', async () => {
      await apply('mixed', { name: 'Mixed', rateLimitPerMinute: 60 });
      await call(method.updateTenant, { tenantId: 'mixed', name: 'Renamed', updateMask: { paths: ['name'] } });
      await apply('mixed', { name: 'Mixed', rateLimitPerMinute: 90 });
      expect(await call(method.getTenant, { tenantId: 'mixed' })).to.include({
        name: 'Renamed',
        rateLimitPerMinute: 90,
      });
      await apply('mixed', { name: 'Mixed again', rateLimitPerMinute: 90 });
      expect((await call(method.getTenant, { tenantId: 'mixed' })).name).to.equal('Mixed again');
      await eventually(() => notified.includes('kellet_tenants mixed'));
    });

    for (const [name, tenantId, spec, message] of [
      ['a name that is not a label', 'Acme_1', {}, 'DNS label'],
      ['a malformed signing key', 'bad', { trustedSigningKeys: ['x'] }, 'spec.trustedSigningKeys[0]'],
      ['a malformed allowlist', 'bad', { ipAllowlist: ['x'] }, 'ipAllowlist'],
      ['an unknown anchoring mode', 'bad', { defaults: { anchoringPolicy: { mode: 'none' } } }, 'anchoringPolicy.mode'],
      ['a negative quota', 'bad', { quotas: { pointsPerDay: -1 } }, 'spec.quotas.pointsPerDay'],
      ['a short password', 'bad', { adminPassword: 'short' }, 'password'],
      ['no password for a new administrator', 'bad', { adminPassword: '' }, 'adminPasswordSecretRef'],
      ['a malformed e-mail address', 'bad', { adminEmail: 'root' }, 'adminEmail'],
      ['a namespace of another tenant', 'bad', { namespace: 'kellet-taken' }, 'namespace'],
    ] as const) {
      it(`are rejected with ${name}, leaving nothing behind`, async () => {
        await apply('taken');
        const { refusal } = await apply(tenantId, spec as unknown as Specs['Tenant']);
        expect(refusal).to.include({ reason: 'InvalidSpec' });
        expect(refusal!.message).to.contain(message);
        expect(await codeOf(call(method.getTenant, { tenantId }))).to.equal('NOT_FOUND');
      });
    }

    it('are only judged by a dry run', async () => {
      const dispatcher = new Dispatcher(test.database);
      dispatcher.addApplier('Tenant', applier);
      const dryRun = (tenantId: string, spec: JsonObject = {}) =>
        dispatcher.apply(
          create(ApplyRequestSchema, {
            ...{ meta: { tenantId, name: tenantId }, dryRun: true },
            ...{ kind: Kind.TENANT, spec },
          }),
        );
      expect((await dryRun('judged')).refusal).to.equal(undefined);
      expect(await codeOf(call(method.getTenant, { tenantId: 'judged' }))).to.equal('NOT_FOUND');
      expect((await dryRun('judged', { ipAllowlist: ['x'] })).refusal).to.include({ reason: 'InvalidSpec' });
      await apply('judged');
      await remove('judged');
      expect((await dryRun('judged')).refusal).to.include({ reason: 'TenantDeleted' });
    });

    it('keep their resource when it is deleted, until their data is purged', async () => {
      await apply('ending');
      notified.length = 0;
      const first = await remove('ending', 'uid-1');
      expect(first).to.include({ reason: 'TenantDeleted' });
      expect(await remove('ending', 'uid-1')).to.deep.equal(first);
      await eventually(() => notified.includes('kellet_tenants ending'));
      // Credentials of other tenants are unaffected.
      expect(notified).not.to.include(`${revocationChannel} *`);
      const { purgeAt } = await call(method.getTenant, { tenantId: 'ending' });
      expect(first!.message).to.contain(timestampDate(purgeAt!).toISOString());
      expect((await apply('ending')).refusal).to.include({ reason: 'TenantDeleted' });
      await test.database.system((tx) =>
        tx.query(`UPDATE tenants SET purge_started_at = now(), purged_at = now() WHERE tenant_id = 'ending'`),
      );
      expect(await remove('ending', 'uid-1')).to.equal(undefined);
      expect((await apply('ending')).refusal).to.include({ reason: 'Terminated' });
      await test.database.system((tx) => tx.query(`DELETE FROM applied_versions WHERE tenant_id = 'ending'`));
      expect(await apply('ending', { namespace: '' })).to.deep.equal({ id: 'ending' });
      expect(await versionsOf('ending')).to.equal(0);
      expect(await codeOf(call(method.getTenant, { tenantId: 'ending' }))).to.equal('NOT_FOUND');
    });

    it('are not deleted again by the deletion of a resource that was undone', async () => {
      await apply('undone');
      await remove('undone', 'uid-1');
      await test.database.system((tx) => markRestored(tx, 'undone', 'uid-1'));
      expect(await remove('undone', 'uid-1')).to.include({ reason: 'TenantRestored' });
      expect((await call(method.getTenant, { tenantId: 'undone' })).deletedAt).to.equal(undefined);
      // A resource that was made later and is deleted.
      expect(await remove('undone', 'uid-2')).to.include({ reason: 'TenantDeleted' });
      expect(await remove('nobody', 'uid-1')).to.equal(undefined);
    });

    it('lose their namespace, as the operator states, also once the deletion of their resource was undone', async () => {
      const owner = () => test.database.systemRead((tx) => tenantOfNamespace(tx, 'kellet-evicted'));
      await apply('evicted', { namespace: 'kellet-evicted' });
      await remove('evicted', 'uid-1');
      await test.database.system((tx) => markRestored(tx, 'evicted', 'uid-1'));
      expect(await remove('evicted', 'uid-1')).to.include({ reason: 'TenantRestored' });
      expect(await owner()).to.include({ tenant_id: 'evicted' });
      expect(await remove('evicted', 'uid-1', true)).to.include({ reason: 'TenantRestored' });
      expect(await owner()).to.equal(undefined);
    });
  });

  describe('while deleted', () => {
    const deleted = async (tenantId: string) => {
      await apply(tenantId);
      const pair = await login(tenantId);
      const key = await test.database.tenant(tenantId, (tx) =>
        mintDeviceKey(tx, tenantId, '0190a000-0000-7000-8000-000000000000'),
      );
      await remove(tenantId);
      return { pair, key };
    };
    const restore = (tenantId: string) => test.database.system((tx) => markRestored(tx, tenantId, ''));

    it('are refused everything, and served again with the same credentials once restored', async () => {
      const { pair, key } = await deleted('gone');
      for (const token of [pair.accessToken, key]) {
        const { valid, grant } = await call(method.validateToken, { token });
        expect({ valid, reason: grant?.reason }).to.deep.equal({ valid: false, reason: Reason.deleted });
        expect(await codeOf(auth.authenticate(token, '127.0.0.1'))).to.equal('PERMISSION_DENIED');
      }
      expect(await codeOf(login('gone'))).to.equal('PERMISSION_DENIED');
      expect(await codeOf(login('gone', 'wrong password'))).to.equal('UNAUTHENTICATED');
      for (let attempt = 0; attempt < 2; attempt += 1) {
        expect(await codeOf(call(method.refresh, { refreshToken: pair.refreshToken }))).to.equal('PERMISSION_DENIED');
      }
      expect(await restore('gone')).to.equal(true);
      expect(await restore('gone')).to.equal(false);
      for (const token of [pair.accessToken, key]) {
        expect((await call(method.validateToken, { token })).valid).to.equal(true);
      }
      expect((await call(method.refresh, { refreshToken: pair.refreshToken })).accessToken).not.to.equal('');
      await login('gone');
    });

    it('show when their data is purged, and cannot be changed', async () => {
      await deleted('fixed');
      const { deletedAt, purgeAt } = await call(method.getTenant, { tenantId: 'fixed' });
      expect(timestampMs(purgeAt!) - timestampMs(deletedAt!)).to.equal(30 * 86_400_000);
      const update = { tenantId: 'fixed', name: 'x', updateMask: { paths: ['name'] } };
      for (const refused of [
        call(method.updateTenant, update),
        call(method.suspendTenant, { tenantId: 'fixed' }),
        call(method.unsuspendTenant, { tenantId: 'fixed' }),
      ]) {
        expect(await codeOf(refused)).to.equal('FAILED_PRECONDITION');
      }
    });

    for (const [what, change] of [
      ['is due', `purge_at = now()`],
      ['has begun', `purge_started_at = now()`],
    ] as const) {
      it(`are not restored once their purge ${what}`, async () => {
        const tenantId = what.replace(' ', '-');
        await deleted(tenantId);
        await test.database.system((tx) => tx.query(`UPDATE tenants SET ${change} WHERE tenant_id = '${tenantId}'`));
        expect(await restore(tenantId)).to.equal(false);
      });
    }

    it('do not prevent a person with an account in another tenant from signing in', async () => {
      await apply('before', { adminEmail: 'both@test' });
      await apply('after', { adminEmail: 'both@test' });
      const signIn = (tenantId = '') => call(method.login, { email: 'both@test', password, tenantId });
      expect(await codeOf(signIn())).to.equal('UNAUTHENTICATED');
      await remove('before');
      expect((await signIn()).accessToken).not.to.equal('');
      expect(await codeOf(signIn('before'))).to.equal('PERMISSION_DENIED');
    });
  });

  describe('while suspended', () => {
    it('are refused everything, and served again with the same credentials', async () => {
      await apply('late');
      const pair = await login('late');
      const key = await test.database.tenant('late', (tx) =>
        mintDeviceKey(tx, 'late', '0190a000-0000-7000-8000-000000000000'),
      );
      const reasons = () =>
        Promise.all(
          [pair.accessToken, key].map(
            async (token) => (await call(method.validateToken, { token })).grant?.reason ?? Reason.reason_unspecified,
          ),
        );
      notified.length = 0;
      expect((await call(method.suspendTenant, { tenantId: 'late' })).suspended).to.equal(true);
      expect((await call(method.suspendTenant, { tenantId: 'late' })).suspended).to.equal(true);
      await eventually(() => notified.includes('kellet_tenants late'));
      expect(await reasons()).to.deep.equal([Reason.suspended, Reason.suspended]);
      expect(await codeOf(auth.authenticate(pair.accessToken, '127.0.0.1'))).to.equal('PERMISSION_DENIED');
      expect(await codeOf(login('late'))).to.equal('PERMISSION_DENIED');
      for (let attempt = 0; attempt < 2; attempt += 1) {
        expect(await codeOf(call(method.refresh, { refreshToken: pair.refreshToken }))).to.equal('PERMISSION_DENIED');
      }
      // A manifest that is applied again does not end it.
      expect((await apply('late', { name: 'Changed' })).refusal).to.equal(undefined);
      expect((await call(method.getTenant, { tenantId: 'late' })).suspended).to.equal(true);
      expect((await call(method.unsuspendTenant, { tenantId: 'late' })).suspended).to.equal(false);
      expect(await reasons()).to.deep.equal([Reason.reason_unspecified, Reason.reason_unspecified]);
      expect((await call(method.refresh, { refreshToken: pair.refreshToken })).accessToken).not.to.equal('');
    });

    it('exist', async () => {
      expect(await codeOf(call(method.suspendTenant, { tenantId: 'nobody' }))).to.equal('NOT_FOUND');
      expect(await codeOf(call(method.unsuspendTenant, { tenantId: 'nobody' }))).to.equal('NOT_FOUND');
    });
  });

  describe('through the API', () => {
    before(() => apply('own'));

    it('change their settings, but not their limits', async () => {
      const changed = await call(
        method.updateOwnTenant,
        { name: 'Ours', defaults: { offlineAfterSeconds: 60 }, updateMask: { paths: ['name', 'defaults'] } },
        'own',
      );
      expect(changed).to.include({ name: 'Ours' });
      expect(changed.defaults!.offlineAfterSeconds).to.equal(60);
      for (const path of ['rate_limit_per_minute', 'quotas']) {
        const request = { rateLimitPerMinute: 9, quotas: { devices: 1 }, updateMask: { paths: [path] } };
        expect(await codeOf(call(method.updateOwnTenant, request, 'own'))).to.equal('PERMISSION_DENIED');
      }
      expect((await call(method.getOwnTenant, {}, 'own')).rateLimitPerMinute).to.equal(1000);
    });

    it('change the parts of their settings that the mask names, and concurrent changes lose none', async () => {
      await apply('parts', { quotas: { devices: 10, pointsPerDay: 1000 } });
      const update = (request: Omit<MessageInitShape<typeof method.updateTenant.input>, '$typeName'>, path: string) =>
        call(method.updateTenant, { tenantId: 'parts', ...request, updateMask: { paths: [path] } });
      const own = (maxAttempts: number) =>
        call(
          method.updateOwnTenant,
          { defaults: { otaPolicy: { maxAttempts } }, updateMask: { paths: ['defaults.ota_policy.max_attempts'] } },
          'parts',
        );
      await update({ defaults: { otaPolicy: { requireSignature: true } } }, 'defaults.ota_policy');
      await Promise.all([
        update({ quotas: { devices: 20 } }, 'quotas.devices'),
        update({ quotas: { anchorsPerDay: 5 } }, 'quotas.anchors_per_day'),
        own(3),
        update({ defaults: { offlineAfterSeconds: 60 } }, 'defaults.offline_after_seconds'),
      ]);
      const { quotas, defaults } = await call(method.getTenant, { tenantId: 'parts' });
      expect(quotas).to.include({ devices: 20, pointsPerDay: 1000, anchorsPerDay: 5 });
      expect(defaults).to.include({ offlineAfterSeconds: 60 });
      expect(defaults!.otaPolicy).to.include({ requireSignature: true, maxAttempts: 3 });
      const before = await call(method.getTenant, { tenantId: 'parts' });
      const same = await call(method.updateTenant, { tenantId: 'parts', name: 'unnamed', updateMask: { paths: [] } });
      expect([same.name, same.updatedAt]).to.deep.equal([before.name, before.updatedAt]);
      expect((await update({ quotas: { devices: 1 } }, 'quotas')).quotas).to.include({ devices: 1, pointsPerDay: 0 });
    });

    describe('of which the Tenant resource states some', () => {
      const owned = (manager: string, spec: object) => ({ manager, operation: 'Apply', fieldsV1: { 'f:spec': spec } });
      const spec = { name: 'Stated', mfaRequired: false, quotas: { devices: 10 }, defaults: { tags: { site: 'a' } } };
      before(async () => {
        await apply('stated', spec);
        manifest = {
          apiVersion: 'kellet.dev/v1alpha1',
          kind: 'Tenant',
          metadata: {
            name: 'stated',
            managedFields: [
              owned('kellet-api', { 'f:retentionDays': {} }),
              owned('kubectl', { 'f:name': {}, 'f:mfaRequired': {}, 'f:quotas': { 'f:devices': {} } }),
              owned('argocd', { 'f:defaults': { 'f:tags': { 'f:site': {} } } }),
            ],
          },
          spec,
        } as unknown as KubernetesObject;
      });
      after(() => (manifest = undefined));

      type Update = Omit<MessageInitShape<typeof method.updateTenant.input>, '$typeName'>;
      const update = (request: Update, path: string) =>
        call(method.updateTenant, { ...request, tenantId: 'stated', updateMask: { paths: [path] } });

      for (const [path, request, field, manager] of [
        ['name', { name: 'Other' }, 'name', 'kubectl'],
        ['mfa_required', { mfaRequired: true }, 'mfa_required', 'kubectl'],
        ['quotas.devices', { quotas: { devices: 20 } }, 'quotas.devices', 'kubectl'],
        ['quotas', { quotas: { pointsPerDay: 5 } }, 'quotas.devices', 'kubectl'],
        ['defaults.tags', { defaults: { tags: { site: 'b' } } }, 'defaults.tags.site', 'argocd'],
        ['defaults', { defaults: { offlineAfterSeconds: 60 } }, 'defaults.tags.site', 'argocd'],
      ] as const) {
        it(`refuse to change ${field} by ${path}, and name ${manager}`, async () => {
          const before = await call(method.getTenant, { tenantId: 'stated' });
          const message = `${field} is managed by ${manager}: change it there`;
          expect(await refusal(update(request, path))).to.include({ code: 'FAILED_PRECONDITION', message });
          expect((await call(method.getTenant, { tenantId: 'stated' })).updatedAt).to.deep.equal(before.updatedAt);
        });
      }

      it('refuse it to the tenant itself', async () => {
        const request = { mfaRequired: true, updateMask: { paths: ['mfa_required'] } };
        expect(await codeOf(call(method.updateOwnTenant, request, 'stated'))).to.equal('FAILED_PRECONDITION');
      });

      it('change others, and accept what is stated', async () => {
        const changed = await update({ quotas: { pointsPerDay: 500 } }, 'quotas.points_per_day');
        expect(changed.quotas).to.include({ devices: 10, pointsPerDay: 500 });
        expect((await update({ retentionDays: 7 }, 'retention_days')).retentionDays).to.equal(7);
        expect((await update({ name: 'Stated' }, 'name')).name).to.equal('Stated');
        const { defaults } = await update({ defaults: { tags: { site: 'a', floor: '2' } } }, 'defaults.tags');
        expect(defaults!.tags).to.deep.equal({ site: 'a', floor: '2' });
      });

      it('change everything once the resource is deleted', async () => {
        const { metadata } = manifest!;
        manifest = { ...manifest!, metadata: { ...metadata, deletionTimestamp: '2026-01-01T00:00:00Z' } };
        expect((await update({ name: 'Free' }, 'name')).name).to.equal('Free');
      });
    });

    it('show their usage, measured again after twenty times the duration of the measurement, at most a minute', async () => {
      await apply('measured');
      const addDevice = () => {
        const device = { tenantId: 'measured', deviceId: newId(), name: 'd', hardwareId: newId(), profileId: '' };
        return test.database.tenant('measured', (tx) =>
          createDevice(tx, { ...device, groupIds: [], credentialType: 'api_key' }),
        );
      };
      const shown = async () => [
        (await call(method.getTenant, { tenantId: 'measured' })).usage?.devices,
        (await call(method.getOwnTenant, {}, 'measured')).usage?.devices,
      ];
      await addDevice();
      measurements = 0;
      measurementMilliseconds = 10;
      expect(await shown()).to.deep.equal([1, 1]);
      await addDevice();
      expect(await shown()).to.deep.equal([1, 1]);
      expect(measurements).to.equal(1);
      clock.advance(199);
      expect(await shown()).to.deep.equal([1, 1]);
      clock.advance(1);
      measurementMilliseconds = 10_000;
      expect(await shown()).to.deep.equal([2, 2]);
      await addDevice();
      clock.advance(59_999);
      expect(await shown()).to.deep.equal([2, 2]);
      clock.advance(1);
      measurementMilliseconds = 0;
      expect(await shown()).to.deep.equal([3, 3]);
      await addDevice();
      expect((await shown())[0]).to.equal(4);
      expect((await call(method.suspendTenant, { tenantId: 'measured' })).usage?.devices).to.equal(4);
    });

    it('are isolated in the database too', async () => {
      await apply('neighbour');
      await test.database.tenant('own', async (tx) => {
        const read = await tx.query(`SELECT 1 FROM tenants WHERE tenant_id <> 'own'`);
        expect(read.rows).to.deep.equal([]);
        const written = await tx.query(`UPDATE tenants SET name = 'stolen' WHERE tenant_id = 'neighbour'`);
        expect(written.rowCount).to.equal(0);
      });
      const raised = await test.database
        .tenant('own', (tx) => tx.query(`UPDATE tenants SET rate_limit_per_minute = 1000000`))
        .catch(String);
      expect(raised).to.contain('permission denied');
    });

    for (const [name, request] of [
      ['an empty name', { name: '', updateMask: { paths: ['name'] } }],
      ['a malformed key', { trustedSigningKeys: ['x'], updateMask: { paths: ['trusted_signing_keys'] } }],
      ['a retention of centuries', { retentionDays: 36_501, updateMask: { paths: ['retention_days'] } }],
      ['batches of more than an hour', { batchSeconds: 3601, updateMask: { paths: ['batch_seconds'] } }],
      ['an unknown path', { updateMask: { paths: ['tenant_id'] } }],
      ['no mask', { name: 'x' }],
    ] as const) {
      it(`reject ${name}`, async () => {
        const update = call(
          method.updateOwnTenant,
          request as MessageInitShape<typeof method.updateOwnTenant.input>,
          'own',
        );
        expect(await codeOf(update)).to.equal('INVALID_ARGUMENT');
      });
    }

    it('are listed by the platform administrator in the order of their ids', async () => {
      const ids: string[] = [];
      let pageToken = '';
      do {
        const page = await call(method.listTenants, { pageSize: 2, pageToken });
        ids.push(...page.tenants.map((tenant) => tenant.tenantId));
        pageToken = page.nextPageToken;
      } while (pageToken !== '');
      expect(ids).to.include.members(['own', 'fixed']).and.not.include('ending');
      expect(ids).to.deep.equal([...ids].sort());
    });
  });

  it('applies only fields that the manifest has changed since it was applied', () => {
    const settings: TenantSettings = {
      name: 'a',
      rate_limit_per_minute: 1,
      quotas: { devices: 1 },
      defaults: { tags: { b: '2', a: '1' } },
      ip_allowlist: ['10.0.0.0/8'],
      mfa_required: false,
      trusted_signing_keys: [],
      retention_days: 0,
      batch_seconds: 0,
    };
    expect(Object.keys(changedSettings({}, settings))).to.have.length(9);
    const applied = { ...settings, defaults: { tags: { a: '1', b: '2' } } };
    expect(changedSettings(applied, settings)).to.deep.equal({});
    expect(changedSettings(applied, { ...settings, quotas: {} })).to.deep.equal({ quotas: {} });
  });
});
