// A rollout of the whole system behaves as its model: random sequences of reports, verbs, polls, changes of the fleet and of the
// manifest through REST and the Kubernetes API, while the operator drives the rollout as it sees fit. After each of them the
// database, REST and the status of the resource come to what the model says, and stay there. A failing sequence is shrunk, and
// printed with its seed. The same model without the operator and with time: apiserver/src/device-link/ota/rollouts/model.test.ts.
//
//   KELLET_MODEL_SYSTEM_RUNS   how many sequences (3); `make model` has 60 of them
//   KELLET_MODEL_SEED          seed of a run to be repeated
import { randomInt } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { inspect, isDeepStrictEqual } from 'node:util';
import type { OtaRollout } from '@kellet/crds';
import { customResources, KubernetesClient, loadKubeConfig } from '@kellet/kubernetes';
import { expect } from 'chai';
import fc from 'fast-check';
import pg from 'pg';
import {
  type ModelDevice,
  type ModelSpec,
  RolloutModel,
  versions,
} from '../../apiserver/src/device-link/ota/testing/rollout-model.ts';
import { type Rest, RestError } from '../../dev/clients/rest.ts';
import type { SimulatedDevice } from '../../dev/devices/device.ts';
import { stack } from '../../dev/stack/testing/test-stack.ts';
import { waitUntil } from '../../dev/stack/wait.ts';
import {
  admin,
  makeArtifact,
  makeFleet,
  makePackage,
  makeProfile,
  type OtaPackage,
  type Profile,
  type Rollout,
  unique,
} from '../testing/fixtures.ts';

const runs = Number(process.env['KELLET_MODEL_SYSTEM_RUNS'] ?? 3);
const seed = Number(process.env['KELLET_MODEL_SEED'] ?? randomInt(2 ** 31 - 1));
/** Sequences at the same time: each waits most of the time for the operator to write the status, which it does once a second. */
const lanes = Math.min(6, runs);
const longestSequence = process.env['KELLET_MODEL_SYSTEM_RUNS'] === undefined ? 12 : 25;
/** How long the system may take to come to what the model says, in milliseconds. */
const longestWait = 45_000;

const percent = fc.constantFrom(1, 25, 34, 50, 67, 100);
/** A device, as a number of which the remainder counts. */
const device = fc.nat(7);
const version = fc.constantFrom(versions.update, versions.rollback, versions.later, versions.update);

const command = fc.oneof(
  { weight: 6, arbitrary: fc.record({ do: fc.constant('report' as const), device, version, success: fc.boolean() }) },
  { weight: 8, arbitrary: fc.record({ do: fc.constant('install' as const), device }) },
  { weight: 2, arbitrary: fc.record({ do: fc.constant('install all' as const), success: fc.boolean() }) },
  { weight: 2, arbitrary: fc.record({ do: fc.constant('progress' as const), device }) },
  { weight: 3, arbitrary: fc.record({ do: fc.constant('poll' as const), device }) },
  { weight: 2, arbitrary: fc.record({ do: fc.constant('pause' as const) }) },
  { weight: 4, arbitrary: fc.record({ do: fc.constant('resume' as const), percent: fc.option(percent) }) },
  { weight: 4, arbitrary: fc.record({ do: fc.constant('raise' as const), percent }) },
  { weight: 3, arbitrary: fc.record({ do: fc.constant('approve' as const) }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('rollback' as const) }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('cancel' as const) }) },
  { weight: 3, arbitrary: fc.record({ do: fc.constant('retry' as const), device: fc.option(device) }) },
  { weight: 2, arbitrary: fc.record({ do: fc.constant('skip' as const), device }) },
  { weight: 2, arbitrary: fc.record({ do: fc.constant('claim' as const) }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('remove' as const), device }) },
  {
    weight: 2,
    arbitrary: fc.record({ do: fc.constant('move' as const), device, to: fc.constantFrom('target', 'other') }),
  },
  {
    weight: 2,
    arbitrary: fc.record({
      do: fc.constant('override' as const),
      device,
      type: fc.constantFrom('fw' as const, 'sw' as const, undefined),
    }),
  },
  { weight: 3, arbitrary: fc.record({ do: fc.constant('manifest' as const), percent, paused: fc.boolean() }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('kill the operator' as const) }) },
);
type Command = typeof command extends fc.Arbitrary<infer C> ? C : never;

