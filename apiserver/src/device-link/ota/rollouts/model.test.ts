// A rollout behaves as its model, whatever happens to it in whatever order. Each run is a random sequence of reports, verbs, polls,
// changes of the fleet and of the manifest, the operator's actions, restarts and clock steps; after each of them, the database and
// the REST view must say what the model says. A failing sequence is shrunk, and printed with its seed.
import { inspect, isDeepStrictEqual } from 'node:util';
import { create } from '@bufbuild/protobuf';
import {
  ListRolloutDevicesRequestSchema,
  Rollout_Outcome,
  Rollout_PauseReason,
  Rollout_Status,
  RolloutDevice_State,
} from '@kellet/proto/es/kellet/v1/ota_pb';
import { expect } from 'chai';
import fc from 'fast-check';
import { namedId } from '../../../platform/ids.ts';
import { openRolloutFixture, refusal, type RolloutFixture, tenant } from '../testing/rollout-fixture.ts';
import { type ModelDevice, type ModelSpec, RolloutModel, versions } from '../testing/rollout-model.ts';
import { deviceIdOf, RolloutSubject } from '../testing/rollout-subject.ts';

/** Runs (`make model RUNS=n`), and the seed and path of one that is to be repeated. */
const runs = Number(process.env['KELLET_MODEL_RUNS'] ?? 40);
const seed = process.env['KELLET_MODEL_SEED'];
const path = process.env['KELLET_MODEL_PATH'];

const percent = fc.constantFrom(1, 20, 25, 34, 50, 67, 80, 100);
/** A device, as a number of which the remainder counts. */
const device = fc.nat(11);
const version = fc.constantFrom(versions.update, versions.rollback, versions.later, versions.update);

const command = fc.oneof(
  { weight: 8, arbitrary: fc.record({ do: fc.constant('report' as const), device, version, success: fc.boolean() }) },
  { weight: 6, arbitrary: fc.record({ do: fc.constant('install' as const), device }) },
  { weight: 3, arbitrary: fc.record({ do: fc.constant('burst' as const), success: fc.boolean() }) },
  { weight: 2, arbitrary: fc.record({ do: fc.constant('progress' as const), device }) },
  { weight: 6, arbitrary: fc.record({ do: fc.constant('poll' as const), device }) },
  { weight: 4, arbitrary: fc.record({ do: fc.constant('poll all' as const) }) },
  { weight: 6, arbitrary: fc.record({ do: fc.constant('schedule' as const) }) },
  { weight: 2, arbitrary: fc.record({ do: fc.constant('pause' as const) }) },
  { weight: 4, arbitrary: fc.record({ do: fc.constant('resume' as const), percent: fc.option(percent) }) },
  { weight: 4, arbitrary: fc.record({ do: fc.constant('raise' as const), percent }) },
  { weight: 2, arbitrary: fc.record({ do: fc.constant('approve' as const) }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('rollback' as const) }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('cancel' as const) }) },
  { weight: 3, arbitrary: fc.record({ do: fc.constant('retry' as const), device: fc.option(device) }) },
  { weight: 3, arbitrary: fc.record({ do: fc.constant('skip' as const), device }) },
  { weight: 3, arbitrary: fc.record({ do: fc.constant('claim' as const) }) },
  { weight: 2, arbitrary: fc.record({ do: fc.constant('remove' as const), device }) },
  {
    weight: 4,
    arbitrary: fc.record({ do: fc.constant('move' as const), device, to: fc.constantFrom('target', 'other') }),
  },
  {
    weight: 4,
    arbitrary: fc.record({
      do: fc.constant('override' as const),
      device,
      type: fc.constantFrom('fw' as const, 'sw' as const, undefined),
    }),
  },
  { weight: 3, arbitrary: fc.record({ do: fc.constant('begin step' as const) }) },
  { weight: 2, arbitrary: fc.record({ do: fc.constant('request approval' as const) }) },
  { weight: 4, arbitrary: fc.record({ do: fc.constant('complete' as const) }) },
  { weight: 3, arbitrary: fc.record({ do: fc.constant('finish rollback' as const) }) },
  { weight: 4, arbitrary: fc.record({ do: fc.constant('expire' as const) }) },
  {
    weight: 4,
    arbitrary: fc.record({ do: fc.constant('clock' as const), seconds: fc.constantFrom(-300, 30, 601, 7200) }),
  },
  {
    weight: 2,
    arbitrary: fc.record({ do: fc.constant('manifest' as const), percent, paused: fc.boolean() }),
  },
  { weight: 1, arbitrary: fc.record({ do: fc.constant('restart' as const) }) },
);
type Command = typeof command extends fc.Arbitrary<infer C> ? C : never;

