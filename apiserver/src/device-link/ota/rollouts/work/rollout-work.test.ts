// The work of rollouts as it runs in every process, on a real database: what makes scheduling due reaches it at once and without
// an operator, also when many rollouts change at the same time and two processes do the work.
import { expect } from 'chai';
import { insertTenant } from '../../../../auth/testing/test-fixtures.ts';
import { newId } from '../../../../platform/ids.ts';
import { createLogger } from '../../../../platform/observability/logger.ts';
import { eventually } from '../../../../platform/testing/eventually.ts';
import { openRolloutFixture, type RolloutFixture } from '../../testing/rollout-fixture.ts';
import { RolloutWork } from './rollout-work.ts';

const count = 40;
/** Of these rollouts, the one that is raised later, from 50 %, and the one that is paused. The others cover every device. */
const [raised, paused] = [1, 3];

describe('the work of rollouts', function () {
  this.timeout(60_000);
  let fixture: RolloutFixture;
  let running: RolloutWork[] = [];
  /** Profiles with a rollout each. */
  const profiles: { profileId: string; rolloutId: string }[] = [];

  const create = () =>
    new RolloutWork({
      database: fixture.test.database,
      profiles: fixture.profiles,
      clock: fixture.clock,
      logger: createLogger('silent'),
    });
  before(async () => {
    fixture = await openRolloutFixture();
    for (let index = 0; index < count; index += 1) {
      const name = `profile-${index}`;
      const profileId = await fixture.profile(name);
      const rolloutId = await fixture.start({ targetProfileRef: { name }, canaryPercent: index === raised ? 50 : 100 });
      profiles.push({ profileId, rolloutId });
    }
  });
  after(async () => {
    await Promise.all(running.map((work) => work.stop()));
    await fixture.close();
  });

  const waiting = () => fixture.rows('SELECT rollout_id FROM ota_rollouts WHERE awaits_scheduling');
  const scheduled = async () => {
    const rows = await fixture.rows<{ rollout_id: string; scheduled: number }>(
      'SELECT rollout_id, scheduled FROM ota_rollouts',
    );
    const counts = new Map(rows.map((row) => [row.rollout_id, row.scheduled]));
    return profiles.map(({ rolloutId }) => counts.get(rolloutId));
  };

  it('schedules a device of each of many rollouts, once, in two processes', async () => {
    await create().finish();
    running = [create(), create()];
    for (const work of running) work.start();
    await Promise.all(profiles.map(({ profileId }) => fixture.make(profileId, 3)));
    const others = async () => (await scheduled()).toSpliced(raised, 1);
    await eventually(async () => (await others()).every((each) => each === 3) && (await waiting()).length === 0);
    const sum = (await scheduled()).reduce((total: number, each) => total + each!, 0);
    const commands = await fixture.rows<{ commands: number; devices: number }>(
      'SELECT count(*)::int4 AS commands, count(DISTINCT device_id)::int4 AS devices FROM device_commands',
    );
    expect(commands).to.deep.equal([{ commands: sum, devices: sum }]);
  });

  it('schedules what a raise covers, and nothing of a paused rollout', async () => {
    const idOf = (index: number) => profiles[index]!.rolloutId;
    await fixture.rollouts.pause(fixture.context, idOf(paused));
    await fixture.make(profiles[paused]!.profileId, 3);
    await fixture.rollouts.raise(fixture.context, idOf(raised), 100);
    await eventually(async () => (await scheduled())[raised] === 3);
    expect((await scheduled())[paused]).to.equal(3);
    await fixture.rollouts.resume(fixture.context, idOf(paused), undefined);
    await eventually(async () => (await scheduled())[paused] === 6);
  });

  it('takes up a rollout that an earlier release has saved, with its next manifest', async () => {
    await Promise.all(running.map((work) => work.stop()));
    running = [];
    const { profileId, rolloutId } = profiles[0]!;
    await fixture.make(profileId, 1);
    await fixture.rows('UPDATE ota_rollouts SET awaits_scheduling = false');
    await create().finish();
    expect((await scheduled())[0]).to.equal(3);
    await fixture.apply(rolloutId, {});
    await create().finish();
    expect((await scheduled())[0]).to.equal(4);
  });

  it('does not wait for long changes of some of them', async () => {
    const [first, ...held] = profiles.slice(10, 16);
    await Promise.all([...held, first!].map(({ profileId }) => fixture.make(profileId, 1)));
    const locked = Promise.withResolvers<void>();
    const ended = Promise.withResolvers<void>();
    const change = fixture.test.database.tenant('acme', async (tx) => {
      await tx.query('SELECT FROM ota_rollouts WHERE rollout_id = ANY($1::uuid[]) FOR UPDATE', [
        held.map(({ rolloutId }) => rolloutId),
      ]);
      locked.resolve();
      await ended.promise;
    });
    await locked.promise;
    try {
      const begun = performance.now();
      await create().finish();
      expect(performance.now() - begun).to.be.lessThan(5000);
      expect((await scheduled()).slice(10, 16)).to.deep.equal([4, 3, 3, 3, 3, 3]);
    } finally {
      ended.resolve();
      await change;
    }
    await create().finish();
    expect((await scheduled()).slice(10, 16)).to.deep.equal([4, 4, 4, 4, 4, 4]);
  });

  it('goes on with those of another tenant while very many of one cannot be worked on', async () => {
    const { database } = fixture.test;
    await insertTenant(database, 'other');
    const name = newId();
    const profileId = await fixture.profile(name);
    const rolloutId = await fixture.start({ targetProfileRef: { name }, canaryPercent: 100 });
    await create().finish();
    await fixture.load(profileId, 5000);
    const copy = (table: string, change: string, where: string) =>
      fixture.rows(
        `INSERT INTO ${table} SELECT (jsonb_populate_record(r, ${change})).* FROM ${table} r WHERE ${where}`,
      );
    await copy('ota_packages', `'{"tenant_id": "other"}'`, `name = 'two'`);
    for (const table of ['ota_rollouts', 'profiles', 'devices'])
      await fixture.rows(`UPDATE ${table} SET tenant_id = 'other' WHERE profile_id = $1`, profileId);
    const changes = `'rollout_id', gen_random_uuid(), 'name', gen_random_uuid(), 'awaits_scheduling', true`;
    for (let doubled = 0; doubled < 3; doubled += 1)
      await copy('ota_rollouts', `jsonb_build_object(${changes})`, `tenant_id = 'acme'`);
    const begin = 'awaits_scheduling = true, cohort_ready = false, cohort_cursor = NULL';
    await fixture.rows(`UPDATE ota_rollouts SET ${begin} WHERE rollout_id = $1`, rolloutId);
    expect(await waiting()).to.have.length.greaterThan(250);
    const locked = Promise.withResolvers<void>();
    const ended = Promise.withResolvers<void>();
    const change = database.tenant('acme', async (tx) => {
      await tx.query(`SELECT FROM ota_rollouts WHERE tenant_id = 'acme' FOR UPDATE`);
      locked.resolve();
      await ended.promise;
    });
    await locked.promise;
    const work = create();
    work.start();
    running = [work];
    try {
      const isOver = async () => (await fixture.row(rolloutId))['scheduled'] === 5000;
      await eventually(isOver, 10_000);
    } finally {
      ended.resolve();
      await change;
      await work.stop();
      running = [];
      await fixture.rows(`DELETE FROM ota_rollouts WHERE tenant_id = 'acme' AND awaits_scheduling`);
    }
  });

  it('continues with the others when one fails', async () => {
    const name = newId();
    const profileId = await fixture.profile(name);
    const rolloutId = await fixture.start({ targetProfileRef: { name }, canaryPercent: 100 });
    await fixture.make(profileId, 1);
    await fixture.make(profiles[0]!.profileId, 1);
    // A spec that cannot be read.
    await fixture.rows(`UPDATE ota_rollouts SET spec = '{"canaryPercent": "all"}' WHERE rollout_id = $1`, rolloutId);
    await create().finish();
    expect((await scheduled())[0]).to.equal(5);
    await fixture.rows('DELETE FROM ota_rollouts WHERE rollout_id = $1', rolloutId);
  });
});
