// For tests: what of the data plane has to do with rollouts, on a database of its own: the real registry, claims, profiles and
// rollouts, as create-services.ts wires them, without the servers around them.
import { createHash, generateKeyPairSync, type KeyObject, sign } from 'node:crypto';
import { create, type MessageInitShape } from '@bufbuild/protobuf';
import type { OtaRolloutSpec } from '@kellet/crds';
import { AdvanceRolloutRequestSchema, ObjectMetaSchema } from '@kellet/proto/es/kellet/control/v1/control_pb';
import {
  CreateDeviceRequestSchema,
  DeleteDeviceRequestSchema,
  UpdateDeviceRequestSchema,
} from '@kellet/proto/es/kellet/v1/device_registry_pb';
import { GetChunkRequestSchema, OtaReport_Status, OtaReportSchema } from '@kellet/proto/es/kellet/v1/ota_pb';
import { ClaimDeviceRequestSchema } from '@kellet/proto/es/kellet/v1/provisioning_pb';
import { deviceCredentials, insertTenant } from '../../../auth/testing/test-fixtures.ts';
import { MovableClock } from '../../../auth/testing/test-platform.ts';
import { RefusalError } from '../../../control/applier.ts';
import type { ChangeCoalescer } from '../../../control/changes.ts';
import { deviceHandlers } from '../../../device-registry/devices/device-handlers.ts';
import { DeviceDirectory } from '../../../device-registry/devices/directory.ts';
import { QueryGroups } from '../../../device-registry/groups/query-groups.ts';
import { Liveness } from '../../../device-registry/liveness/liveness.ts';
import { AuditTrail } from '../../../platform/audit/audit-trail.ts';
import type { Clock } from '../../../platform/clock.ts';
import { KelletError } from '../../../platform/errors.ts';
import type { OutboxRelay } from '../../../platform/events/outbox.ts';
import { namedId, newId } from '../../../platform/ids.ts';
import { createLogger } from '../../../platform/observability/logger.ts';
import { createMetrics } from '../../../platform/observability/metrics.ts';
import { Paging } from '../../../platform/requests/paging.ts';
import { internalContext, publicCaller } from '../../../platform/rpc.ts';
import { createTestDatabase, type TestDatabase } from '../../../platform/testing/test-database.ts';
import type { TransactionalProfileReader } from '../../../policies/profile-reader.ts';
import { updateTenant } from '../../../tenants/tenant-store.ts';
import { claimMethod } from '../../provisioning/claims.ts';
import { createProfileReader } from '../../provisioning/profiles.ts';
import { mintProvisionKey } from '../../provisioning/provision-key.ts';
import { templatesOfGroup } from '../../provisioning/template-store.ts';
import { applyProfile, applyTemplate, provisioningDispatcher } from '../../provisioning/testing/test-fixtures.ts';
import { ArtifactReader } from '../artifacts/artifact-reader.ts';
import { chunkBytes } from '../artifacts/artifact-store.ts';
import { ChunkCache } from '../artifacts/chunk-cache.ts';
import { Chunks } from '../delivery/chunks.ts';
import { assignedPackage } from '../delivery/effective-packages.ts';
import { Overrides } from '../delivery/overrides.ts';
import { awaitsScheduling, type ChangedDevice } from '../rollouts/decisions/rollout-state.ts';
import { RolloutMembership } from '../rollouts/membership.ts';
import { Reports } from '../rollouts/reports.ts';
import { RolloutApplier } from '../rollouts/rollout-applier.ts';
import { RolloutDriver } from '../rollouts/rollout-driver.ts';
import { Rollouts } from '../rollouts/rollouts.ts';
import { lockRollout } from '../rollouts/stores/rollout-store.ts';
import { scheduleNext } from '../rollouts/work/schedule-next.ts';
import { expectedCohort } from './expected-cohort.ts';
import { putArtifact, testStores } from './test-artifacts.ts';

type Manifest = Partial<OtaRolloutSpec>;
type Action = MessageInitShape<typeof AdvanceRolloutRequestSchema>['action'];

/** The tenant of every fixture. */
export const tenant = 'acme';