const spec: fc.Arbitrary<ModelSpec> = fc.record({
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
});

const noSteps: ModelSpec = {
  ...{ canaryPercent: 100, failureThresholdPercent: 100, minFailures: 1, maxAttempts: 1, paused: false, steps: [] },
};

/** Sequences that random runs seldom contain: each once showed a difference. They come first. */
const directed: [number, ModelSpec, Command[]][] = [
  // A device whose time to go back passes before and after it got the rollback's command.
  [1, noSteps, [{ do: 'poll all' }, { do: 'rollback' }, { do: 'clock', seconds: 601 }, { do: 'expire' }]],
  [
    1,
    noSteps,
    [
      ...([{ do: 'poll all' }, { do: 'rollback' }, { do: 'poll all' }, { do: 'clock', seconds: 601 }] as const),
      ...([{ do: 'expire' }, { do: 'finish rollback' }, { do: 'install', device: 0 }] as const),
    ],
  ],
  // A device that comes back as a member.
  [
    2,
    noSteps,
    [
      ...([
        { do: 'move', device: 0, to: 'other' },
        { do: 'move', device: 0, to: 'target' },
      ] as const),
      ...([{ do: 'schedule' }, { do: 'override', device: 1, type: 'fw' }] as const),
      ...([
        { do: 'override', device: 1, type: undefined },
        { do: 'remove', device: 0 },
      ] as const),
    ],
  ],
  // A cancellation while devices wait, have the command, download and are to be retried, and their reports after it.
  [
    4,
    noSteps,
    [
      ...([
        { do: 'poll', device: 0 },
        { do: 'poll', device: 1 },
        { do: 'progress', device: 1 },
      ] as const),
      ...([
        { do: 'report', device: 2, version: versions.update, success: false },
        { do: 'retry', device: 2 },
      ] as const),
      ...([{ do: 'cancel' }, { do: 'burst', success: true }, { do: 'install', device: 3 }] as const),
    ],
  ],
];

/** Compares, and says how the two differ, which fast-check would not show. */
function agree(what: string, real: unknown, modelled: unknown): void {
  const difference = `${what}\n  is        ${inspect(real, { depth: 9 })}\n  should be ${inspect(modelled, { depth: 9 })}`;
  expect(isDeepStrictEqual(real, modelled), difference).to.equal(true);
}

