// A retry of many devices, on a real database: in small transactions, each device once; and lists of devices by state.
import { create } from '@bufbuild/protobuf';
import { ListRolloutDevicesRequestSchema, RolloutDevice_State } from '@kellet/proto/es/kellet/v1/ota_pb';
import { expect } from 'chai';
import { createLogger } from '../../../../platform/observability/logger.ts';
import { openRolloutFixture, refusal, type RolloutFixture, tenant } from '../../testing/rollout-fixture.ts';
import { RolloutWork } from './rollout-work.ts';
import { devicesPerTransaction } from './scheduling.ts';

const size = 2 * devicesPerTransaction + 100;

describe('a retry of all failed devices', function () {
  this.timeout(60_000);
  let fixture: RolloutFixture;
  let id: string;
  /** In order of their ids. */
  let fleet: string[];
  before(async () => {
    fixture = await openRolloutFixture();
    await fixture.load(await fixture.profile('sensor'), size + 50);
  });
  after(() => fixture.close());

  const work = () =>
    new RolloutWork({
      database: fixture.test.database,
      profiles: fixture.profiles,
      clock: fixture.clock,
      logger: createLogger('silent'),
    });
  const counts = async () => {
    const {
      pending_work: pendingWork,
      scheduled,
      sent,
      succeeded,
      failed,
      timed_out: timedOut,
    } = await fixture.row(id);
    return { pendingWork, scheduled, sent, succeeded, failed, timedOut };
  };

  it('begins with all but fifty timed out or failed', async () => {
    const spec = { canaryPercent: 100, failureThresholdPercent: 100, maxAttempts: 1, deviceTimeoutSeconds: 60 };
    id = await fixture.start(spec);
    await fixture.schedule(id);
    fleet = (await fixture.members(id)).map((member) => member.device_id);
    await fixture.rows(
      `UPDATE ota_rollout_devices SET state = 'sent', attempts = 1, deadline_at = $2
       WHERE rollout_id = $1 AND device_id = ANY($3::uuid[])`,
      ...[id, new Date(fixture.clock.now()), fleet.slice(0, size)],
    );
    await fixture.rows('UPDATE ota_rollouts SET sent = $2 WHERE rollout_id = $1', id, size);
    for (const device of [fleet[3]!, fleet[size - 1]!]) await fixture.report(device, id, '1.0.0', false);
    fixture.clock.advance(61_000);
    while ((await counts()).timedOut !== size - 2) await fixture.advance(id, { case: 'expireDevices', value: {} });
    expect(await counts()).to.deep.equal({
      ...{ pendingWork: '', scheduled: size + 50, sent: size, succeeded: 0, failed: 2, timedOut: size - 2 },
    });
  });

  for (const pageSize of [7, 1000]) {
    it(`finds devices by state in pages of ${pageSize}`, async () => {
      const list = async (state: RolloutDevice_State) => {
        const listed: string[] = [];
        for (let pageToken = ''; ;) {
          const request = create(ListRolloutDevicesRequestSchema, { rolloutId: id, state, pageSize, pageToken });
          const { devices, nextPageToken } = await fixture.rollouts.listDevices(request, tenant);
          listed.push(...devices!.map(({ deviceId }) => deviceId!));
          if (!nextPageToken) return listed;
          pageToken = nextPageToken;
        }
      };
      const failed = [fleet[3]!, fleet[size - 1]!];
      expect(await list(RolloutDevice_State.failure)).to.deep.equal(failed);
      expect(await list(RolloutDevice_State.scheduled)).to.deep.equal(fleet.slice(size));
      expect(await list(RolloutDevice_State.timed_out)).to.deep.equal(
        fleet.slice(0, size).filter((device) => !failed.includes(device)),
      );
    });
  }

  it('takes 500 devices at once, and continues from there in any process', async () => {
    await fixture.rollouts.retry(fixture.context, id, []);
    const left = size - devicesPerTransaction;
    const begun = {
      pendingWork: 'retry',
      scheduled: size + 50,
      sent: left,
      succeeded: 0,
      failed: 1,
      timedOut: left - 1,
    };
    expect(await counts()).to.deep.equal(begun);
    // One that fails again meanwhile is not retried a second time.
    const again = fleet[3]!;
    await fixture.report(again, id, '1.0.0', false);
    await work().finish();
    expect(await counts()).to.deep.equal({
      ...{ pendingWork: '', scheduled: size + 50, sent: 1, succeeded: 0, failed: 1, timedOut: 0 },
    });
    const commands = await fixture.rows(
      `SELECT device_id, count(*)::int4 AS commands,
         count(*) FILTER (WHERE status IN ('queued', 'scheduled', 'sent'))::int4 AS open
       FROM device_commands WHERE rollout_id = $1 GROUP BY device_id ORDER BY device_id`,
      id,
    );
    expect(commands).to.deep.equal(
      fleet.map((device, index) => ({
        ...{ device_id: device, commands: index < size ? 2 : 1, open: device === again ? 0 : 1 },
      })),
    );
  });

  it('changes nothing when it is repeated, but for those that failed since', async () => {
    for (const expected of [
      { sent: 0, failed: 0 },
      { sent: 0, failed: 0 },
    ]) {
      await fixture.rollouts.retry(fixture.context, id, []);
      expect(await counts()).to.include({ pendingWork: '', timedOut: 0, ...expected });
    }
    const [row] = await fixture.rows(`SELECT count(*)::int4 FROM device_commands WHERE rollout_id = $1`, id);
    expect(row).to.deep.equal({ count: size + 50 + size + 1 });
  });

  it('gives way to a cancel', async () => {
    await fixture.rows(
      `UPDATE ota_rollout_devices SET state = 'failure', attempts = 1 WHERE rollout_id = $1 AND device_id = ANY($2::uuid[])`,
      ...[id, fleet],
    );
    await fixture.rows('UPDATE ota_rollouts SET sent = $2, failed = $2 WHERE rollout_id = $1', id, size + 50);
    // As their reports would have done.
    await fixture.rows(`UPDATE device_commands SET status = 'cancelled' WHERE rollout_id = $1`, id);
    await fixture.rollouts.retry(fixture.context, id, []);
    expect(await counts()).to.include({ pendingWork: 'retry' });
    await fixture.rollouts.cancel(fixture.context, id);
    await work().finish();
    expect(await fixture.row(id)).to.include({ pending_work: '', phase: 'completed', outcome: 'cancelled' });
    expect(await refusal(fixture.rollouts.retry(fixture.context, id, []))).to.equal('FAILED_PRECONDITION');
    const [row] = await fixture.rows(
      `SELECT count(*)::int4 FROM device_commands WHERE rollout_id = $1 AND status IN ('queued', 'scheduled', 'sent')`,
      id,
    );
    expect(row).to.deep.equal({ count: 0 });
  });
});