const spec: fc.Arbitrary<ModelSpec> = fc
  .record({
    canaryPercent: percent,
    failureThresholdPercent: fc.constantFrom(0, 10, 34, 50, 100),
    minFailures: fc.constantFrom(1, 2),
    maxAttempts: fc.constantFrom(1, 2),
    paused: fc.constantFrom(false, false, false, true),
    steps: fc.constantFrom<ModelSpec['steps']>(
      [],
      [{ percent: 100, approval: false }],
      [
        { percent: 50, approval: true },
        { percent: 100, approval: false },
      ],
    ),
  })
  // Those that the definition of the resource allows.
  .map(({ steps, ...policy }) => ({ ...policy, steps: steps.filter((step) => step.percent > policy.canaryPercent) }));

type Parts = Record<string, unknown>;

/** What the profiles and packages of all sequences of a lane are. */
interface Things {
  readonly profiles: Readonly<Record<'target' | 'other', Profile>>;
  readonly packages: Readonly<Record<'update' | 'rollback' | 'fw' | 'sw', OtaPackage>>;
}

/** The whole system around one rollout. */
class System {
  readonly name = unique('model');
  readonly devices: SimulatedDevice[] = [];
  rolloutId = '';
  private readonly rest: Rest;
  private readonly things: Things;
  private readonly client: KubernetesClient;
  private readonly database: pg.Pool;
  private readonly seen = new Set<string>();
  /** The value of `paused` in the manifest, which nothing else may change. */
  private isHeld = false;

  constructor(parts: { rest: Rest; things: Things; client: KubernetesClient; database: pg.Pool }) {
    this.rest = parts.rest;
    this.things = parts.things;
    this.client = parts.client;
    this.database = parts.database;
  }

  async claim(count = 1): Promise<string[]> {
    const { devices } = await makeFleet(this.rest, this.things.profiles.target.profile_id, count);
    this.devices.push(...devices);
    return devices.map(({ deviceId }) => deviceId);
  }

  async start({ steps, ...policy }: ModelSpec): Promise<void> {
    this.isHeld = policy.paused;
    const { profiles, packages } = this.things;
    const { namespace } = stack().info;
    const manifest = {
      ...{ apiVersion: 'kellet.dev/v1alpha1', kind: 'OtaRollout', metadata: { name: this.name, namespace } },
      spec: {
        packageRef: { name: packages.update.name },
        targetProfileRef: { name: profiles.target.name },
        rollbackPackageRef: { name: packages.rollback.name },
        deviceTimeoutSeconds: 86_400,
        ...policy,
        steps: steps.map((step) => ({ ...step, soakSeconds: 0 })),
      },
    };
    await this.client.create(customResources.OtaRollout, manifest);
    this.rolloutId = await waitUntil(async () => (await this.resource()).status?.rolloutId, {
      what: 'the rollout',
      timeoutMilliseconds: longestWait,
    });
  }

  resource(): Promise<OtaRollout> {
    return this.client.get<OtaRollout>(customResources.OtaRollout, stack().info.namespace, this.name);
  }

  /** Ends the rollout, so that the next sequence can have the profile. */
  async end(): Promise<void> {
    await this.verb('cancel').catch(() => undefined);
    for (const one of this.devices) await this.remove(one.deviceId).catch(() => undefined);
  }

  verb(name: string, body: object = {}): Promise<unknown> {
    return this.rest.post(`/api/v1/ota/rollouts/${this.rolloutId}/${name}`, body);
  }

  raise(canary_percent: number): Promise<unknown> {
    return this.rest.patch(`/api/v1/ota/rollouts/${this.rolloutId}`, { canary_percent });
  }

  remove(id: string): Promise<unknown> {
    return this.rest.delete(`/api/v1/devices/${id}`);
  }

  move(id: string, to: 'target' | 'other'): Promise<unknown> {
    return this.rest.patch(`/api/v1/devices/${id}`, { profile_id: this.things.profiles[to].profile_id });
  }