/** The data plane's parts that rollouts need. */
export interface RolloutFixture {
  readonly test: TestDatabase;
  readonly clock: MovableClock;
  readonly liveness: Liveness;
  readonly rollouts: Rollouts;
  readonly overrides: Overrides;
  readonly reports: Reports;
  readonly membership: RolloutMembership;
  readonly profiles: ReturnType<typeof createProfileReader>;
  readonly context: ReturnType<typeof internalContext>;
  /** Applies a profile, by default of type `sensor`, and returns its id. */
  profile(name: string, options?: { type?: string; requireSignature?: boolean }): Promise<string>;
  /** Creates an available package, signed by the key that the tenant trusts or by another one, and returns its id. */
  package(
    name: string,
    version: string,
    options?: { type?: 'fw' | 'sw'; signed?: boolean | KeyObject; minVersion?: string; maxVersion?: string },
  ): Promise<string>;
  /** Has the tenant trust these public keys alone. */
  trust(...keys: KeyObject[]): Promise<void>;
  /** Creates devices through the registry and returns their ids. */
  make(profileId: string, count: number): Promise<string[]>;
  /** Loads devices into the database at once, past the registry. Their table keeps having no statistics. */
  load(profileId: string, count: number): Promise<void>;
  /** Returns a function that claims one device of the profile, by default of new hardware, and returns its id. */
  claimer(profileName: string): Promise<(hardwareId?: string) => Promise<string>>;
  remove(deviceId: string): Promise<void>;
  move(deviceId: string, profileId: string): Promise<void>;
  /** Applies a new rollout of `two` to `sensor` and returns its id. */
  start(change?: Manifest): Promise<string>;
  /** Applies the same manifest again, changed. */
  apply(rolloutId: string, change: Manifest): Promise<void>;
  advance(rolloutId: string, action: Action): Promise<boolean>;
  /** Asks for scheduling as the operator does: while the observation calls for it. */
  schedule(rolloutId: string): Promise<void>;
  report(deviceId: string, rolloutId: string, version: string, success?: boolean): Promise<unknown>;
  chunk(deviceId: string, packageId: string, offset?: number, length?: number): ReturnType<Chunks['get']>;
  metadata(deviceId: string): ReturnType<typeof assignedPackage>;
  rows<R extends Record<string, unknown>>(text: string, ...values: unknown[]): Promise<R[]>;
  /** The row of a rollout. */
  row(rolloutId: string): Promise<Record<string, unknown>>;
  /** Devices that are in the rollout, by state. */
  members(
    rolloutId: string,
  ): Promise<{ device_id: string; state: string; stage_percent: number; acknowledged: boolean }[]>;
  /** The devices that are eligible for the rollout, in the order in which it reaches them: worked out from the whole fleet. */
  eligible(rolloutId: string): Promise<string[]>;
  /** The devices of the rollout's cohort, in order. */
  cohort(rolloutId: string): Promise<string[]>;
  /** Subjects of the rollout's own events, without tenant and id. */
  events(rolloutId: string): Promise<string[]>;
  /** The data of the events of the rollout's devices. */
  deviceEvents(rolloutId: string): Promise<DeviceEvent[]>;
  close(): Promise<void>;
}

/** The data of an event of devices. */
export interface DeviceEvent {
  readonly rollout_id: string;
  readonly devices: readonly (ChangedDevice & { readonly version: string })[];
}

/** Schedules the next page of a rollout, as the work of rollouts does. Reports whether more is due. */
export const schedulePage = (
  { test, profiles, clock }: Pick<RolloutFixture, 'test'> & { profiles: TransactionalProfileReader; clock: Clock },
  rolloutId: string,
): Promise<boolean> =>
  test.database.tenant(tenant, async (tx) => {
    const state = await lockRollout(tx, tenant, rolloutId);
    if (!awaitsScheduling(state)) return false;
    await scheduleNext(tx, state, (await profiles.getWithin(tx, tenant, state.profileId))!, clock);
    return awaitsScheduling(state);
  });

/** The code or reason with which work was refused; `nothing` when it was not. */
export const refusal = (work: Promise<unknown>): Promise<string> =>
  work.then(
    () => 'nothing',
    (error: unknown) => {
      if (error instanceof RefusalError) return error.reason;
      if (error instanceof KelletError) return error.code;
      throw error;
    },
  );