describe('a rollout and its model', function () {
  this.timeout(60_000 + runs * 3000);
  let fixture: RolloutFixture;
  let profiles: Record<'target' | 'other', string>;
  let packages: Record<'fw' | 'sw', string>;
  before(async () => {
    fixture = await openRolloutFixture();
    profiles = { target: namedId(tenant, 'profile', 'sensor'), other: await fixture.profile('other') };
    packages = { fw: await fixture.package('own', '7.0.0'), sw: await fixture.package('app', '7.0.0', { type: 'sw' }) };
  });
  after(() => fixture.close());

  /** Does the same with both. */
  async function perform(model: RolloutModel, subject: RolloutSubject, step: Command): Promise<void> {
    const now = () => fixture.clock.now();
    const id = subject.rolloutId;
    const { rollouts, overrides } = subject.services;
    const { context } = fixture;
    const chosen = (n: number): ModelDevice => model.devices[n % model.devices.length]!;
    const same = async (real: Promise<unknown>, modelled: () => string): Promise<void> =>
      agree('response', await refusal(real), modelled());
    switch (step.do) {
      case 'report': {
        const one = chosen(step.device);
        // A deleted device has no key.
        if (one.deleted) return;
        const { version: reported, success } = step;
        return same(subject.report(one.id, reported, success), () => model.report(one, reported, success));
      }
      case 'install': {
        const one = chosen(step.device);
        if (one.deleted) return;
        agree('poll', await subject.poll(one.id), model.poll(one, now()));
        const reported = one.member?.rollingBack ? versions.rollback : versions.update;
        return same(subject.report(one.id, reported, true), () => model.report(one, reported, true));
      }
      case 'burst': {
        const some = model.devices.filter(({ deleted, member }) => !deleted && member && !member.rollingBack);
        const reported = step.success ? versions.update : versions.rollback;
        const done = some.map((one) => refusal(subject.report(one.id, reported, step.success)));
        // In one transaction the share is judged once: a burst of equals crosses the threshold or does not, whatever the order.
        agree(
          'responses',
          await Promise.all(done),
          some.map((one) => model.report(one, reported, step.success)),
        );
        return;
      }
      case 'progress': {
        const one = chosen(step.device);
        if (one.deleted) return;
        return same(subject.progress(one.id), () => model.progress(one));
      }
      case 'poll': {
        const one = chosen(step.device);
        agree('poll', await subject.poll(one.id), model.poll(one, now()));
        return;
      }
      case 'poll all': {
        const taken = await Promise.all(model.devices.map((one) => subject.poll(one.id)));
        agree(
          'polls',
          taken,
          model.devices.map((one) => model.poll(one, now())),
        );
        return;
      }
      case 'schedule':
        await subject.schedule();
        return model.schedule();
      case 'pause':
        return same(rollouts.pause(context, id), () => model.pause());
      case 'resume':
        return same(rollouts.resume(context, id, step.percent ?? undefined), () =>
          model.resume(step.percent ?? undefined),
        );
      case 'raise':
        return same(rollouts.raise(context, id, step.percent), () => model.raise(step.percent));
      case 'approve':
        return same(rollouts.approve(context, id), () => model.approve());
      case 'rollback':
        return same(rollouts.rollback(context, id), () => model.rollback(now()));
      case 'cancel':
        return same(rollouts.cancel(context, id), () => model.cancel());
      case 'retry': {
        const some = step.device === null ? [] : [chosen(step.device)];
        const ids = some.map((one) => one.id);
        return same(rollouts.retry(context, id, ids), () => model.retry(some));
      }
      case 'skip': {
        const one = chosen(step.device);
        return same(rollouts.skip(context, id, [one.id]), () => model.skip(one));
      }
      case 'claim':
        if (model.devices.length < 12) model.add(await subject.add());
        return;
      case 'remove': {
        const one = chosen(step.device);
        return same(fixture.remove(one.id), () => model.remove(one));
      }
      case 'move': {
        const one = chosen(step.device);
        const to = step.to;
        return same(fixture.move(one.id, profiles[to]), () => model.move(one, to));
      }
      case 'override': {
        const one = chosen(step.device);
        const { type } = step;
        const real = type ? overrides.set(tenant, one.id, packages[type]) : overrides.remove(tenant, one.id);
        return same(real, () => model.override(one, type));
      }
      case 'begin step': {
        const index = model.stepIndex + 1;
        agree('applied', await subject.advance('beginStep', index), model.beginStep());
        return;
      }
      case 'request approval': {
        const index = model.stepIndex + 1;
        if (index >= model.spec.steps.length) return;
        const isNew = !model.conditions.includes('StepApproval');
        agree('applied', await subject.advance('requestApproval', index), isNew && model.requestApproval());
        return;
      }
      case 'complete':
        await subject.schedule();
        model.schedule();
        agree('applied', await subject.advance('complete', 0), model.complete());
        return;
      case 'finish rollback':
        agree('applied', await subject.advance('finishRollback', 0), model.finishRollback());
        return;
      case 'expire':
        // The operator lets a completed rollout be.
        if (model.phase === 'completed') return;
        agree('applied', await subject.advance('expireDevices', 0), model.expire(now()));
        return;
      case 'clock':
        return fixture.clock.advance(step.seconds * 1000);
      case 'manifest': {
        const change = { canaryPercent: step.percent, paused: step.paused };
        await subject.apply({ ...model.spec, ...change });
        return model.apply(change);
      }
      case 'restart':
        return subject.restart();
    }
  }

  /** Compares the database and the REST view with the model. */
  async function compare(model: RolloutModel, subject: RolloutSubject): Promise<void> {
    const counts = model.counts();
    const row = await fixture.row(subject.rolloutId);
    const reasons = (row['pause_conditions'] as { reason: string }[]).map(({ reason }) => reason);
    agree(
      'row',
      {
        phase: row['phase'],
        outcome: row['outcome'],
        reasons,
        step: row['step_index'],
        approved: row['approved_step_index'],
        resumes: row['resumes'],
        scheduledInitially: row['scheduled_initially'],
        rollbackPending: row['rollback_pending'],
        counts: {
          ...{ eligible: row['eligible'], scheduled: row['scheduled'], sent: row['sent'], succeeded: row['succeeded'] },
          ...{ failed: row['failed'], timedOut: row['timed_out'], skipped: row['skipped'], removed: row['removed'] },
        },
      },
      {
        phase: model.phase,
        outcome: model.outcome,
        reasons: model.conditions,
        step: model.stepIndex,
        approved: model.approvedStepIndex,
        resumes: model.resumes,
        scheduledInitially: model.scheduledInitially,
        rollbackPending: model.rollbackPending,
        counts,
      },
    );
    const members = await fixture.rows<Record<string, unknown>>(
      `SELECT device_id, state, attempts, rolling_back, has_left, deadline_at FROM ota_rollout_devices
       WHERE rollout_id = $1 ORDER BY device_id`,
      subject.rolloutId,
    );
    const expected = model.devices
      .flatMap(({ id, member }) => (member ? [{ id, ...member }] : []))
      .sort((a, b) => (a.id < b.id ? -1 : 1));
    agree(
      'devices',
      members.map((each) => ({ ...each, deadline_at: (each['deadline_at'] as Date | null)?.getTime() })),
      expected.map(({ id, state, attempts, rollingBack, hasLeft, deadline }) => ({
        ...{ device_id: id, state, attempts, rolling_back: rollingBack, has_left: hasLeft, deadline_at: deadline },
      })),
    );
    if (model.phase !== 'completed') {
      agree(
        'cohort',
        await fixture.cohort(subject.rolloutId),
        model.cohort.map(({ id }) => id),
      );
    }
    const { rollouts } = subject.services;
    const shown = await rollouts.get(tenant, subject.rolloutId);
    const publicReasons = { OperatorPause: 1, FailureThresholdExceeded: 2, StepApproval: 3 } as const;
    const held = model.spec.paused && model.phase === 'paused' ? [Rollout_PauseReason.operator_pause] : [];
    agree(
      'REST',
      {
        status: shown.status,
        outcome: shown.outcome,
        percent: shown.effectivePercent,
        reasons: shown.pauseReasons,
        scheduled: shown.counts?.scheduled,
      },
      {
        status: Rollout_Status[model.phase],
        outcome: model.outcome === '' ? undefined : Rollout_Outcome[model.outcome],
        percent: model.percent,
        reasons: [...new Set([...held, ...model.conditions.map((reason) => publicReasons[reason])])],
        scheduled: counts.scheduled,
      },
    );
    const request = create(ListRolloutDevicesRequestSchema, { rolloutId: subject.rolloutId, pageSize: 500 });
    const { devices = [] } = await rollouts.listDevices(request, tenant);
    agree(
      'REST devices',
      devices.map(({ deviceId, state }) => [deviceId, state]),
      expected.map(({ id, state }) => [id, RolloutDevice_State[state]]),
    );
  }

  it('agree after every step of every run', async () => {
    const property = fc.asyncProperty(
      fc.integer({ min: 1, max: 7 }),
      spec,
      fc.array(command, { minLength: 1, maxLength: 30, size: 'max' }),
      async (fleet, manifest, steps) => {
        const subject = new RolloutSubject(fixture, profiles.target);
        await subject.start(fleet, manifest);
        const ids = Array.from({ length: fleet }, (_, n) => deviceIdOf(n));
        const model = new RolloutModel(namedId(tenant, 'package', 'two'), manifest, ids);
        await compare(model, subject);
        for (const step of steps) {
          await perform(model, subject, step);
          await compare(model, subject);
        }
        agree('events', await fixture.events(subject.rolloutId), model.events);
      },
    );
    await fc.assert(property, {
      numRuns: runs,
      examples: directed,
      ...(seed !== undefined && { seed: Number(seed) }),
      ...(path !== undefined && { path }),
      interruptAfterTimeLimit: process.env['KELLET_MODEL_RUNS'] === undefined ? 15_000 : undefined,
    });
  });
});