  override(id: string, type: 'fw' | 'sw' | undefined): Promise<unknown> {
    const path = `/api/v1/devices/${id}/ota/assignment`;
    if (!type) return this.rest.delete(path);
    return this.rest.call('PUT', path, { body: { package_id: this.things.packages[type].package_id } });
  }

  /** The device asks for its commands. Reports whether it gets one of the rollout that it did not have. */
  async poll(id: string): Promise<boolean> {
    const commands = await this.deviceOf(id).poll(0);
    const isNew = commands.some(
      ({ correlation_id, params }) => params?.['rollout_id'] === this.rolloutId && !this.seen.has(correlation_id),
    );
    for (const { correlation_id } of commands) this.seen.add(correlation_id);
    return isNew;
  }

  report(id: string, report: object): Promise<unknown> {
    const body = { device_id: id, rollout_id: this.rolloutId, ...report };
    return this.deviceOf(id).rest.post(`/api/v1/devices/${id}/ota/report`, body);
  }

  /** Changes the manifest, and waits until the operator has taken it up. */
  async apply(change: Partial<ModelSpec> & { paused: boolean }): Promise<void> {
    this.isHeld = change.paused;
    const { namespace } = stack().info;
    const { metadata } = await this.client.mergePatch(customResources.OtaRollout, namespace, this.name, {
      spec: change,
    });
    const isTakenUp = async () => ((await this.resource()).status?.observedGeneration ?? 0) >= metadata.generation!;
    await waitUntil(isTakenUp, { what: 'the changed manifest in the status', timeoutMilliseconds: longestWait });
  }

  /** What the database, REST and the resource say, in the words of REST. */
  async shown(): Promise<Parts> {
    const { rows } = await this.database.query<Parts>('SELECT * FROM ota_rollouts WHERE rollout_id = $1', [
      this.rolloutId,
    ]);
    const row = rows[0]!;
    const rest = await this.rest.get<Rollout>(`/api/v1/ota/rollouts/${this.rolloutId}`);
    const listed = await this.rest.list<{ device_id: string; state: string }>(
      `/api/v1/ota/rollouts/${this.rolloutId}/devices`,
      'devices',
    );
    const { status, spec: manifest } = await this.resource();
    const lower = (word: string | undefined) =>
      (word ?? '').replaceAll(/(?!^)[A-Z]/g, (letter) => `_${letter}`).toLowerCase();
    const nothing = {
      eligible: 0,
      scheduled: 0,
      sent: 0,
      succeeded: 0,
      failed: 0,
      timed_out: 0,
      skipped: 0,
      removed: 0,
    };
    const countsOf = (from: Parts) => Object.fromEntries(Object.keys(nothing).map((name) => [name, from[name] ?? 0]));
    const { timedOut, ...counts } = status?.counts ?? {};
    return {
      database: {
        ...{ phase: row['phase'], outcome: row['outcome'], counts: countsOf(row) },
        ...{ step: row['step_index'], approved: row['approved_step_index'], resumes: row['resumes'] },
        ...{ reasons: (row['pause_conditions'] as { reason: string }[]).map(({ reason }) => reason) },
        ...{ scheduledInitially: row['scheduled_initially'], rollbackPending: row['rollback_pending'] },
      },
      rest: {
        ...{ phase: rest.status, outcome: rest.outcome ?? '', counts: countsOf(rest.counts) },
        ...{ percent: rest.effective_percent, reasons: (rest.pause_reasons ?? []).toSorted() },
        ...{ scheduledInitially: rest.scheduled_count ?? 0 },
        devices: Object.fromEntries(listed.map((each) => [each.device_id, each.state])),
      },
      resource: {
        ...{ phase: lower(status?.phase), outcome: lower(status?.outcome) },
        counts: countsOf({ ...counts, timed_out: timedOut }),
        ...{ percent: status?.effectivePercent, reasons: status?.pauseConditions?.map(({ reason }) => reason) ?? [] },
        ...{ scheduledInitially: status?.scheduledCount ?? 0, failurePercent: status?.failurePercent ?? 0 },
        isHeldAsApplied: (manifest.paused ?? false) === this.isHeld,
      },
    };
  }

