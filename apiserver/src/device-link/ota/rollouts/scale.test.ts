// A rollout to a large fleet that was just loaded, about which PostgreSQL has no statistics.
//
//   KELLET_TEST_DEVICES   size of the fleet (20000)
import { create } from '@bufbuild/protobuf';
import { CreateRolloutRequestSchema } from '@kellet/proto/es/kellet/v1/ota_pb';
import { expect } from 'chai';
import type { Transaction } from '../../../platform/database/database.ts';
import { namedId, newId } from '../../../platform/ids.ts';
import { createLogger } from '../../../platform/observability/logger.ts';
import { Delivery } from '../../rpc/delivery.ts';
import { findPackage } from '../packages/package-store.ts';
import { openRolloutFixture, type RolloutFixture, tenant } from '../testing/rollout-fixture.ts';
import { coverage } from './decisions/cohort.ts';
import { planStages } from './decisions/plan.ts';
import { eligibleFrom, listExcluded, summarizeFleet } from './planning/fleet-summary.ts';
import {
  listOverdueDevices,
  listRolloutDevices,
  nextDeadline,
  readmitMembers,
  restartDevices,
  sendDevicesBack,
} from './stores/rollout-device-store.ts';
import { lockRollout } from './stores/rollout-store.ts';
import { fillCohort } from './work/cohort-fill.ts';
import { RolloutWork } from './work/rollout-work.ts';
import { scheduleDevices } from './work/scheduling.ts';

const size = Number(process.env['KELLET_TEST_DEVICES'] ?? 20_000);
const sensor = namedId(tenant, 'profile', 'sensor');
const two = namedId(tenant, 'package', 'two');

