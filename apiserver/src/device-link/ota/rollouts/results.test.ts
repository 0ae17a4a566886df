// Which reports become results, and what a result says.
import { create } from '@bufbuild/protobuf';
import { OtaReport_Status, OtaReportSchema } from '@kellet/proto/es/kellet/v1/ota_pb';
import { leafHash } from '@kellet/verify';
import { expect } from 'chai';
import type { KelletError } from '../../../platform/errors.ts';
import { openRolloutFixture, type RolloutFixture, tenant } from '../testing/rollout-fixture.ts';

interface Row extends Record<string, unknown> {
  device_id: string;
  rollout_id: string | null;
  time: bigint;
  payload: string;
  data_hash: Buffer;
}

describe('the results of a rollout', () => {
  let fixture: RolloutFixture;
  let devices: string[];
  let rolloutId: string;
  beforeEach(async () => {
    fixture = await openRolloutFixture();
    const profileId = (await fixture.rows<{ profile_id: string }>('SELECT profile_id FROM profiles'))[0]!.profile_id;
    devices = await fixture.make(profileId, 3);
    rolloutId = await fixture.start({ canaryPercent: 100, failureThresholdPercent: 100 });
    await fixture.schedule(rolloutId);
  });
  afterEach(() => fixture.close());

  const rows = () => fixture.rows<Row>('SELECT * FROM ota_results ORDER BY result_id');
  const valuesOf = ({ payload }: Row) => {
    const values = (JSON.parse(payload) as { string_values: Record<string, string> }).string_values;
    return Object.fromEntries(Object.entries(values).map(([key, value]) => [key.replace('kellet.ota.', ''), value]));
  };
  /** The results of a device, oldest first: what and on which version. */
  const resultsOf = async (deviceId: string) =>
    (await rows())
      .filter((row) => row.device_id === deviceId)
      .map((row) => `${valuesOf(row)['result']} ${valuesOf(row)['reported_version'] ?? ''}`);

  it('say which package a device runs, and hash to the leaf that is anchored', async () => {
    await fixture.report(devices[0]!, rolloutId, '2.0.0');
    const [row] = await rows();
    const values = valuesOf(row!);
    const [package_] = await fixture.rows<{ package_id: string; sha256: Buffer }>(
      `SELECT package_id, sha256 FROM ota_packages WHERE name = 'two'`,
    );
    expect(values).to.deep.equal({
      result_id: row!['result_id'],
      result: 'successful',
      rollout_id: rolloutId,
      package_id: package_!.package_id,
      package_type: 'fw',
      package_version: '2.0.0',
      package_sha256: package_!.sha256.toString('hex'),
      reported_version: '2.0.0',
    });
    expect(row!.time).to.equal(BigInt(fixture.clock.now()) * 1_000_000n);
    const timestampSeconds = Math.floor(fixture.clock.now() / 1000);
    const inputs = { tenantId: tenant, deviceId: devices[0]!, timestampSeconds, payload: row!.payload };
    expect(row!.data_hash.equals(Buffer.from(leafHash(inputs)))).to.equal(true);
  });

  it('name the rollout in one spelling, however the device writes it, so that its proof holds', async () => {
    await fixture.report(devices[0]!, rolloutId.toUpperCase(), '2.0.0');
    expect((await rows()).map((row) => valuesOf(row)['rollout_id'])).to.deep.equal([rolloutId]);
  });

  it('are written once for a report that is repeated, together or later', async () => {
    await Promise.all([1, 2, 3].map(() => fixture.report(devices[0]!, rolloutId, '2.0.0')));
    await fixture.report(devices[0]!.toUpperCase(), rolloutId, '2.0.0');
    await fixture.report(devices[1]!, rolloutId, '1.0.0', false);
    await fixture.report(devices[1]!, rolloutId, '1.0.0', false);
    expect(await resultsOf(devices[0]!)).to.deep.equal(['successful 2.0.0']);
    expect(await resultsOf(devices[1]!)).to.deep.equal(['failure 1.0.0']);
  });

  it('follow a device that revokes its success, lies about its version, or reports too late', async () => {
    await fixture.report(devices[0]!, rolloutId, '2.0.0');
    await fixture.report(devices[0]!, rolloutId, '1.0.0', false);
    expect(await resultsOf(devices[0]!)).to.deep.equal(['successful 2.0.0', 'failure 1.0.0']);
    await fixture.report(devices[1]!, rolloutId, '9.9.9');
    const lie = (await rows()).at(-1)!;
    expect(valuesOf(lie)).to.include({ result: 'failure', reported_version: '9.9.9', package_version: '2.0.0' });
    expect(valuesOf(lie)['error']).to.contain('9.9.9');
    // It stays failed, but runs the update after all.
    await fixture.report(devices[1]!, rolloutId, '2.0.0');
    expect(await resultsOf(devices[1]!)).to.deep.equal(['failure 9.9.9', 'successful 2.0.0']);
  });

  it('are not written for progress, nor for a report that is refused', async () => {
    const progress = create(OtaReportSchema, { rolloutId, progressPercent: 50, firmwareVersion: '1.5.0' });
    await fixture.reports.report(tenant, devices[0]!, progress);
    const stranger = (await fixture.make('', 1))[0]!;
    await fixture.report(stranger, rolloutId, '2.0.0').catch(() => undefined);
    expect(await rows()).to.deep.equal([]);
  });

  it('name the rollback package once a device has gone back', async () => {
    await fixture.report(devices[0]!, rolloutId, '2.0.0');
    await fixture.rollouts.rollback(fixture.context, rolloutId);
    await fixture.report(devices[0]!, rolloutId, '1.0.0');
    expect(await resultsOf(devices[0]!)).to.deep.equal(['successful 2.0.0', 'rolled_back 1.0.0']);
    expect(valuesOf((await rows()).at(-1)!)).to.include({ package_version: '1.0.0' });
  });

  it('keep every text that a device reports within the limits of a value', async () => {
    const status = OtaReport_Status.failure;
    const error = `${'\u{1F4A5}'.repeat(600)}"`;
    await fixture.reports.report(tenant, devices[0]!, create(OtaReportSchema, { rolloutId, status, error }));
    const kept = valuesOf((await rows())[0]!)['error']!;
    expect(kept.isWellFormed()).to.equal(true);
    expect(Buffer.byteLength(kept)).to.be.within(1500, 4096);
  });

  it('are written for an assignment of the device itself, once however often it is reported', async () => {
    const packageId = await fixture.package('own', '3.0.0');
    await fixture.overrides.set(tenant, devices[2]!, packageId);
    const report = (firmwareVersion: string, status: OtaReport_Status) =>
      fixture.reports.report(tenant, devices[2]!, create(OtaReportSchema, { firmwareVersion, status }));
    await report('1.0.0', OtaReport_Status.failure);
    await Promise.all([1, 2, 3, 4].map(() => report('3.0.0', OtaReport_Status.success)));
    expect(await resultsOf(devices[2]!)).to.deep.equal(['failure 1.0.0', 'successful 3.0.0']);
    expect((await rows()).map((row) => row.rollout_id)).to.deep.equal([null, null]);
  });

  it('are at most a hundred of a device at once, whatever it reports, and as many in a day', async () => {
    const send = (deviceId: string, report: object) =>
      fixture.reports.report(tenant, deviceId, create(OtaReportSchema, report)).then(
        () => 'OK',
        (error: unknown) => (error as KelletError).code,
      );
    const outcomes: string[] = [];
    // The state in the rollout changes once, and the version each time.
    for (let at = 0; at < 103; at += 1) {
      const firmwareVersion = `1.0.${at}`;
      outcomes.push(await send(devices[0]!, { rolloutId, status: OtaReport_Status.failure, firmwareVersion }));
    }
    expect(outcomes.filter((code) => code === 'OK')).to.have.length(100);
    expect(outcomes.slice(100)).to.deep.equal(Array.from({ length: 3 }, () => 'RESOURCE_EXHAUSTED'));
    expect(await send(devices[0]!, { rolloutId, progressPercent: 5, firmwareVersion: '3' })).to.equal(
      'RESOURCE_EXHAUSTED',
    );
    expect(await send(devices[0]!, { rolloutId, progressPercent: 5 })).to.equal('OK');
    expect(await resultsOf(devices[0]!)).to.have.length(100);
    // Nobody else is concerned.
    expect(await send(devices[1]!, { rolloutId, status: OtaReport_Status.success, firmwareVersion: '2.0.0' })).to.equal(
      'OK',
    );
    await fixture.overrides.set(tenant, devices[2]!, await fixture.package('own', '3.0.0'));
    const own: string[] = [];
    for (let at = 0; at < 101; at += 1) {
      own.push(await send(devices[2]!, { status: OtaReport_Status.failure, error: String(at) }));
    }
    expect(own.indexOf('RESOURCE_EXHAUSTED')).to.equal(100);
    fixture.clock.advance(3_600_000);
    const later = { rolloutId, status: OtaReport_Status.failure, firmwareVersion: '4' };
    expect(await send(devices[0]!, later)).to.equal('OK');
  });

  it('count repetitions once', async () => {
    for (let at = 0; at < 120; at += 1) await fixture.report(devices[0]!, rolloutId, '2.0.0');
    await fixture.report(devices[0]!, rolloutId, '1.0.0', false);
    expect(await resultsOf(devices[0]!)).to.deep.equal(['successful 2.0.0', 'failure 1.0.0']);
  });

  it('are not written if their report is not', async () => {
    await fixture.rows('ALTER TABLE ota_results ADD CONSTRAINT broken CHECK (false) NOT VALID');
    expect(await fixture.report(devices[0]!, rolloutId, '2.0.0').catch(() => 'refused')).to.equal('refused');
    expect((await fixture.members(rolloutId)).map(({ state }) => state)).to.not.include('successful');
  });
});