  private deviceOf(id: string): SimulatedDevice {
    return this.devices.find(({ deviceId }) => deviceId === id)!;
  }
}

/** What the model says that the system shows. */
function expected(model: RolloutModel): Parts {
  const { timedOut, ...counts } = model.counts();
  const all = { ...counts, timed_out: timedOut };
  const publicNames = {
    ...{ OperatorPause: 'operator_pause', FailureThresholdExceeded: 'failure_threshold_exceeded' },
    ...{ StepApproval: 'step_approval' },
  } as const;
  const held = model.spec.paused && model.phase === 'paused' ? (['operator_pause'] as const) : [];
  const failures = all.failed + all.timed_out;
  const common = {
    phase: model.phase,
    outcome: model.outcome,
    counts: all,
    scheduledInitially: model.scheduledInitially,
  };
  return {
    database: {
      ...common,
      ...{ step: model.stepIndex, approved: model.approvedStepIndex, resumes: model.resumes },
      ...{ reasons: model.conditions, rollbackPending: model.rollbackPending },
    },
    rest: {
      ...{ ...common, percent: model.percent },
      reasons: [...new Set([...held, ...model.conditions.map((reason) => publicNames[reason])])].toSorted(),
      devices: Object.fromEntries(model.devices.flatMap(({ id, member }) => (member ? [[id, member.state]] : []))),
    },
    resource: {
      ...{ ...common, percent: model.percent, reasons: model.conditions, isHeldAsApplied: true },
      failurePercent: all.scheduled === 0 ? 0 : Math.min(100, Math.ceil((failures * 100) / all.scheduled)),
    },
  };
}

const sorted = (value: unknown): string => inspect(value, { depth: 9, sorted: true, breakLength: 140 });

/** The code with which a call is refused; `nothing` when it is not. */
const refusal = (call: Promise<unknown>): Promise<string> =>
  call.then(
    () => 'nothing',
    (error: unknown) => {
      if (error instanceof RestError) return error.code;
      throw error;
    },
  );

function agree(what: string, real: unknown, modelled: unknown): void {
  const difference = `${what}\n  is        ${sorted(real)}\n  should be ${sorted(modelled)}`;
  expect(isDeepStrictEqual(real, modelled), difference).to.equal(true);
}

/** Does the same with both. */
async function perform(model: RolloutModel, system: System, step: Command): Promise<void> {
  const chosen = (n: number): ModelDevice => model.devices[n % model.devices.length]!;
  const same = async (real: Promise<unknown>, modelled: () => string): Promise<void> =>
    agree('response', await refusal(real), modelled());
  const report = (one: ModelDevice, reported: string, success: boolean) =>
    same(system.report(one.id, { firmware_version: reported, status: success ? 'success' : 'failure' }), () =>
      model.report(one, reported, success),
    );
  const poll = async (one: ModelDevice) => agree('poll', await system.poll(one.id), model.poll(one, Date.now()));
  switch (step.do) {
    case 'report': {
      const one = chosen(step.device);
      // A deleted device has no key.
      return one.deleted ? undefined : report(one, step.version, step.success);
    }
    case 'install': {
      const one = chosen(step.device);
      if (one.deleted) return;
      await poll(one);
      return report(one, one.member?.rollingBack ? versions.rollback : versions.update, true);
    }
    case 'install all':
      for (const one of model.devices) {
        if (one.deleted) continue;
        await poll(one);
        // The operator may act after each report.
        await report(one, one.member?.rollingBack ? versions.rollback : versions.update, step.success);
        await settle(model, system);
      }
      return;
    case 'progress': {
      const one = chosen(step.device);
      if (one.deleted) return;
      return same(system.report(one.id, { progress_percent: 40 }), () => model.progress(one));
    }
    case 'poll': {
      const one = chosen(step.device);
      return one.deleted ? undefined : poll(one);
    }
    case 'pause':
      return same(system.verb('pause'), () => model.pause());
    case 'resume': {
      const body = step.percent === null ? {} : { canary_percent: step.percent };
      return same(system.verb('resume', body), () => model.resume(step.percent ?? undefined));
    }
    case 'raise':
      return same(system.raise(step.percent), () => model.raise(step.percent));
    case 'approve':
      return same(system.verb('approve'), () => model.approve());
    case 'rollback':
      return same(system.verb('rollback'), () => model.rollback(Date.now()));
    case 'cancel':
      return same(system.verb('cancel'), () => model.cancel());
    case 'retry': {
      const some = step.device === null ? [] : [chosen(step.device)];
      return same(system.verb('retry', { device_ids: some.map(({ id }) => id) }), () => model.retry(some));
    }
    case 'skip': {
      const one = chosen(step.device);
      return same(system.verb('skip', { device_ids: [one.id] }), () => model.skip(one));
    }
    case 'claim':
      if (model.devices.length < 8) for (const id of await system.claim()) model.add(id);
      return;
    case 'remove': {
      const one = chosen(step.device);
      return same(system.remove(one.id), () => model.remove(one));
    }
    case 'move': {
      const one = chosen(step.device);
      const { to } = step;
      return same(system.move(one.id, to), () => model.move(one, to));
    }
    case 'override': {
      const one = chosen(step.device);
      return same(system.override(one.id, step.type), () => model.override(one, step.type));
    }
    case 'manifest': {
      const isAllowed = model.spec.steps.every(({ percent }) => percent > step.percent);
      const change = { ...(isAllowed && { canaryPercent: step.percent }), paused: step.paused };
      await system.apply(change);
      return model.apply(change);
    }
    case 'kill the operator':
      await stack().kill('operator');
      return stack().waitReady('operator', longestWait);
  }
}