/** Opens a fixture with the profile `sensor` and the packages `one` (1.0.0) and `two` (2.0.0). */
export async function openRolloutFixture(): Promise<RolloutFixture> {
  const test = await createTestDatabase();
  const { database } = test;
  const clock = new MovableClock();
  const logger = createLogger('silent');
  await insertTenant(database, tenant);
  const trusted = generateKeyPairSync('ed25519');
  const trust = async (...keys: KeyObject[]) => {
    const pems = keys.map((key) => key.export({ type: 'spki', format: 'pem' }).toString());
    await database.system((tx) => updateTenant(tx, tenant, { trusted_signing_keys: pems }));
  };
  await trust(trusted.publicKey);
  const profiles = createProfileReader(database);
  const membership = new RolloutMembership(clock);
  const liveness = new Liveness(database, new DeviceDirectory(database, profiles), clock, logger);
  const paging = new Paging(Buffer.alloc(32));
  const devices = deviceHandlers({
    ...{ database, paging, clock, profiles, liveness, membership, groupUsage: templatesOfGroup },
    queryGroups: new QueryGroups(database, profiles, logger),
    credentials: deviceCredentials(clock),
  });
  const dispatcher = provisioningDispatcher(database);
  const { claimDevice } = claimMethod({
    database,
    // What the relay and the coalescer do comes after the transaction.
    outbox: { release: async () => undefined } as unknown as OutboxRelay,
    changes: { mark: () => undefined } as unknown as ChangeCoalescer,
    clock,
    logger,
    metrics: createMetrics(),
    membership,
    credentials: deviceCredentials(clock),
    audit: new AuditTrail({ database, clock, logger, metrics: createMetrics() }),
  });
  const applier = new RolloutApplier(database, profiles, clock);
  const driver = new RolloutDriver(database, profiles, clock);
  // Creation through REST is tested on the whole system; nothing here reaches it.
  const rollouts = new Rollouts({ database, profiles, paging, clock, writer: undefined as never });
  const reports = new Reports(database, membership, clock);
  const context = internalContext({ ...publicCaller, kind: 'kubernetes', tenantId: tenant, name: 'admin@acme.test' });
  const artifact = Buffer.alloc(chunkBytes + 1000, 7);
  const sha256 = createHash('sha256').update(artifact).digest();
  const bytes = async function* () {
    yield artifact;
  };
  await putArtifact(database, tenant, { sha256, sizeBytes: artifact.length }, bytes());
  const cache = new ChunkCache(new ArtifactReader(database, testStores()), 16 * chunkBytes);
  const chunks = new Chunks(database, cache, clock);
  const applied = new Map<string, (change: Manifest) => Promise<string>>();

  const rows = async <R extends Record<string, unknown>>(text: string, ...values: unknown[]): Promise<R[]> =>
    (await database.system((tx) => tx.query<R>(text, values))).rows;
  const row = async (rolloutId: string) =>
    (await rows<Record<string, unknown>>('SELECT * FROM ota_rollouts WHERE rollout_id = $1', rolloutId))[0]!;
  const advance = async (rolloutId: string, action: Action) => {
    const { revision } = await row(rolloutId);
    const request = { tenantId: tenant, rolloutId, revision: revision as bigint, action };
    return driver.advance(create(AdvanceRolloutRequestSchema, request));
  };
  const fixture: RolloutFixture = {
    ...{ test, clock, liveness, rollouts, reports, profiles, membership, context, rows, row, trust },
    overrides: new Overrides(database, profiles, membership),
    profile: async (name, { type = 'sensor', requireSignature = false } = {}) => {
      const spec = { type, otaPolicy: { requireSignature } };
      return (await applyProfile(dispatcher, { tenantId: tenant, name }, spec)).id;
    },
    package: async (name, version, { type = 'fw', signed = false, minVersion = '', maxVersion = '' } = {}) => {
      const packageId = namedId(tenant, 'package', name);
      const key = signed === true ? trusted.privateKey : signed;
      const signature = key ? sign(null, sha256, key).toString('base64') : '';
      await rows(
        `INSERT INTO ota_packages (tenant_id, package_id, name, display_name, type, version, artifact_uri, sha256, signature,
           size_bytes, compatibility, status, checksum_verified)
         VALUES ($1, $2, $3, $3, $4, $5, 'https://x', $6, $7, $8, $9, 'available', true)`,
        ...[
          tenant,
          packageId,
          name,
          type,
          version,
          sha256,
          signature,
          artifact.length,
          { min_version: minVersion, max_version: maxVersion },
        ],
      );
      return packageId;
    },
    make: (profileId, count) =>
      Promise.all(
        Array.from({ length: count }, async () => {
          const request = create(CreateDeviceRequestSchema, { hardwareId: newId(), profileId });
          return (await devices.createDevice!(request, context)).device!.deviceId!;
        }),
      ),
    load: async (profileId, count) => {
      await rows('ALTER TABLE devices SET (autovacuum_enabled = false)');
      await database.maintenance((tx) =>
        tx.query(
          `INSERT INTO devices (tenant_id, device_id, name, hardware_id, profile_id, firmware_version)
           SELECT $1, gen_random_uuid(), 'd' || n, 'hw-' || n, $2, '1.0.0' FROM generate_series(1, $3::int4) AS n`,
          [tenant, profileId, count],
        ),
      );
    },
    claimer: async (profileName) => {
      const key = mintProvisionKey();
      const { refusal: refused } = await applyTemplate(dispatcher, { tenantId: tenant, name: newId() }, key, {
        profileRef: { name: profileName },
      });
      if (refused) throw new Error(refused.message);
      return async (hardwareId = newId()) => {
        const request = { provisionKey: key, hardwareId, deviceName: 'claimed' };
        const response = await claimDevice(create(ClaimDeviceRequestSchema, request), internalContext(publicCaller));
        return response.deviceId!;
      };
    },
    remove: async (deviceId) =>
      void (await devices.deleteDevice!(create(DeleteDeviceRequestSchema, { deviceId }), context)),
    move: async (deviceId, profileId) => {
      const updateMask = { paths: ['profile_id'] };
      await devices.updateDevice!(create(UpdateDeviceRequestSchema, { deviceId, profileId, updateMask }), context);
    },
    start: async (change = {}) => {
      const name = newId();
      const meta = create(ObjectMetaSchema, { tenantId: tenant, namespace: 'kellet-acme', name, uid: newId() });
      const apply = async (next: Manifest): Promise<string> => {
        const spec = { packageRef: { name: 'two' }, targetProfileRef: { name: 'sensor' }, canaryPercent: 20 };
        const policy = { rollbackPackageRef: { name: 'one' }, failureThresholdPercent: 10, minFailures: 1 };
        return (await applier.apply(meta, { ...spec, ...policy, ...next })).id;
      };
      const id = await apply(change);
      applied.set(id, (next) => apply({ ...change, ...next }));
      return id;
    },
    apply: async (rolloutId, change) => void (await applied.get(rolloutId)!(change)),
    advance: async (rolloutId, action) => (await advance(rolloutId, action)).applied === true,
    schedule: async (rolloutId) => {
      while (await schedulePage(fixture, rolloutId));
    },
    report: (deviceId, rolloutId, firmwareVersion, success = true) => {
      const status = success ? OtaReport_Status.success : OtaReport_Status.failure;
      return reports.report(tenant, deviceId, create(OtaReportSchema, { rolloutId, firmwareVersion, status }));
    },
    chunk: (deviceId, packageId, offset = 0, length = undefined) =>
      chunks.get(tenant, create(GetChunkRequestSchema, { deviceId, packageId, offset, length })),
    metadata: (deviceId) => assignedPackage(database, clock, tenant, deviceId),
    members: (rolloutId) =>
      rows(
        `SELECT device_id, m.state, stage_percent, m.state IN ('failure', 'timed_out') AND failed_in < resumes AS acknowledged
         FROM ota_rollout_devices m JOIN ota_rollouts USING (tenant_id, rollout_id)
         WHERE rollout_id = $1 AND NOT has_left ORDER BY device_id`,
        rolloutId,
      ),
    eligible: (rolloutId) => expectedCohort(database, rolloutId),
    cohort: async (rolloutId) => {
      const found = await rows<{ device_id: string }>(
        'SELECT device_id FROM ota_rollout_cohort WHERE rollout_id = $1 ORDER BY rank',
        rolloutId,
      );
      return found.map(({ device_id: device }) => device);
    },
    events: async (rolloutId) => {
      const found = await rows<{ subject: string }>(
        `SELECT subject FROM outbox WHERE subject LIKE 'profile.ota.rollout.%' || $1 ORDER BY position`,
        rolloutId,
      );
      return found.map(({ subject }) => subject.split('.')[3]!);
    },
    deviceEvents: async (rolloutId) => {
      const found = await rows<{ payload: string }>(
        `SELECT payload FROM outbox WHERE subject = 'device.rollout.${tenant}.' || $1 ORDER BY position`,
        rolloutId,
      );
      return found.map(({ payload }) => (JSON.parse(payload) as { data: DeviceEvent }).data);
    },
    close: () => test.drop(),
  };
  await fixture.profile('sensor');
  await fixture.package('one', '1.0.0');
  await fixture.package('two', '2.0.0');
  return fixture;
}
