// Creating, changing and deleting custom resources for REST callers, with a real API server and database: resource and
// working copy always agree, and nothing partial remains.
import {
  create,
  type DescMessage,
  type DescMethodUnary,
  type MessageInitShape,
  type MessageShape,
} from '@bufbuild/protobuf';
import { FieldMaskSchema } from '@bufbuild/protobuf/wkt';
import {
  apiVersion,
  type DeviceProfileSpec,
  displayNameAnnotation,
  finalizer,
  intentAnnotation,
  type ProvisioningTemplateSpec,
  provisionKeyBinding,
} from '@kellet/crds';
import { customResources, KubernetesClient, loadKubeConfig } from '@kellet/kubernetes';
import { Credential_Type, TelemetrySchema_Key_Type } from '@kellet/proto/es/kellet/v1/common_pb';
import type { OtaPolicySchema } from '@kellet/proto/es/kellet/v1/common_pb.ts';
import { ProfileService } from '@kellet/proto/es/kellet/v1/profile_pb.ts';
import { ProvisioningService } from '@kellet/proto/es/kellet/v1/provisioning_pb.ts';
import { expect } from 'chai';
import type { Applier } from '../../apiserver/src/control/applier.ts';
import { Dispatcher } from '../../apiserver/src/control/dispatcher.ts';
import { RolloutMembership } from '../../apiserver/src/device-link/ota/rollouts/membership.ts';
import { ProfileApplier } from '../../apiserver/src/device-link/provisioning/profile-applier.ts';
import { provisionKeyHash } from '../../apiserver/src/device-link/provisioning/provision-key.ts';
import { registryUsage } from '../../apiserver/src/device-link/provisioning/testing/test-fixtures.ts';
import { createDevice } from '../../apiserver/src/device-registry/devices/devices.ts';
import { systemClock } from '../../apiserver/src/platform/clock.ts';
import { KelletError } from '../../apiserver/src/platform/errors.ts';
import { namedId, newId } from '../../apiserver/src/platform/ids.ts';
import { KubernetesApi, type KubernetesObject } from '../../apiserver/src/platform/kubernetes/kubernetes.ts';
import { createLogger } from '../../apiserver/src/platform/observability/logger.ts';
import {
  type CallContext,
  internalContext,
  publicCaller,
  type ServiceRegistry,
} from '../../apiserver/src/platform/rpc.ts';
import type { TestDatabase } from '../../apiserver/src/platform/testing/test-database.ts';
import { startOtlpReceiver } from '../../apiserver/src/platform/testing/test-otlp.ts';
import { applyRequest } from '../../apiserver/src/resources/manifest.ts';
import { ResourceWriter } from '../../apiserver/src/resources/resource-writer.ts';
import { assembleServices } from '../testing/services.ts';
import { createTestTenant, type TestTenant } from '../testing/tenant.ts';

const tenantId = 'writer';
const context: CallContext = internalContext({ ...publicCaller, kind: 'kubernetes', tenantId });
const logger = createLogger('silent');

/** Response of a creation: only the id. */
const idOf = (_tx: unknown, id: string) => Promise.resolve(id);

const refusalOf = (promise: Promise<unknown>) =>
  promise.then(
    () => 'not rejected',
    (error: unknown) => (error instanceof KelletError ? `${error.code} ${error.message}` : String(error)),
  );