/** Waits until the system shows what the model says once nothing is left to do. */
async function settle(model: RolloutModel, system: System): Promise<void> {
  model.drive();
  const wanted = expected(model);
  let shown: Parts = {};
  const isThere = async () => isDeepStrictEqual((shown = await system.shown()), wanted);
  await waitUntil(isThere, { what: 'what the model says', timeoutMilliseconds: longestWait }).catch(() =>
    agree('after the step', shown, wanted),
  );
}

describe('a rollout of the whole system and its model', function () {
  this.timeout(120_000 + runs * longestSequence * 20_000);
  let client: KubernetesClient;
  let database: pg.Pool;
  before(async () => {
    client = new KubernetesClient({ config: loadKubeConfig(stack().info.kubeconfig), userAgent: 'kellet-test' });
    database = new pg.Pool({ connectionString: stack().info.databaseUrl, max: 2 });
  });
  after(async () => {
    await client.close();
    await database.end();
  });

  async function makeThings(): Promise<Things> {
    const rest = await admin();
    const artifact = await makeArtifact(1000);
    const make = (fields: { version: string; type?: 'fw' | 'sw' }) => makePackage(rest, fields, artifact);
    const [target, other] = [await makeProfile(rest), await makeProfile(rest)];
    const update = await make({ version: versions.update });
    const rollback = await make({ version: versions.rollback });
    const fw = await make({ version: '7.0.0' });
    const sw = await make({ version: '7.0.0', type: 'sw' });
    return { profiles: { target, other }, packages: { update, rollback, fw, sw } };
  }

  it(`agree after every step of ${runs} sequences (seed ${seed})`, async () => {
    const lane = async (index: number): Promise<void> => {
      const things = await makeThings();
      const property = fc.asyncProperty(
        fc.integer({ min: 1, max: 5 }),
        spec,
        fc.array(command, { minLength: 1, maxLength: longestSequence, size: 'max' }),
        async (fleet, manifest, steps) => {
          const system = new System({ rest: await admin(), things, client, database });
          try {
            const ids = await system.claim(fleet);
            await system.start(manifest);
            const model = new RolloutModel(things.packages.update.package_id, manifest, ids);
            await settle(model, system);
            for (const step of steps) {
              await perform(model, system, step);
              await settle(model, system);
            }
            // Nothing follows.
            await sleep(1500);
            agree('in the end', await system.shown(), expected(model));
          } finally {
            await system.end();
          }
        },
      );
      const numRuns = Math.ceil((runs - index) / lanes);
      await fc.assert(property, { numRuns, seed: seed + index, interruptAfterTimeLimit: 60 * 60_000 });
    };
    await Promise.all(Array.from({ length: lanes }, (_, index) => lane(index)));
  });
});
