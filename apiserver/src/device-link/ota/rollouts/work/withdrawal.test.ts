import { readFile } from 'node:fs/promises';
import { create } from '@bufbuild/protobuf';
import { ObjectMetaSchema } from '@kellet/proto/es/kellet/control/v1/control_pb';
import { OtaReportSchema } from '@kellet/proto/es/kellet/v1/ota_pb';
import { expect } from 'chai';
import { namedId } from '../../../../platform/ids.ts';
import { createLogger } from '../../../../platform/observability/logger.ts';
import { Delivery } from '../../../rpc/delivery.ts';
import { openRolloutFixture, type RolloutFixture, tenant } from '../../testing/rollout-fixture.ts';
import { RolloutApplier } from '../rollout-applier.ts';
import { RolloutWork } from './rollout-work.ts';

const sensor = namedId(tenant, 'profile', 'sensor');
const migration = new URL('../../../../../migrations/0042_cancelled_devices.sql', import.meta.url);

describe('a cancelled rollout', () => {
  let fixture: RolloutFixture;
  before(async () => {
    fixture = await openRolloutFixture();
  });
  after(() => fixture.close());
  beforeEach(() => fixture.rows('DELETE FROM ota_rollouts'));
  beforeEach(() => fixture.rows('DELETE FROM devices'));

  const take = (device: string) =>
    new Delivery(fixture.test.database, fixture.profiles, fixture.clock).take(tenant, device);
  const countsOf = async (id: string) => (await fixture.rollouts.get(tenant, id)).counts;
  const statesOf = async (id: string) =>
    new Map((await fixture.members(id)).map(({ device_id: device, state }) => [device, state]));
  const commandsOf = (device: string) =>
    fixture.rows<{ status: string }>(
      'SELECT status FROM device_commands WHERE device_id = $1 ORDER BY created_at',
      device,
    );
  const finishWork = () => {
    const { profiles, clock, test } = fixture;
    return new RolloutWork({ database: test.database, profiles, clock, logger: createLogger('silent') }).finish();
  };

  /** Starts a rollout with a device in each state. */
  async function startMixed() {
    const devices = (await fixture.make(sensor, 6)) as [string, string, string, string, string, string];
    const [waiting, sent, downloading, retried, failed, done] = devices;
    const id = await fixture.start({ canaryPercent: 100, failureThresholdPercent: 100 });
    await take(sent);
    await take(downloading);
    await fixture.reports.report(tenant, downloading, create(OtaReportSchema, { rolloutId: id, progressPercent: 5 }));
    await take(retried);
    await fixture.report(retried, id, '1.5.0', false);
    await fixture.report(failed, id, '1.5.0', false);
    await fixture.report(done, id, '2.0.0');
    await fixture.rollouts.retry(fixture.context, id, [retried]);
    return { id, waiting, sent, downloading, retried, failed, done };
  }

  it('skips every device that has not reported, and keeps the results of the others', async () => {
    const { id, waiting, sent, downloading, retried, failed, done } = await startMixed();
    const { counts } = await fixture.rollouts.cancel(fixture.context, id);
    expect(counts).to.include({ eligible: 6, scheduled: 6, sent: 4, succeeded: 1, failed: 1, timedOut: 0, skipped: 4 });
    const states = await statesOf(id);
    for (const device of [waiting, sent, downloading, retried]) {
      expect(states.get(device)).to.equal('skipped');
      expect((await commandsOf(device)).at(-1)).to.deep.equal({ status: 'cancelled' });
      expect((await take(device)).commands).to.deep.equal([]);
    }
    expect([states.get(failed), states.get(done)]).to.deep.equal(['failure', 'successful']);
    const errors = await fixture.rows<{ device_id: string; error: string }>(
      `SELECT device_id, error FROM ota_rollout_devices WHERE device_id = ANY($1) ORDER BY error`,
      [waiting, sent],
    );
    expect(errors).to.deep.equal([
      { device_id: waiting, error: 'cancelled before delivery' },
      { device_id: sent, error: 'cancelled before the device reported' },
    ]);
    const deadlines = await fixture.rows('SELECT FROM ota_rollout_devices WHERE deadline_at IS NOT NULL');
    expect(deadlines).to.deep.equal([]);
    expect(await fixture.row(id)).to.include({ pending_work: 'drop_cohort' });
  });

  it('counts the results of devices that finish the update afterwards, each once', async () => {
    const { id, waiting, sent, downloading, retried } = await startMixed();
    await fixture.rollouts.cancel(fixture.context, id);
    for (let repeat = 0; repeat < 2; repeat += 1) {
      await fixture.report(sent, id, '2.0.0');
      await fixture.report(downloading, id, '1.5.0', false);
      await fixture.report(waiting, id, '2.0.0');
      expect(await countsOf(id)).to.include({ scheduled: 6, sent: 5, succeeded: 3, failed: 2, skipped: 1 });
    }
    expect((await statesOf(id)).get(retried)).to.equal('skipped');
  });

  it('does not count devices that left it', async () => {
    const [left] = (await fixture.make(sensor, 2)) as [string, string];
    const other = await fixture.profile('elsewhere');
    const id = await fixture.start({ canaryPercent: 100 });
    await take(left);
    await fixture.move(left, other);
    await fixture.rollouts.cancel(fixture.context, id);
    await fixture.report(left, id, '2.0.0');
    expect(await countsOf(id)).to.include({ scheduled: 1, sent: 0, succeeded: 0, skipped: 1, removed: 1 });
  });

  it('skips them too when its resource is deleted', async () => {
    const { id, sent } = await startMixed();
    const { name, namespace } = await fixture.row(id);
    const meta = create(ObjectMetaSchema, { tenantId: tenant, namespace: namespace as string, name: name as string });
    await new RolloutApplier(fixture.test.database, fixture.profiles, fixture.clock).remove(meta, false);
    expect(await fixture.rollouts.get(tenant, id)).to.include({ message: 'cancelled' });
    expect(await countsOf(id)).to.include({ skipped: 4 });
    expect((await statesOf(id)).get(sent)).to.equal('skipped');
  });

  it('skips devices in small transactions, and says how many remain', async () => {
    const devices = 2600;
    await fixture.load(sensor, devices);
    const id = await fixture.start({ packageRef: { name: 'two' }, canaryPercent: 100 });
    await fixture.schedule(id);
    await fixture.rollouts.cancel(fixture.context, id);
    const remaining: number[] = [];
    const sizes: number[] = [];
    let isWorking = true;
    const working = finishWork().finally(() => (isWorking = false));
    while (isWorking) {
      const { counts, message } = await fixture.rollouts.get(tenant, id);
      remaining.push(Number(/from (\d+) more/.exec(message!)?.[1] ?? 0));
      sizes.push(counts!.skipped!);
      // As a report or a poll would, it gets the row between two transactions.
      await fixture.test.database.tenant(tenant, (tx) =>
        tx.query('SELECT FROM ota_rollouts WHERE rollout_id = $1 FOR UPDATE', [id]),
      );
    }
    await working;
    expect(remaining[0]).to.be.within(1, devices - 500);
    for (const [index, skipped] of sizes.entries()) expect(skipped + remaining[index]!).to.equal(devices);
    expect(sizes.every((skipped) => skipped % 500 === 0 || skipped === devices)).to.equal(true);
    expect(new Set(sizes).size, 'others get the row in between').to.be.greaterThan(2);
    expect(await countsOf(id)).to.include({ scheduled: devices, sent: 0, skipped: devices });
  });

  it('of an earlier release has its devices skipped by the upgrade', async () => {
    const { id, sent, waiting, done } = await startMixed();
    await fixture.rows(
      `UPDATE ota_rollouts SET phase = 'completed', outcome = 'cancelled', pending_work = '' WHERE rollout_id = $1`,
      id,
    );
    await fixture.rows(await readFile(migration, 'utf8'));
    await finishWork();
    expect(await countsOf(id)).to.include({ scheduled: 6, sent: 4, succeeded: 1, failed: 1, skipped: 4 });
    const states = await statesOf(id);
    expect([sent, waiting, done].map((device) => states.get(device))).to.deep.equal([
      'skipped',
      'skipped',
      'successful',
    ]);
  });
});