describe('custom resources written for REST callers', function () {
  this.timeout(60_000);
  let tenant: TestTenant;
  let namespace: string;
  /** The adapter under test always writes as kellet-api. */
  let another: KubernetesClient;
  let kubernetes: KubernetesApi;
  let test: TestDatabase;
  let dispatcher: Dispatcher;
  let writer: ResourceWriter;
  let registry: ServiceRegistry;

  before(async () => {
    tenant = await createTestTenant(tenantId);
    ({ namespace, kubernetes, test } = tenant);
    ({ registry, dispatcher, writer } = assembleServices({ database: test.database, kubernetes }));
    another = new KubernetesClient({ config: loadKubeConfig(tenant.kubeconfig), userAgent: 'kellet-test' });
  });

  after(async () => {
    await another.close();
    await tenant.close();
  });

  const call = <I extends DescMessage, O extends DescMessage>(
    method: DescMethodUnary<I, O>,
    request: MessageInitShape<I>,
  ): Promise<MessageShape<O>> => {
    const message: MessageShape<I> = create<I>(method.input, request);
    return registry.unary(method, message, context);
  };
  const template = ProvisioningService.method;
  const profile = ProfileService.method;
  const mask = (...paths: string[]) => create(FieldMaskSchema, { paths });
  const read = <Spec>(kind: 'DeviceProfile' | 'ProvisioningTemplate', name: string) =>
    kubernetes.get<Spec>(kind, namespace, name);
  const intents = async () =>
    (await test.database.system((tx) => tx.query<{ state: string; name: string }>('SELECT * FROM resource_intents')))
      .rows;
  /** Server-side apply with force by another manager, like kubectl or Argo CD. */
  const applyAsAnother = (name: string, spec: DeviceProfileSpec) => {
    const object = { apiVersion, kind: 'DeviceProfile', metadata: { name, namespace }, spec };
    return another.apply(customResources.DeviceProfile, object, { fieldManager: 'argocd-controller', force: true });
  };

  it('writes the name into the annotation also if the resource is named so', async () => {
    await call(profile.createProfile, { name: 'plain-name', type: 'thermometer' });
    const object = await read<DeviceProfileSpec>('DeviceProfile', 'plain-name');
    expect(object!.metadata.annotations).to.include({ [displayNameAnnotation]: 'plain-name' });
  });

  it('creates a matching resource and working copy', async () => {
    const made = await call(profile.createProfile, {
      name: 'Cold store',
      type: 'thermometer',
      defaultTags: { site: 'north' },
      anchoringPolicy: { mode: 1 },
      telemetrySchema: { keys: { temperature: { type: 1, min: -40, max: 85 } } },
      otaPolicy: { maxAttempts: 3, window: { start: '22:00', end: '04:00', days: ['mon'], timeZone: 'Europe/Berlin' } },
      offlineAfterSeconds: 60,
    });
    expect(made).to.include({ name: 'Cold store', type: 'thermometer', offlineAfterSeconds: 60 });
    const [name] = (await intents()).filter((intent) => intent.name.startsWith('cold-store')).map((row) => row.name);
    const object = await read<DeviceProfileSpec>('DeviceProfile', name!);
    expect(object!.metadata.annotations).to.include({ [displayNameAnnotation]: 'Cold store' });
    expect(object!.metadata.labels).to.deep.equal({ 'kellet.dev/created-by': 'api' });
    expect(object!.spec).to.deep.equal({
      type: 'thermometer',
      defaultTags: { site: 'north' },
      anchoringPolicy: { mode: 'Merkle' },
      telemetrySchema: { keys: { temperature: { type: 'Number', min: -40, max: 85 } }, additionalKeys: 'Allow' },
      otaPolicy: {
        maxAttempts: 3,
        window: { start: '22:00', end: '04:00', days: ['Monday'], timeZone: 'Europe/Berlin' },
      },
      offlineAfterSeconds: 60,
    });
    expect((await intents()).find((intent) => intent.name === name)).to.include({ state: 'active' });
    expect(await call(profile.getProfile, { profileId: made.profileId })).to.deep.equal(made);

    expect(await refusalOf(call(profile.createProfile, { name: 'Cold store' }))).to.match(/^ALREADY_EXISTS/);
  });

  it('says which renamed object still holds the name of a new one', async () => {
    const { profileId } = await call(profile.createProfile, { name: 'renamed' });
    const { templateId } = await call(template.createTemplate, { name: 'renamed', profileId });
    await call(profile.updateProfile, { profileId, name: 'Renamed!', updateMask: mask('name') });
    await call(template.updateTemplate, { templateId, name: 'Renamed!', updateMask: mask('name') });
    const inTheWay = (what: string): string =>
      `ALREADY_EXISTS the custom resource renamed belongs to the ${what} named "Renamed!": ` +
      `choose another name, or delete that ${what}`;
    expect(await refusalOf(call(profile.createProfile, { name: 'renamed' }))).to.equal(inTheWay('profile'));
    expect(await refusalOf(call(template.createTemplate, { name: 'renamed', profileId }))).to.equal(
      inTheWay('template'),
    );
    expect(await refusalOf(call(profile.createProfile, { name: 'Renamed!' }))).to.equal(
      'ALREADY_EXISTS a profile named "Renamed!" already exists',
    );
    await call(template.deleteTemplate, { templateId });
    await call(profile.deleteProfile, { profileId });
    await call(profile.createProfile, { name: 'renamed' });
  });

  it('returns ALREADY_EXISTS for a name that exists only in Kubernetes, leaving that resource alone', async () => {
    await applyAsAnother('from-git', { type: 'git' });
    expect(await refusalOf(call(profile.createProfile, { name: 'from-git' }))).to.match(/^ALREADY_EXISTS/);
    expect((await read<DeviceProfileSpec>('DeviceProfile', 'from-git'))!.spec).to.deep.equal({ type: 'git' });
  });

  it('creates no more than the tenant may have, however many calls there are at once', async () => {
    const fill = (kind: string, count: number) =>
      test.database.system((tx) =>
        tx.query(
          `INSERT INTO applied_versions (tenant_id, kind, namespace, name, uid)
           SELECT $1, $2, $3, 'many-' || n, 'uid' FROM generate_series(1, $4::int4 - (
             SELECT count(*)::int4 FROM applied_versions WHERE tenant_id = $1 AND kind = $2 AND NOT deleted)) AS n`,
          [tenantId, kind, namespace, count],
        ),
      );
    const { profileId } = await call(profile.createProfile, { name: 'of templates' });
    await fill('DeviceProfile', 498);
    const outcomes = await Promise.all(
      Array.from({ length: 6 }, (_, n) =>
        call(profile.createProfile, { name: `counted-${n}` }).then(
          () => 'made',
          (error: KelletError) => error.message,
        ),
      ),
    );
    expect(outcomes.filter((outcome) => outcome === 'made')).to.have.length(2);
    expect(outcomes.filter((outcome) => outcome === 'a tenant has at most 500 profiles')).to.have.length(4);
    const made: string[] = [];
    for await (const page of kubernetes.list('DeviceProfile', namespace)) {
      made.push(...page.map(({ name }) => name).filter((name) => name.startsWith('counted-')));
    }
    expect(made).to.have.length(2);
    await fill('ProvisioningTemplate', 1000);
    expect(await refusalOf(call(template.createTemplate, { name: 'one more', profileId }))).to.equal(
      'RESOURCE_EXHAUSTED a tenant has at most 1000 provisioning templates',
    );
    await test.database.system((tx) => tx.query(`DELETE FROM applied_versions WHERE name LIKE 'many-%'`));
    await call(template.createTemplate, { name: 'one more', profileId });
  });

  it('refuses a telemetry schema of more than 64 KiB, also in a change', async () => {
    const value = (n: number) => `${n}`.padStart(250, 'x');
    const keys = (count: number) =>
      Object.fromEntries(
        Array.from({ length: count }, (_, key) => [
          `key-${key}`,
          { type: TelemetrySchema_Key_Type.string, enum: Array.from({ length: 128 }, (_, n) => value(n)) },
        ]),
      );
    const { profileId } = await call(profile.createProfile, { name: 'schema', telemetrySchema: { keys: keys(1) } });
    const tooLarge = 'INVALID_ARGUMENT telemetry_schema must be at most 65536 bytes of JSON';
    expect(
      await refusalOf(call(profile.createProfile, { name: 'larger schema', telemetrySchema: { keys: keys(3) } })),
    ).to.equal(tooLarge);
    const change = { profileId, telemetrySchema: { keys: keys(3) }, updateMask: mask('telemetry_schema') };
    expect(await refusalOf(call(profile.updateProfile, change))).to.equal(tooLarge);
  });

  it('changes only the fields in the body, repeatedly', async () => {
    const { profileId } = await call(profile.createProfile, {
      name: 'changing',
      type: 'a',
      defaultTags: { site: 'north' },
      offlineAfterSeconds: 60,
    });
    const first = await call(profile.updateProfile, { profileId, type: 'b', updateMask: mask('type') });
    expect(first).to.include({ type: 'b', offlineAfterSeconds: 60 });
    expect(first.defaultTags).to.deep.equal({ site: 'north' });
    const second = await call(profile.updateProfile, {
      profileId,
      name: 'Changed!',
      defaultTags: {},
      offlineAfterSeconds: 0,
      updateMask: mask('name', 'default_tags', 'offline_after_seconds'),
    });
    expect(second).to.include({ name: 'Changed!', type: 'b', offlineAfterSeconds: 0 });
    expect(second.defaultTags).to.deep.equal({});
    const object = await read<DeviceProfileSpec>('DeviceProfile', 'changing');
    expect(object!.spec).to.deep.equal({ type: 'b' });
    expect(object!.metadata.annotations).to.include({ [displayNameAnnotation]: 'Changed!' });
    expect(object!.metadata.annotations![intentAnnotation]).to.be.a('string');
    expect(await refusalOf(call(profile.updateProfile, { profileId, updateMask: mask('profile_id') }))).to.match(
      /^INVALID_ARGUMENT/,
    );
  });

  it('removes every part of a policy', async () => {
    const { profileId } = await call(profile.createProfile, {
      name: 'removed',
      otaPolicy: { requireSignature: true, maxAttempts: 3, window: { start: '22:00', end: '04:00', days: ['mon'] } },
      telemetrySchema: { keys: { temperature: { type: 1, min: -40 } }, additionalKeys: 2 },
    });
    const changed = await call(profile.updateProfile, {
      profileId,
      otaPolicy: { requireSignature: false },
      telemetrySchema: {},
      updateMask: mask('ota_policy', 'telemetry_schema'),
    });
    expect(changed.otaPolicy).to.include({ requireSignature: false, maxAttempts: 0 });
    expect(changed.otaPolicy!.window).to.equal(undefined);
    expect(changed.telemetrySchema!.keys).to.deep.equal({});
    const none = await call(profile.updateProfile, { profileId, updateMask: mask('ota_policy', 'telemetry_schema') });
    expect([none.otaPolicy, none.telemetrySchema]).to.deep.equal([undefined, undefined]);
  });

  it('changes only the named fields of a policy, and takes over none of the others', async () => {
    const { profileId } = await call(profile.createProfile, { name: 'parts', otaPolicy: { deviceTimeoutSeconds: 60 } });
    const object = await applyAsAnother('parts', { otaPolicy: { requireSignature: true, maxAttempts: 5 } });
    await dispatcher.apply(applyRequest('DeviceProfile', tenantId, object as KubernetesObject<DeviceProfileSpec>));
    const update = (otaPolicy: MessageInitShape<typeof OtaPolicySchema>, ...paths: string[]) =>
      call(profile.updateProfile, { profileId, otaPolicy, updateMask: mask(...paths) });
    const changed = await update({ deviceTimeoutSeconds: 90 }, 'ota_policy.device_timeout_seconds');
    expect(changed.otaPolicy).to.include({ deviceTimeoutSeconds: 90, requireSignature: true, maxAttempts: 5 });
    // Git can still change its fields without force, because REST has not become an owner of them.
    const spec = { otaPolicy: { requireSignature: true, maxAttempts: 6 } };
    const again = { apiVersion, kind: 'DeviceProfile', metadata: { name: 'parts', namespace }, spec };
    await another.apply(customResources.DeviceProfile, again, { fieldManager: 'argocd-controller', force: false });
    expect(await refusalOf(update({ maxAttempts: 7 }, 'ota_policy.max_attempts'))).to.match(
      /^FAILED_PRECONDITION ota_policy.max_attempts is managed by argocd-controller/,
    );
    expect(await refusalOf(update({}, 'ota_policy'))).to.match(
      /^FAILED_PRECONDITION ota_policy\S* is managed by argocd/,
    );
    const last = await update({}, 'ota_policy.device_timeout_seconds');
    expect(last.otaPolicy).to.include({ deviceTimeoutSeconds: 0, requireSignature: true, maxAttempts: 6 });
  });

  it('leaves no empty policy when its last field is removed', async () => {
    const { profileId } = await call(profile.createProfile, { name: 'last-part', otaPolicy: { maxAttempts: 3 } });
    const updateMask = mask('ota_policy.max_attempts');
    await call(profile.updateProfile, { profileId, otaPolicy: {}, updateMask });
    const { spec } = (await read<DeviceProfileSpec>('DeviceProfile', 'last-part'))!;
    expect(spec.otaPolicy?.maxAttempts).to.equal(undefined);
    const again = await call(profile.updateProfile, { profileId, otaPolicy: { maxAttempts: 4 }, updateMask });
    expect(again.otaPolicy).to.include({ maxAttempts: 4 });
  });

  it('loses no concurrent changes, also across processes', async () => {
    const { profileId } = await call(profile.createProfile, { name: 'busy', type: 'a', defaultTags: { a: 'b' } });
    const { database } = test;
    const replica = new ResourceWriter({ database, kubernetes, dispatcher, logger });
    const there = (value: unknown, ...path: string[]) =>
      replica.patch(context, { kind: 'DeviceProfile', name: 'busy', spec: [{ path, value }] });
    for (let round = 1; round <= 8; round += 1) {
      await Promise.all([
        call(profile.updateProfile, { profileId, type: `type ${round}`, updateMask: mask('type') }),
        there({ c: `${round}` }, 'defaultTags'),
        call(profile.updateProfile, {
          profileId,
          offlineAfterSeconds: round,
          updateMask: mask('offline_after_seconds'),
        }),
        there(round, 'otaPolicy', 'maxAttempts'),
        call(profile.updateProfile, {
          profileId,
          otaPolicy: { deviceTimeoutSeconds: round },
          updateMask: mask('ota_policy.device_timeout_seconds'),
        }),
      ]);
      const object = await read<DeviceProfileSpec>('DeviceProfile', 'busy');
      expect(object!.spec).to.deep.equal({
        type: `type ${round}`,
        defaultTags: { c: `${round}` },
        offlineAfterSeconds: round,
        otaPolicy: { maxAttempts: round, deviceTimeoutSeconds: round },
      });
      const held = await call(profile.getProfile, { profileId });
      expect(held).to.include({ type: `type ${round}`, offlineAfterSeconds: round });
      expect(held.defaultTags).to.deep.equal({ c: `${round}` });
    }
  });

  it('keeps the last name despite concurrent changes of other fields', async () => {
    const { profileId } = await call(profile.createProfile, { name: 'named' });
    for (let round = 1; round <= 8; round += 1) {
      await Promise.all([
        call(profile.updateProfile, { profileId, type: `type ${round}`, updateMask: mask('type') }),
        call(profile.updateProfile, { profileId, name: `Name ${round}`, updateMask: mask('name') }),
        call(profile.updateProfile, {
          profileId,
          offlineAfterSeconds: round,
          updateMask: mask('offline_after_seconds'),
        }),
      ]);
      expect(await call(profile.getProfile, { profileId })).to.include({
        name: `Name ${round}`,
        type: `type ${round}`,
      });
    }
  });

  it('creates resources with a finalizer, also after a change', async () => {
    const { profileId } = await call(profile.createProfile, { name: 'held', type: 'a' });
    expect((await read('DeviceProfile', 'held'))!.metadata.finalizers).to.deep.equal([finalizer]);
    await call(profile.updateProfile, { profileId, type: 'b', updateMask: mask('type') });
    expect((await read('DeviceProfile', 'held'))!.metadata.finalizers).to.deep.equal([finalizer]);
    await call(profile.deleteProfile, { profileId });
    expect(await read('DeviceProfile', 'held')).to.equal(undefined);
  });

  it('refuses to change a resource that is being deleted', async () => {
    const { profileId } = await call(profile.createProfile, { name: 'leaving', type: 'a' });
    const hold = (finalizers: string[]) =>
      kubernetes.mergePatch('DeviceProfile', namespace, 'leaving', { metadata: { finalizers } }, context.signal);
    const { uid = '' } = (await hold([finalizer, 'kellet.test/hold'])).metadata;
    await kubernetes.delete('DeviceProfile', namespace, 'leaving', uid, context.signal);
    const change = { profileId, type: 'b', updateMask: mask('type') };
    expect(await refusalOf(call(profile.updateProfile, change))).to.equal(
      'FAILED_PRECONDITION the custom resource leaving is being deleted',
    );
    await hold([]);
    expect(await refusalOf(call(profile.updateProfile, change))).to.equal(
      'FAILED_PRECONDITION the custom resource leaving no longer exists',
    );
    await call(profile.deleteProfile, { profileId });
  });

  it('takes over no field from another manager, and names the manager', async () => {
    const { profileId } = await call(profile.createProfile, { name: 'shared', type: 'a', offlineAfterSeconds: 60 });
    const object = await applyAsAnother('shared', { type: 'git' });
    await dispatcher.apply(applyRequest('DeviceProfile', tenantId, object as KubernetesObject<DeviceProfileSpec>));
    const change = { profileId, type: 'mine', updateMask: mask('type') };
    expect(await refusalOf(call(profile.updateProfile, change))).to.match(
      /^FAILED_PRECONDITION type is managed by argocd-controller/,
    );
    const let_go = { profileId, type: '', updateMask: mask('type') };
    expect(await refusalOf(call(profile.updateProfile, let_go))).to.match(/argocd-controller/);
    expect(await refusalOf(call(profile.deleteProfile, { profileId }))).to.match(
      /^FAILED_PRECONDITION .*managed by argocd-controller/,
    );
    const other = await call(profile.updateProfile, {
      profileId,
      offlineAfterSeconds: 90,
      updateMask: mask('offline_after_seconds'),
    });
    expect(other).to.include({ type: 'git', offlineAfterSeconds: 90 });
  });

  it('says if a change is refused for a value that the resource had before', async () => {
    const { profileId } = await call(profile.createProfile, { name: 'martian', type: 'a' });
    const window = { start: '22:00', end: '04:00', timeZone: 'Mars/X' };
    await applyAsAnother('martian', { otaPolicy: { window } });
    const change = { profileId, offlineAfterSeconds: 60, updateMask: mask('offline_after_seconds') };
    const problem = 'INVALID_ARGUMENT ota_policy.window.time_zone: "Mars/X" is not an IANA time zone';
    expect(await refusalOf(call(profile.updateProfile, change))).to.equal(
      `${problem} (this value is the custom resource's; the request does not change it)`,
    );
  });

  it('rejects a map or set that lacks entries of another manager', async () => {
    const { profileId } = await call(profile.createProfile, { name: 'mixed', defaultTags: { mine: '1' } });
    const spec = {
      defaultTags: { theirs: '1' },
      telemetrySchema: { keys: { kub: { type: 'Number', required: true } } },
    };
    const object = await applyAsAnother('mixed', spec as DeviceProfileSpec);
    await dispatcher.apply(applyRequest('DeviceProfile', tenantId, object as KubernetesObject<DeviceProfileSpec>));
    const update = (fields: Omit<MessageInitShape<typeof profile.updateProfile.input>, '$typeName'>, path: string) =>
      call(profile.updateProfile, { profileId, ...fields, updateMask: mask(path) });
    for (const defaultTags of [{ b: '2' }, {}] as Record<string, string>[]) {
      expect(await refusalOf(update({ defaultTags }, 'default_tags'))).to.match(
        /^FAILED_PRECONDITION default_tags(\.theirs)? is managed by argocd-controller/,
      );
    }
    expect(await refusalOf(update({ telemetrySchema: { keys: { x: { type: 2 } } } }, 'telemetry_schema'))).to.match(
      /^FAILED_PRECONDITION telemetry_schema.keys.kub is managed by argocd-controller/,
    );
    const merged = await update({ defaultTags: { b: '2', theirs: '1' } }, 'default_tags');
    expect(merged.defaultTags).to.deep.equal({ b: '2', theirs: '1' });
  });

  it('deletes both, unless the profile is in use', async () => {
    const { profileId } = await call(profile.createProfile, { name: 'doomed' });
    const deviceId = newId();
    await test.database.tenant(tenantId, (tx) =>
      createDevice(tx, {
        ...{ tenantId, deviceId, name: 'd', hardwareId: deviceId, profileId, groupIds: [] },
        credentialType: 'api_key',
      }),
    );
    expect(await refusalOf(call(profile.deleteProfile, { profileId }))).to.equal(
      'FAILED_PRECONDITION the profile is used by 1 device',
    );
    expect((await read('DeviceProfile', 'doomed'))!.metadata.deletionTimestamp).to.equal(undefined);
    await test.database.system((tx) =>
      tx.query('UPDATE devices SET deleted_at = now() WHERE device_id = $1', [deviceId]),
    );
    await call(profile.deleteProfile, { profileId });
    expect(await read('DeviceProfile', 'doomed')).to.equal(undefined);
    expect(await refusalOf(call(profile.getProfile, { profileId }))).to.match(/^NOT_FOUND/);
    expect((await call(profile.createProfile, { name: 'doomed' })).profileId).to.equal(profileId);
  });

  it('says that a deletion has begun if the profile has come into use', async () => {
    const { profileId } = await call(profile.createProfile, { name: 'taken' });
    const deviceId = newId();
    const { database } = test;
    const late = Object.create(kubernetes) as KubernetesApi;
    late.delete = async (...given) => {
      await database.tenant(tenantId, (tx) =>
        createDevice(tx, {
          ...{ tenantId, deviceId, name: 'd', hardwareId: deviceId, profileId, groupIds: [] },
          credentialType: 'api_key',
        }),
      );
      return kubernetes.delete(...given);
    };
    const slow = new ResourceWriter({ database, kubernetes: late, dispatcher, logger });
    expect(await refusalOf(slow.remove(context, 'DeviceProfile', 'taken'))).to.equal(
      'CANCELLED the profile is used by 1 device: the deletion has begun, and ends once it is not used any more',
    );
    await database.system((tx) => tx.query('UPDATE devices SET deleted_at = now() WHERE device_id = $1', [deviceId]));
    await call(profile.deleteProfile, { profileId });
    expect(await read('DeviceProfile', 'taken')).to.equal(undefined);
  });

  it('pages through profiles by name, exactly to the end', async () => {
    const names: string[] = [];
    let pageToken = '';
    do {
      const page = await call(profile.listProfiles, { pageSize: 2, pageToken });
      names.push(...page.profiles.map((found) => found.name));
      pageToken = page.nextPageToken;
    } while (pageToken !== '');
    expect(names).to.deep.equal(names.toSorted());
    expect(new Set(names).size).to.equal(names.length);
    expect(names).to.include.members(['Cold store', 'Changed!', 'doomed']);
  });

  it('returns a template’s key once; Kubernetes and the database have only its hash', async () => {
    const { profileId } = await call(profile.createProfile, { name: 'keyed' });
    const made = await call(template.createTemplate, {
      name: 'keys',
      profileId,
      hardwareIdPattern: 'AA-*',
      oneTime: true,
      expiresInSeconds: 600,
    });
    expect(made).to.deep.include({ profileId, hardwareIdPattern: 'AA-*', oneTime: true, keyState: 1, claims: 0 });
    expect(made.provisionKey).to.match(/^pk_/);
    const object = await read<ProvisioningTemplateSpec>('ProvisioningTemplate', 'keys');
    expect(object!.spec.keySha256).to.equal(provisionKeyHash(made.provisionKey!).toString('hex'));
    expect(object!.spec.keyBinding).to.equal(provisionKeyBinding(tenantId, made.provisionKey!));
    expect(JSON.stringify(object)).not.to.include(made.provisionKey);
    const again = await call(template.getTemplate, { templateId: made.templateId });
    expect(again.provisionKey).to.equal(undefined);

    const rotated = await call(template.rotateTemplateKey, { templateId: made.templateId });
    expect(rotated.provisionKey).to.match(/^pk_/).and.not.equal(made.provisionKey);
    const disabled = await call(template.disableTemplate, { templateId: made.templateId });
    expect(disabled).to.include({ enabled: false, keyState: 4 });
    expect(await call(template.disableTemplate, { templateId: made.templateId })).to.include({ enabled: false });
    const enabled = await call(template.updateTemplate, {
      templateId: made.templateId,
      enabled: true,
      expiresInSeconds: 0,
      updateMask: mask('enabled', 'expires_in_seconds'),
    });
    expect(enabled).to.include({ enabled: true, keyState: 1, expiresInSeconds: 0 });
    expect(enabled.expiresAt).to.equal(undefined);

    expect(await refusalOf(call(profile.deleteProfile, { profileId }))).to.include('1 provisioning template');
    await call(template.deleteTemplate, { templateId: made.templateId });
    expect(await read('ProvisioningTemplate', 'keys')).to.equal(undefined);
  });

  it('creates templates with each type of credential', async () => {
    const { profileId } = await call(profile.createProfile, { name: 'credentials' });
    for (const [credentialType, inManifest] of [
      [Credential_Type.psk, 'Psk'],
      [Credential_Type.certificate, 'Certificate'],
    ] as const) {
      const name = `credentials-${inManifest.toLowerCase()}`;
      const made = await call(template.createTemplate, { name, profileId, credentialType });
      expect(made).to.include({ credentialType });
      expect((await read('ProvisioningTemplate', name))?.spec).to.include({ credentialType: inManifest });
      expect(await call(template.getTemplate, { templateId: made.templateId })).to.include({ credentialType });
    }
  });

  it('rejects templates with invalid references or fields, leaving nothing behind', async () => {
    const { profileId } = await call(profile.createProfile, { name: 'strict' });
    const make = (fields: object) => refusalOf(call(template.createTemplate, { name: 'no', profileId, ...fields }));
    expect(await make({ name: '' })).to.equal('INVALID_ARGUMENT name is required');
    expect(await make({ profileId: '' })).to.equal('INVALID_ARGUMENT profile_id is required');
    expect(await make({ profileId: newId() })).to.equal('NOT_FOUND profile_id not found');
    expect(await make({ profileId: 'x' })).to.equal('NOT_FOUND profile_id not found');
    expect(await make({ defaultGroupIds: [newId()] })).to.equal('NOT_FOUND default_group_ids not found');
    expect(await make({ credentialType: 9 })).to.match(/^INVALID_ARGUMENT credential_type/);
    expect(await make({ expiresInSeconds: 315_360_001 })).to.match(/^INVALID_ARGUMENT expires_in_seconds/);
    expect(await make({ hardwareIdPattern: 'x'.repeat(257) })).to.match(/^INVALID_ARGUMENT hardware_id_pattern/);
    expect(await read('ProvisioningTemplate', 'no')).to.equal(undefined);
  });

  it('removes the resource if the data plane rejects it', async () => {
    const spec: ProvisioningTemplateSpec = { profileRef: { name: 'nowhere' }, keySha256: 'ab'.repeat(32) };
    const made = writer.create(context, { kind: 'ProvisioningTemplate', displayName: 'refused', spec }, idOf);
    expect(await refusalOf(made)).to.equal('NOT_FOUND profile_id: there is no DeviceProfile nowhere');
    expect(await read('ProvisioningTemplate', 'refused')).to.equal(undefined);
    expect((await intents()).find((intent) => intent.name === 'refused')).to.include({ state: 'cancelled' });
  });

  it('reports validation errors of the definition', async () => {
    const spec: DeviceProfileSpec = { offlineAfterSeconds: 0 };
    const made = writer.create(context, { kind: 'DeviceProfile', displayName: 'invalid', spec }, idOf);
    expect(await refusalOf(made)).to.match(/^INVALID_ARGUMENT offline_after_seconds: /);
  });

  it('keeps nothing of what the API server refuses, however often', async () => {
    await applyAsAnother('taken', { type: 'git' });
    const before = await intents();
    const spec: DeviceProfileSpec = { offlineAfterSeconds: 0 };
    for (const displayName of ['wrong', 'wrong', 'taken', 'taken']) {
      const made = writer.create(
        context,
        { kind: 'DeviceProfile', displayName, spec: displayName === 'wrong' ? spec : {} },
        idOf,
      );
      expect(await refusalOf(made)).to.match(/^(INVALID_ARGUMENT|ALREADY_EXISTS) /);
    }
    expect(await intents()).to.deep.equal(before);
  });

  it('reverts a change that the data plane rejects', async () => {
    await call(profile.createProfile, { name: 'held' });
    const { profileId } = await call(profile.createProfile, { name: 'holder' });
    await call(template.createTemplate, { name: 'steady', profileId });
    const change = {
      kind: 'ProvisioningTemplate',
      name: 'steady',
      spec: [{ path: ['profileRef'], value: { name: 'nowhere' } }],
    } as const;
    expect(await refusalOf(writer.patch(context, change))).to.match(/^NOT_FOUND/);
    const object = await read<ProvisioningTemplateSpec>('ProvisioningTemplate', 'steady');
    expect(object!.spec.profileRef.name).to.equal('holder');
  });

  it('says that a refused change that cannot be reverted is made', async () => {
    await call(profile.createProfile, { name: 'kept' });
    const { profileId } = await call(profile.createProfile, { name: 'first' });
    await call(template.createTemplate, { name: 'left', profileId });
    const once = Object.create(kubernetes) as KubernetesApi;
    once.apply = (...given) => {
      once.apply = () => Promise.reject(new Error('the API server is away'));
      return kubernetes.apply(...given);
    };
    const cut = new ResourceWriter({ database: test.database, kubernetes: once, dispatcher, logger });
    const spec = [{ path: ['profileRef'], value: { name: 'nowhere' } }];
    expect(await refusalOf(cut.patch(context, { kind: 'ProvisioningTemplate', name: 'left', spec }))).to.match(
      /^CANCELLED .*: the custom resource is changed nevertheless$/,
    );
  });

  describe('when the data plane is slow', () => {
    /** An applier that applies a profile when released. */
    const slow = () => {
      let let_go: () => void = () => undefined;
      const gate = new Promise<void>((resolve) => (let_go = resolve));
      const real = new ProfileApplier(test.database, registryUsage, new RolloutMembership(systemClock));
      const applier: Applier<never, never> = {
        apply: async (meta, spec) => {
          await gate;
          return real.apply(meta, spec) as never;
        },
        remove: (meta, detach) => real.remove(meta, detach),
      };
      const slowDispatcher = new Dispatcher(test.database);
      slowDispatcher.addApplier('DeviceProfile', applier);
      const { database } = test;
      const options = { database, kubernetes, dispatcher: slowDispatcher, logger, deadlineMilliseconds: 400 };
      return { writer: new ResourceWriter(options), let_go };
    };

    it('cancels at the deadline: UNAVAILABLE, no resource, and nothing applied later', async () => {
      const { writer: impatient, let_go } = slow();
      const made = impatient.create(context, { kind: 'DeviceProfile', displayName: 'late', spec: {} }, idOf);
      expect(await refusalOf(made)).to.match(/^UNAVAILABLE/);
      expect(await read('DeviceProfile', 'late')).to.equal(undefined);
      let_go();
      await new Promise((resolve) => setTimeout(resolve, 200));
      const rows = await test.database.system((tx) => tx.query(`SELECT FROM profiles WHERE resource_name = 'late'`));
      expect(rows.rowCount).to.equal(0);
    });

    it('succeeds if the operator applies the resource in time', async () => {
      const { writer: impatient, let_go } = slow();
      const made = impatient.create(
        context,
        { kind: 'DeviceProfile', displayName: 'rescued', spec: { type: 'r' } },
        idOf,
      );
      let object: KubernetesObject<DeviceProfileSpec> | undefined;
      while (!object) object = await read<DeviceProfileSpec>('DeviceProfile', 'rescued');
      // Result of the operator's call.
      await dispatcher.apply(applyRequest('DeviceProfile', tenantId, object));
      setTimeout(let_go, 600);
      expect(await made).to.equal(namedId(tenantId, 'profile', 'rescued'));
      expect(await read('DeviceProfile', 'rescued')).not.to.equal(undefined);
    });

    it('rejects the operator’s Apply of a cancelled creation, so that it deletes the resource', async () => {
      const { writer: impatient } = slow();
      const made = impatient.create(context, { kind: 'DeviceProfile', displayName: 'stale', spec: {} }, idOf);
      let object: KubernetesObject<DeviceProfileSpec> | undefined;
      while (!object) object = await read<DeviceProfileSpec>('DeviceProfile', 'stale');
      await refusalOf(made);
      const { refusal } = await dispatcher.apply(applyRequest('DeviceProfile', tenantId, object));
      expect(refusal?.reason).to.equal('IntentCancelled');
    });
  });

  it('cleans up after a process that died between creating the resource and its working copy', async () => {
    const intentId = newId();
    await kubernetes.create('DeviceProfile', {
      apiVersion,
      kind: 'DeviceProfile',
      metadata: { name: 'orphan', namespace, annotations: { [intentAnnotation]: intentId } },
      spec: {},
    });
    await test.database.system((tx) =>
      tx.query(
        `INSERT INTO resource_intents (tenant_id, intent_id, kind, namespace, name, deadline)
         VALUES ($1, $2, 'DeviceProfile', $3, 'orphan', now() - interval '1 minute')`,
        [tenantId, intentId, namespace],
      ),
    );
    await writer.sweep();
    expect(await read('DeviceProfile', 'orphan')).to.equal(undefined);
  });

  it('emits a span for each request to the Kubernetes API', async () => {
    const receiver = await startOtlpReceiver();
    try {
      await kubernetes.get('DeviceProfile', namespace, 'not-there');
      const path = '/apis/kellet.dev/v1alpha1/namespaces/{namespace}/deviceprofiles';
      const found = await receiver.span(({ name }) => name === `GET ${path}/{name}`);
      expect(found).to.deep.include({ kind: 3 });
      expect(found.attributes).to.include({ 'http.response.status_code': 404, 'url.template': `${path}/{name}` });
      await writer.create(context, { kind: 'DeviceProfile', displayName: 'traced', spec: {} }, idOf);
      const made = await receiver.span(({ name }) => name === `POST ${path}`);
      expect(made.attributes).to.include({ 'http.response.status_code': 201 });
    } finally {
      await receiver.stop();
    }
  });

  it('returns UNAVAILABLE and writes nothing while the API server is unavailable; reads continue', async () => {
    const config = loadKubeConfig(tenant.kubeconfig);
    config.clusters = config.clusters.map((cluster) => ({ ...cluster, server: 'https://127.0.0.1:1' }));
    const away = new ResourceWriter({
      database: test.database,
      kubernetes: new KubernetesApi(config, logger),
      dispatcher,
      logger,
    });
    const made = away.create(context, { kind: 'DeviceProfile', displayName: 'away', spec: {} }, idOf);
    expect(await refusalOf(made)).to.equal('UNAVAILABLE the Kubernetes API is unavailable');
    const rows = await test.database.system((tx) => tx.query(`SELECT FROM profiles WHERE resource_name = 'away'`));
    expect(rows.rowCount).to.equal(0);
    expect((await call(profile.listProfiles, {})).profiles).not.to.have.length(0);
  });
});