describe(`a rollout to ${size} devices`, function () {
  this.timeout(600_000);
  let fixture: RolloutFixture;
  let id: string;
  before(async () => {
    fixture = await openRolloutFixture();
    for (const table of ['ota_rollout_cohort', 'ota_rollout_devices', 'device_commands', 'ota_assignments']) {
      await fixture.rows(`ALTER TABLE ${table} SET (autovacuum_enabled = false)`);
    }
    await fixture.load(sensor, size);
  });
  after(() => fixture.close());

  const inTenant = <T>(work: (tx: Transaction) => Promise<T>): Promise<T> => fixture.test.database.tenant(tenant, work);
  const timed = async <T>(work: () => Promise<T>): Promise<[T, number]> => {
    const begun = performance.now();
    return [await work(), performance.now() - begun];
  };

  const work = () =>
    new RolloutWork({
      database: fixture.test.database,
      profiles: fixture.profiles,
      clock: fixture.clock,
      logger: createLogger('silent'),
    });

  it('is created without a look at each device', async () => {
    const [created, milliseconds] = await timed(() => fixture.start({ canaryPercent: 10 }));
    id = created;
    // Bounded by the gateway's deadline anyway; on an idle machine 100,000 devices take a tenth of it.
    expect(milliseconds).to.be.lessThan(3000);
    expect(await fixture.row(id)).to.include({
      eligible: size,
      scheduled: 0,
      scheduled_initially: coverage(size, 10),
      cohort_ready: false,
    });
  });

  it('reads its tables only by their indexes', async () => {
    const plans: string[] = [];
    const explained = (tx: Transaction): Transaction => ({
      query: async (text, values) => {
        if (/^\s*(select|insert|update|delete|with)/i.test(text)) {
          const { rows } = await tx.query<{ 'QUERY PLAN': string }>(`EXPLAIN ${text}`, values);
          plans.push([text, ...rows.map((row) => row['QUERY PLAN'])].join('\n'));
        }
        return tx.query(text, values);
      },
      hint: (...hint) => tx.hint(...hint),
    });
    const profile = { profileId: sensor, type: 'sensor' };
    await inTenant(async (plain) => {
      const tx = explained(plain);
      const state = await lockRollout(tx, tenant, id);
      const package_ = (await findPackage(plain, tenant, two))!;
      for (let page = 0; page < 4; page += 1) await fillCohort(tx, state, profile, package_);
      await scheduleDevices(tx, state, package_, new Date());
      await scheduleDevices(tx, state, package_, new Date());
      await nextDeadline(tx, tenant, id);
      await listOverdueDevices(tx, tenant, id, new Date(), 500);
      const room = { limit: 500, bytes: 2 ** 20 };
      const attempts = (await listRolloutDevices(plain, tenant, id, undefined, undefined, room)).map((row) => ({
        deviceId: row.device_id,
        correlationId: newId(),
      }));
      await sendDevicesBack(tx, tenant, id, new Date(), attempts);
      await restartDevices(tx, tenant, id, 'sent', true, attempts);
      await readmitMembers(tx, tenant, id, 10, attempts);
      for (const states of [undefined, ['failure', 'timed_out'] as const]) {
        await listRolloutDevices(tx, tenant, id, states, undefined, room);
      }
      await summarizeFleet(tx, tenant, profile, package_);
      throw new Error('rolled back');
    }).catch((error: Error) => {
      if (error.message !== 'rolled back') throw error;
    });
    expect(plans).to.have.length.greaterThan(15);
    const table = '(devices|ota_rollout_cohort|ota_rollout_devices|device_commands|ota_assignments)';
    for (const plan of plans) expect(plan).not.to.match(new RegExp(`Seq Scan on ${table}`));
    const updates = plans.filter((plan) => /UPDATE ota_rollout_devices m[^;]* FROM unnest/s.test(plan));
    expect(updates).to.have.length(3);
    for (const plan of updates) expect(plan).to.match(/Index Cond: .*device_id = ANY/);
    // Devices of several states are merged.
    const merged = plans.filter((plan) => plan.includes('AS wanted (state)'));
    expect(merged).to.have.length(2);
    for (const plan of merged) {
      expect(plan).to.match(/Index Scan using ota_rollout_devices_by_state/);
      // Nothing but the room of the page.
      expect(plan.replace(/^ *Filter: .*bytes_before.*$/m, '')).not.to.match(/^ *Filter/m);
    }
    // What continues along an index needs no sorting.
    const paged = plans.filter(
      (plan) =>
        !merged.includes(plan) && /FROM (devices|ota_rollout_cohort|ota_rollout_devices)\b[^;]*LIMIT \$/s.test(plan),
    );
    expect(paged).to.have.length.greaterThan(5);
    for (const plan of paged) expect(plan).not.to.match(/Sort Key/);
    for (const plan of paged.filter((each) => /FROM devices/.test(each))) expect(plan).to.match(/devices_by_profile/);
  });

  it('schedules the canary that the plan names, and then the rest, in the order of the hash', async () => {
    const expected = await fixture.eligible(id);
    const request = create(CreateRolloutRequestSchema, {
      canaryPercent: 10,
      steps: [{ percent: 60 }, { percent: 100 }],
    });
    const stages = planStages(size, request, { now: new Date(), window: undefined, deviceSeconds: 0 });
    let rowsRead = 0;
    const planned = await inTenant(async (plain) => {
      const tx: Transaction = {
        query: async (text, values) => {
          const result = await plain.query<never>(text, values);
          rowsRead += result.rows.length;
          return result;
        },
        hint: (...hint) => plain.hint(...hint),
      };
      const package_ = (await findPackage(tx, tenant, two))!;
      const profile = { profileId: sensor, type: 'sensor' };
      const fleet = await summarizeFleet(tx, tenant, profile, package_);
      return eligibleFrom(tx, tenant, profile, package_, fleet, {
        places: stages.map(({ first }) => first),
        limit: 100,
      });
    });
    // What a plan holds in memory does not grow with the fleet: the devices that it names, and counts by version.
    expect(rowsRead).to.be.within(stages.length * 100, stages.length * 100 + 20);
    expect(planned).to.deep.equal(stages.map(({ first }) => expected.slice(first - 1, first + 99)));
    await fixture.schedule(id);
    const canary = (await fixture.members(id)).map((member) => member.device_id);
    expect(canary).to.deep.equal(expected.slice(0, coverage(size, 10)).sort());
    expect(await fixture.cohort(id)).to.deep.equal(expected);
    await fixture.rollouts.raise(fixture.context, id, 100);
    await fixture.schedule(id);
    expect(await fixture.row(id)).to.include({ scheduled: size, covered_count: size, eligible: size });
  });

  it('turns back in small transactions, from where it was after a crash, and delivers no update meanwhile', async () => {
    const reached = size / 10;
    const fleet = (await fixture.members(id)).map((member) => member.device_id);
    await fixture.rows(
      `UPDATE ota_rollout_devices SET state = 'sent', attempts = 1, deadline_at = now() + interval '1 hour'
       WHERE rollout_id = $1 AND device_id = ANY($2::uuid[])`,
      id,
      fleet.slice(-reached),
    );
    await fixture.rows('UPDATE ota_rollouts SET sent = $2 WHERE rollout_id = $1', id, reached);
    const [, milliseconds] = await timed(() => fixture.rollouts.rollback(fixture.context, id));
    expect(milliseconds).to.be.lessThan(2000);
    expect(await fixture.row(id)).to.include({ phase: 'rolling_back', pending_work: 'turn_back', skipped: 500 });
    // The update is withdrawn from a device whose turn has not come.
    const delivery = new Delivery(fixture.test.database, fixture.profiles, fixture.clock);
    expect((await delivery.take(tenant, fleet[1000]!)).commands).to.deep.equal([]);
    const finish = { case: 'finishRollback', value: {} } as const;
    expect(await fixture.advance(id, finish)).to.equal(false);
    // Another process continues.
    await work().finish();
    const row = await fixture.row(id);
    expect(row).to.include({ pending_work: '', work_cursor: null, skipped: size - reached, rollback_pending: reached });
    const commands = await fixture.rows(
      `SELECT params->>'version' AS version, status, count(*)::int4 FROM device_commands WHERE rollout_id = $1
       GROUP BY 1, 2 ORDER BY 1, 2`,
      id,
    );
    expect(commands).to.deep.equal([
      { version: '1.0.0', status: 'scheduled', count: reached },
      { version: '2.0.0', status: 'cancelled', count: size },
    ]);
    const assigned = await fixture.rows('SELECT package_id FROM ota_assignments WHERE rollout_id = $1', id);
    expect(assigned).to.have.length(reached);
    fixture.clock.advance(3_700_000);
    expect(await fixture.advance(id, { case: 'expireDevices', value: {} })).to.equal(true);
    expect(await fixture.advance(id, finish)).to.equal(true);
    await work().finish();
    expect(await fixture.cohort(id)).to.deep.equal([]);
    expect(await fixture.row(id)).to.include({ phase: 'completed', outcome: 'rolled_back', pending_work: '' });
  });

  it('excludes by version, hardware id and own assignment as single devices are excluded', async () => {
    await fixture.package('narrow', '3.0.0', { minVersion: '1.0.0' });
    await fixture.rows(
      `UPDATE ota_packages SET compatibility = '{"min_version": "1.0.0", "max_version": "1.5.0", "hardware_id_pattern": "hw-?%_*"}'
       WHERE name = 'narrow'`,
    );
    const narrow = namedId(tenant, 'package', 'narrow');
    await fixture.rows(`UPDATE devices SET hardware_id = 'hw-1%_' || hardware_id WHERE right(hardware_id, 1) < '8'`);
    await fixture.rows(`UPDATE devices SET firmware_version = '0.9.0' WHERE right(hardware_id, 1) = '1'`);
    await fixture.rows(`UPDATE devices SET firmware_version = '1.6.0' WHERE right(hardware_id, 1) = '2'`);
    await fixture.rows(`UPDATE devices SET firmware_version = '3.0.0' WHERE right(hardware_id, 1) = '3'`);
    await fixture.rows(
      `INSERT INTO ota_assignments (tenant_id, device_id, slot, package_id)
       SELECT tenant_id, device_id, 'override', $1 FROM devices WHERE right(hardware_id, 2) = '14'`,
      two,
    );
    const profile = { profileId: sensor, type: 'sensor' };
    const { fleet, excluded } = await inTenant(async (tx) => {
      const package_ = (await findPackage(tx, tenant, narrow))!;
      const fleet = await summarizeFleet(tx, tenant, profile, package_);
      return { fleet, excluded: await listExcluded(tx, tenant, profile, package_, fleet, 1_000_000) };
    });
    const tenth = size / 10;
    expect(fleet.excludedCounts).to.deep.equal({
      hardware_id: 2 * tenth,
      below_min_version: tenth,
      above_max_version: tenth,
      already_on_version: tenth,
      device_override: tenth / 10,
    });
    expect(fleet.eligible).to.equal(size - 5 * tenth - tenth / 10);
    const counted = Object.entries(Object.groupBy(excluded, ({ reason }) => reason)).map(([reason, all]) => [
      reason,
      all.length,
    ]);
    expect(Object.fromEntries(counted)).to.deep.equal(fleet.excludedCounts);
    const next = await fixture.start({ packageRef: { name: 'narrow' }, canaryPercent: 100 });
    await fixture.schedule(next);
    expect(await fixture.cohort(next)).to.deep.equal(await fixture.eligible(next));
    expect(await fixture.row(next)).to.include({ eligible: fleet.eligible, scheduled: fleet.eligible });

    // What was not delivered is taken back in small transactions too.
    await fixture.rollouts.cancel(fixture.context, next);
    expect(await fixture.row(next)).to.include({ outcome: 'cancelled', pending_work: 'withdraw', skipped: 500 });
    const withdrawing = await fixture.rollouts.get(tenant, next);
    const left = fleet.eligible - 500;
    expect(withdrawing.message).to.equal(`cancelled; the update is being withdrawn from ${left} more devices`);
    await work().finish();
    expect(await fixture.row(next)).to.include({ pending_work: '', skipped: fleet.eligible, sent: 0 });
    expect((await fixture.rollouts.get(tenant, next)).message).to.equal('cancelled');
    const states = await fixture.rows('SELECT DISTINCT state FROM ota_rollout_devices WHERE rollout_id = $1', next);
    expect(states).to.deep.equal([{ state: 'skipped' }]);
    const kept = await fixture.rows(
      `SELECT FROM device_commands WHERE rollout_id = $1 AND status <> 'cancelled'
       UNION ALL SELECT FROM ota_assignments WHERE rollout_id = $1 UNION ALL SELECT FROM ota_rollout_cohort`,
      next,
    );
    expect(kept).to.deep.equal([]);
  });
});
