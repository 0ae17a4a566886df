// A thousand devices report at once, in two processes: out of order, repeatedly, with a lying version, on rollouts of others.
import { create, type MessageInitShape } from '@bufbuild/protobuf';
import { OtaReport_Status, OtaReportSchema } from '@kellet/proto/es/kellet/v1/ota_pb';
import { expect } from 'chai';
import { KelletError } from '../../../platform/errors.ts';
import { namedId, newId } from '../../../platform/ids.ts';
import { openRolloutFixture, type RolloutFixture, tenant } from '../testing/rollout-fixture.ts';
import { RolloutMembership } from './membership.ts';
import { Reports } from './reports.ts';

const size = 1000;
const sensor = namedId(tenant, 'profile', 'sensor');
const { success, failure } = OtaReport_Status;
type Body = MessageInitShape<typeof OtaReportSchema>;

/** What devices send, in this order, and how the rollout ends for them. */
const kinds: readonly { readonly sends: readonly Body[]; readonly ends: string }[] = [
  { sends: Array.from({ length: 3 }, () => ({ status: success, firmwareVersion: '2.0.0' })), ends: 'successful' },
  {
    sends: [{ progressPercent: 90 }, { status: success, firmwareVersion: '2.0.0' }, { progressPercent: 10 }],
    ends: 'successful',
  },
  { sends: [{ status: failure, error: 'no space' }, { progressPercent: 50 }, { status: failure }], ends: 'failure' },
  { sends: [{ status: success, firmwareVersion: '9.9.9' }], ends: 'failure' },
  { sends: [{ status: success, firmwareVersion: '2.0.0' }, { status: failure }, { status: failure }], ends: 'failure' },
  { sends: [], ends: 'scheduled' },
];
const kindOf = (index: number) => kinds[index % kinds.length]!;

describe('hostile reports', function () {
  this.timeout(120_000);
  let fixture: RolloutFixture;
  beforeEach(async () => (fixture = await openRolloutFixture()));
  afterEach(() => fixture.close());

  it('leave the counters exact, and what is not theirs as it is', async () => {
    const strangers = await fixture.make(await fixture.profile('others'), 20);
    await fixture.load(sensor, size);
    const id = await fixture.start({ canaryPercent: 100, failureThresholdPercent: 100 });
    await fixture.schedule(id);
    const devices = (await fixture.members(id)).map((member) => member.device_id);
    expect(devices).to.have.length(size);

    // Each device sends to one process in its order; the devices' reports are mixed.
    const { database } = fixture.test;
    const processes = [0, 1].map(() => new Reports(database, new RolloutMembership(fixture.clock), fixture.clock));
    const sent: Promise<unknown>[] = [];
    const refused: Promise<unknown>[] = [];
    const send = (index: number, deviceId: string, rolloutId: string, body: Body) =>
      processes[index % 2]!.report(tenant, deviceId, create(OtaReportSchema, { rolloutId, ...body }));
    for (let turn = 0; turn < 3; turn += 1) {
      for (const [index, deviceId] of devices.entries()) {
        const body = kindOf(index).sends[turn];
        if (body) sent.push(send(index, deviceId, id, body));
        if (index % 50 === turn) refused.push(send(index, deviceId, newId(), { status: failure }).catch(String));
      }
      for (const [index, stranger] of strangers.entries()) {
        const result = send(index, stranger, id, { status: failure, firmwareVersion: '2.0.0' });
        refused.push(result.catch((error: unknown) => (error instanceof KelletError ? error.code : String(error))));
      }
    }
    await Promise.all(sent);
    for (const outcome of await Promise.all(refused)) expect(outcome).to.match(/NOT_FOUND|not found/);

    const states = new Map((await fixture.members(id)).map((member) => [member.device_id, member.state]));
    const wrong = devices.filter((deviceId, index) => states.get(deviceId) !== kindOf(index).ends);
    expect(wrong).to.deep.equal([]);
    const number = (state: string) => devices.filter((_, index) => kindOf(index).ends === state).length;
    const { counts } = await fixture.rollouts.get(tenant, id);
    expect(counts).to.include({
      ...{ eligible: size, scheduled: size, succeeded: number('successful'), failed: number('failure') },
      ...{ timedOut: 0, skipped: 0, removed: 0 },
    });
    const touched = await fixture.rows(
      `SELECT device_id FROM devices WHERE device_id = ANY($1::uuid[]) AND firmware_version <> ''`,
      strangers,
    );
    expect(touched).to.deep.equal([]);
  });

  it('fail alone if they contain what cannot be stored', async () => {
    await fixture.load(sensor, 7);
    const id = await fixture.start({ canaryPercent: 100, failureThresholdPercent: 100 });
    await fixture.schedule(id);
    const devices = (await fixture.members(id)).map((member) => member.device_id);
    const reports = new Reports(fixture.test.database, new RolloutMembership(fixture.clock), fixture.clock);
    const bodies: readonly Body[] = [
      { status: success, firmwareVersion: '2.0.0' },
      { status: failure, error: 'no\0 space \ud800' },
      { status: success, firmwareVersion: '2.0\0.0' },
      { status: success, firmwareVersion: '2.0.0\ud800' },
      { status: OtaReport_Status.status_unspecified, progressPercent: 10 },
      { status: OtaReport_Status.status_unspecified, firmwareVersion: '2.0.0' },
      { status: 7 as typeof failure, progressPercent: 10 },
    ];
    const outcomes = await Promise.allSettled(
      bodies.map((body, index) =>
        reports.report(tenant, devices[index]!, create(OtaReportSchema, { rolloutId: id, ...body })),
      ),
    );
    expect(outcomes.map((outcome) => (outcome.status === 'fulfilled' ? '' : String(outcome.reason)))).to.deep.equal([
      ...['', ''],
      'KelletError: firmware_version must not contain NUL',
      'KelletError: firmware_version is not valid Unicode',
      '',
      'KelletError: report: status or progress_percent is required',
      'KelletError: status must be success or failure',
    ]);
    const members = new Map((await fixture.members(id)).map((member) => [member.device_id, member]));
    expect(members.get(devices[0]!)).to.include({ state: 'successful' });
    expect(members.get(devices[1]!)).to.include({ state: 'failure' });
    expect(members.get(devices[4]!)).to.include({ state: 'downloading' });
    const errors = await fixture.rows('SELECT error FROM ota_rollout_devices WHERE device_id = $1', devices[1]);
    expect(errors).to.deep.equal([{ error: 'no space \ufffd' }]);
  });
});
