// Compares plans with actual creations for the same requests, with a real API server and database.
//
//   KELLET_TEST_DEVICES   devices of the largest plan (10000); `make scale` has 100,000
import { randomUUID } from 'node:crypto';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { create, type MessageInitShape } from '@bufbuild/protobuf';
import { apiVersion } from '@kellet/crds';
import { CreateRolloutRequestSchema, OtaService } from '@kellet/proto/es/kellet/v1/ota_pb.ts';
import { expect } from 'chai';
import { RolloutWork } from '../../apiserver/src/device-link/ota/rollouts/work/rollout-work.ts';
import { expectedCohort } from '../../apiserver/src/device-link/ota/testing/expected-cohort.ts';
import { createProfileReader } from '../../apiserver/src/device-link/provisioning/profiles.ts';
import { createDevice } from '../../apiserver/src/device-registry/devices/devices.ts';
import { systemClock } from '../../apiserver/src/platform/clock.ts';
import { KelletError } from '../../apiserver/src/platform/errors.ts';
import { namedId, newId, rolloutId } from '../../apiserver/src/platform/ids.ts';
import type { KubernetesApi } from '../../apiserver/src/platform/kubernetes/kubernetes.ts';
import { createLogger } from '../../apiserver/src/platform/observability/logger.ts';
import { internalContext, publicCaller, type ServiceRegistry } from '../../apiserver/src/platform/rpc.ts';
import type { TestDatabase } from '../../apiserver/src/platform/testing/test-database.ts';
import { assembleServices } from '../testing/services.ts';
import { createTestTenant, type TestTenant } from '../testing/tenant.ts';

const tenantId = 'plans';
setFlagsFromString('--expose-gc');
const collectGarbage = runInNewContext('gc') as () => void;
type Body = MessageInitShape<typeof CreateRolloutRequestSchema>;

const size = Number(process.env['KELLET_TEST_DEVICES'] ?? 10_000);

/** Returns the result of some work, and the most memory that was in use meanwhile beyond what was before, in bytes. */
async function withMemory<Result>(work: () => Promise<Result>): Promise<[Result, number]> {
  const inUse = () => {
    const { heapUsed, external } = process.memoryUsage();
    return heapUsed + external;
  };
  collectGarbage();
  const before = inUse();
  let most = before;
  const timer = setInterval(() => (most = Math.max(most, inUse())), 1);
  try {
    return [await work(), most - before];
  } finally {
    clearInterval(timer);
  }
}

const id = (kind: 'package' | 'profile', name: string): string => namedId(tenantId, kind, name);

describe('a plan and a creation', function () {
  this.timeout(60_000 + size * 10);
  const context = internalContext({ ...publicCaller, kind: 'kubernetes', tenantId });
  let tenant: TestTenant;
  let namespace: string;
  let test: TestDatabase;
  let kubernetes: KubernetesApi;
  let registry: ServiceRegistry;

  before(async () => {
    tenant = await createTestTenant(tenantId);
    ({ namespace, kubernetes, test } = tenant);
    const { database } = test;
    registry = assembleServices({ database, kubernetes }).registry;
    await database.tenant(tenantId, async (tx) => {
      const packages: [name: string, type: string, status: string, compatibility?: object, version?: string][] = [
        ['good', 'fw', 'available'],
        ['way-back', 'fw', 'available'],
        ['software', 'sw', 'available'],
        ['old', 'fw', 'deprecated'],
        ['vanishing', 'fw', 'available'],
        ['uploading', 'fw', 'uploading'],
        ['rejected', 'fw', 'rejected'],
        ['other-device-type', 'fw', 'available', { device_type: 'pump' }],
        ['for-large', 'fw', 'available', { hardware_id_pattern: 'large-*' }],
        ['other-hardware', 'fw', 'available', { hardware_id_pattern: 'ZZ-*' }],
        ['later-version', 'fw', 'available', { min_version: '3.0.0' }, '3.1.0'],
      ];
      for (const [name, type, status, compatibility, version] of packages) {
        await tx.query(
          `INSERT INTO ota_packages (tenant_id, package_id, name, display_name, type, version, artifact_uri, sha256, signature,
             size_bytes, status, checksum_verified, compatibility)
           VALUES ($1, $2, $3, $3, $4, $8, 'upload://', $5, '', 1, $6, true, $7)`,
          [
            ...[tenantId, id('package', name), name, type, Buffer.alloc(32, name), status],
            ...[JSON.stringify(compatibility ?? {}), version ?? '1.0.0'],
          ],
        );
      }
      for (const [name, document] of [
        ['sensors', { type: 'sensor' }],
        ['empty', { type: 'sensor' }],
        ['busy', { type: 'sensor' }],
        ['careful', { type: 'sensor', ota_policy: { require_signature: true } }],
      ] as const) {
        await tx.query(
          `INSERT INTO profiles (tenant_id, profile_id, namespace, resource_name, name, document) VALUES ($1, $2, $3, $4, $4, $5)`,
          [tenantId, id('profile', name), namespace, name, JSON.stringify(document)],
        );
        for (let index = 0; index < (name === 'empty' ? 0 : 10); index += 1) {
          const deviceId = newId();
          await createDevice(tx, {
            ...{ tenantId, deviceId, name: 'd', hardwareId: deviceId, profileId: id('profile', name), groupIds: [] },
            credentialType: 'api_key',
          });
        }
      }
    });
  });

  after(() => tenant.close());

  const bodyOf = (change: Body) =>
    create(CreateRolloutRequestSchema, {
      packageId: id('package', 'good'),
      targetProfileId: id('profile', 'sensors'),
      canaryPercent: 30,
      ...change,
    });
  const plan = (change: Body) => registry.unary(OtaService.method.planRollout, bodyOf(change), context);
  const make = (change: Body) => registry.unary(OtaService.method.createRollout, bodyOf(change), context);
  const refusalOf = (promise: Promise<unknown>) =>
    promise.then(
      () => 'not rejected',
      (error: unknown) => (error instanceof KelletError ? `${error.code} ${error.message}` : String(error)),
    );

  const refused: readonly [what: string, change: Body, expected: RegExp, arrange?: () => Promise<unknown>][] = [
    ['no package', { packageId: '' }, /^INVALID_ARGUMENT package_id is required/],
    ['an unknown package', { packageId: newId() }, /^NOT_FOUND package_id not found/],
    ['a malformed package id', { packageId: 'x' }, /^NOT_FOUND package_id not found/],
    ['no profile', { targetProfileId: '' }, /^INVALID_ARGUMENT target_profile_id is required/],
    ['an unknown profile', { targetProfileId: newId() }, /^NOT_FOUND target_profile_id not found/],
    ['a malformed profile id', { targetProfileId: 'x' }, /^NOT_FOUND target_profile_id not found/],
    ['no canary', { canaryPercent: 0 }, /^INVALID_ARGUMENT canary_percent/],
    ['a canary above 100', { canaryPercent: 101 }, /^INVALID_ARGUMENT canary_percent/],
    ['a threshold above 100', { failureThresholdPercent: 101 }, /^INVALID_ARGUMENT failure_threshold_percent/],
    ['zero failures', { minFailures: 0 }, /^INVALID_ARGUMENT min_failures/],
    ['too many failures', { minFailures: 4_000_000_000 }, /^INVALID_ARGUMENT min_failures/],
    ['too many per minute', { maxPerMinute: 1_000_001 }, /^INVALID_ARGUMENT max_per_minute/],
    ['a timeout that is too long', { deviceTimeoutSeconds: 2_592_001 }, /^INVALID_ARGUMENT device_timeout_seconds/],
    ['too many attempts', { maxAttempts: 101 }, /^INVALID_ARGUMENT max_attempts/],
    [
      'steps that do not increase',
      { steps: [{ percent: 50 }, { percent: 50 }] },
      /^INVALID_ARGUMENT steps\[1\]\.percent/,
    ],
    ['a step below the canary', { steps: [{ percent: 30 }] }, /^INVALID_ARGUMENT steps\[0\]\.percent/],
    ['a step above 100', { steps: [{ percent: 101 }] }, /^INVALID_ARGUMENT steps\[0\]\.percent/],
    [
      'a soak that is too long',
      { steps: [{ percent: 50, soakSeconds: 2_592_001 }] },
      /^INVALID_ARGUMENT steps\[0\]\.soak_seconds/,
    ],
    ['a malformed window', { window: { start: '9', end: '10:00' } }, /^INVALID_ARGUMENT window\.start/],
    ['an empty window', { window: { start: '09:00', end: '09:00' } }, /^INVALID_ARGUMENT window/],
    [
      'a window in an unknown time zone',
      { window: { start: '09:00', end: '10:00', timeZone: 'Mars/Olympus' } },
      /^INVALID_ARGUMENT window\.time_zone/,
    ],
    ['a name that is too long', { name: 'n'.repeat(254) }, /^INVALID_ARGUMENT name/],
    ['an unknown rollback package', { rollbackPackageId: newId() }, /^NOT_FOUND rollback_package_id not found/],
    [
      'the same package for the rollback',
      { rollbackPackageId: id('package', 'good') },
      /^INVALID_ARGUMENT rollback_package_id must name another package than package_id/,
    ],
    [
      'a rollback package of another type',
      { rollbackPackageId: id('package', 'software') },
      /^INVALID_ARGUMENT rollback_package_id: the package must be of the same type/,
    ],
    [
      'a rollback package that is not uploaded yet',
      { rollbackPackageId: id('package', 'uploading') },
      /^FAILED_PRECONDITION rollback_package_id: the package is uploading/,
    ],
    [
      'a package that is not uploaded yet',
      { packageId: id('package', 'uploading') },
      /^FAILED_PRECONDITION package_id: the package is uploading/,
    ],
    [
      'a deprecated package',
      { packageId: id('package', 'old') },
      /^FAILED_PRECONDITION package_id: the package is deprecated/,
    ],
    [
      'a rejected package',
      { packageId: id('package', 'rejected') },
      /^INVALID_ARGUMENT package_id: the package is rejected/,
    ],
    [
      'a package for other devices',
      { packageId: id('package', 'other-device-type') },
      /^INVALID_ARGUMENT package_id: the package is for devices of type pump, not sensor/,
    ],
    [
      'a package for other hardware',
      { packageId: id('package', 'other-hardware') },
      /^INVALID_ARGUMENT package_id: the hardware id of no device/,
    ],
    [
      'an unsigned package',
      { targetProfileId: id('profile', 'careful') },
      /^FAILED_PRECONDITION package_id: the profile requires a package with a verified signature/,
    ],
    [
      'a profile with a running rollout',
      { targetProfileId: id('profile', 'busy'), packageId: id('package', 'way-back') },
      /^ALREADY_EXISTS rollout .+ of this profile/,
      () => make({ name: 'First one', targetProfileId: id('profile', 'busy') }),
    ],
    [
      'the name of an existing rollout',
      { name: 'First one', packageId: id('package', 'old') },
      /^ALREADY_EXISTS a rollout named "First one" already exists/,
    ],
    [
      'a name that exists only in Kubernetes',
      { name: 'in-git' },
      /^ALREADY_EXISTS a rollout named "in-git" already exists/,
      () =>
        kubernetes.create('OtaRollout', {
          apiVersion,
          kind: 'OtaRollout',
          metadata: { name: 'in-git', namespace },
          spec: { packageRef: { name: 'x' }, targetProfileRef: { name: 'x' }, canaryPercent: 1 },
        }),
    ],
    [
      'the name of an ended rollout whose resource has been deleted',
      { name: 'ended' },
      /^ALREADY_EXISTS a rollout named "ended" already exists/,
      () =>
        test.database.system((tx) =>
          tx.query(
            `INSERT INTO ota_rollouts
               (tenant_id, rollout_id, name, namespace, display_name, package_id, profile_id, phase, outcome, spec)
             VALUES ($1, $2, 'ended', $3, 'ended', $4, $5, 'completed', 'succeeded', '{}')`,
            [
              tenantId,
              rolloutId(tenantId, 'ended', id('package', 'good'), id('profile', 'sensors')),
              namespace,
              id('package', 'good'),
              id('profile', 'sensors'),
            ],
          ),
        ),
    ],
  ];

  for (const [what, change, expected, arrange] of refused) {
    it(`reject it with the same error, leaving nothing behind: ${what}`, async () => {
      await arrange?.();
      const count = async () => (await test.database.system((tx) => tx.query('SELECT FROM ota_rollouts'))).rowCount;
      const before = await count();
      const planned = await refusalOf(plan(change));
      expect(await refusalOf(make(change))).to.equal(planned);
      expect(planned).to.match(expected);
      expect(planned, 'field names of the manifest').not.to.match(/spec\.|Ref\b|[a-z]Percent|[a-z]Seconds/);
      expect(await count()).to.equal(before);
    });
  }

  const allowed: readonly [what: string, change: Body][] = [
    ['the canary and its steps', { steps: [{ percent: 60 }, { percent: 100 }] }],
    ['a deprecated rollback package', { rollbackPackageId: id('package', 'old') }],
    ['a profile without devices', { targetProfileId: id('profile', 'empty') }],
    ['a fleet that needs an intermediate version first', { packageId: id('package', 'later-version') }],
  ];
  for (const [what, change] of allowed) {
    it(`agree on the scheduled devices: ${what}`, async () => {
      const name = `agreed-${randomUUID().slice(0, 8)}`;
      const planned = await plan({ ...change, name });
      expect(await plan({ ...change, name }), 'a plan has no effect').to.deep.equal(planned);
      const made = await make({ ...change, name });
      expect(made.scheduledCount).to.equal(planned.steps[0]!.scheduled);
      expect(made.counts).to.include({ eligible: planned.eligible, scheduled: planned.steps[0]!.scheduled });
      const { devices } = await registry.unary(
        OtaService.method.listRolloutDevices,
        create(OtaService.method.listRolloutDevices.input, { rolloutId: made.rolloutId }),
        context,
      );
      expect(devices.map(({ deviceId }) => deviceId)).to.have.members(planned.steps[0]!.deviceIds);
      await registry.unary(
        OtaService.method.cancelRollout,
        create(OtaService.method.cancelRollout.input, { rolloutId: made.rolloutId }),
        context,
      );
    });
  }

  it('name the field of a package that is deleted concurrently', async () => {
    for (const [field, body] of [
      ['package_id', { packageId: id('package', 'vanishing') }],
      ['rollback_package_id', { rollbackPackageId: id('package', 'vanishing') }],
    ] as const) {
      for (const work of [plan, make]) {
        const setDeleted = (tx: { query(text: string): Promise<unknown> }, value: string) =>
          tx.query(`UPDATE ota_packages SET deleted_at = ${value} WHERE name = 'vanishing'`);
        await test.database.system((tx) => setDeleted(tx, 'NULL'));
        const outcome = await test.database.system(async (tx) => {
          await setDeleted(tx, 'now()');
          const refused = refusalOf(work(body));
          // The request has read the package, and waits for the lock on its row.
          await new Promise((resolve) => setTimeout(resolve, 1000));
          return { refused };
        });
        expect(await outcome.refused).to.equal(`NOT_FOUND ${field} not found`);
      }
    }
  });

  it(`agree on ${size} devices, stage by stage, and a plan takes no more memory than for ten`, async () => {
    const profileId = id('profile', 'large');
    await test.database.system(async (tx) => {
      await tx.query(
        `INSERT INTO profiles (tenant_id, profile_id, namespace, resource_name, name, document)
         VALUES ($1, $2, $3, 'large', 'large', '{"type": "sensor"}')`,
        [tenantId, profileId, namespace],
      );
      // A tenth has the version already, another tenth is of other hardware.
      await tx.query(
        `INSERT INTO devices (tenant_id, device_id, name, hardware_id, profile_id, credential_type, firmware_version)
         SELECT $1, gen_random_uuid(), 'd', CASE n % 10 WHEN 1 THEN 'other-' ELSE 'large-' END || n, $2, 'api_key',
           CASE n % 10 WHEN 0 THEN '1.0.0' ELSE '0.9.0' END
         FROM generate_series(1, $3::int4) n`,
        [tenantId, profileId, size],
      );
    });
    const steps = [{ percent: 60 }, { percent: 100 }];
    const change = {
      packageId: id('package', 'for-large'),
      targetProfileId: profileId,
      canaryPercent: 10,
      name: 'large',
      steps,
    };
    const small = { canaryPercent: 10, name: 'small', steps };
    for (let time = 0; time < 20; time += 1) await plan(small);
    const [, least] = await withMemory(() => plan(small));
    const [planned, most] = await withMemory(() => plan(change));
    expect(most - least, `${most} and ${least} bytes`).to.be.lessThan(8 * 1024 * 1024);

    const eligible = (size * 8) / 10;
    expect(planned.eligible).to.equal(eligible);
    expect(planned.excludedCounts).to.deep.equal({ already_on_version: size / 10, hardware_id: size / 10 });
    const { rolloutId: made, scheduledCount } = await make(change);
    const { database } = test;
    const profiles = createProfileReader(database);
    const work = new RolloutWork({ database, profiles, clock: systemClock, logger: createLogger('silent') });
    const order = await expectedCohort(database, made);
    let before = new Set<string>();
    for (const [index, { percent, scheduled, deviceIds }] of planned.steps.entries()) {
      if (index > 0) {
        const raised = create(OtaService.method.updateRollout.input, { rolloutId: made, canaryPercent: percent });
        await registry.unary(OtaService.method.updateRollout, raised, context);
      }
      await work.finish();
      const { rows } = await database.system((tx) =>
        tx.query<{ device_id: string }>('SELECT device_id FROM ota_rollout_devices WHERE rollout_id = $1', [made]),
      );
      expect(rows).to.have.length(scheduled);
      const after = new Set(rows.map((row) => row.device_id));
      const added = order.filter((deviceId) => after.has(deviceId) && !before.has(deviceId));
      expect(added, 'those that come next in the order').to.deep.equal(order.slice(before.size, scheduled));
      expect(added.slice(0, 100), 'those that the plan names').to.deep.equal(deviceIds);
      before = after;
    }
    expect(planned.steps.map(({ scheduled }) => scheduled)).to.deep.equal([
      eligible / 10,
      (eligible * 6) / 10,
      eligible,
    ]);
    expect(scheduledCount).to.equal(eligible / 10);
  });
});
