// Which package a device gets when it asks by itself, and when its rollout is held back, withdrawn or rolled back.
import { create } from '@bufbuild/protobuf';
import { OtaReport_Status, OtaReportSchema } from '@kellet/proto/es/kellet/v1/ota_pb';
import { expect } from 'chai';
import { newId } from '../../../platform/ids.ts';
import { Delivery } from '../../rpc/delivery.ts';
import { openRolloutFixture, refusal, type RolloutFixture, tenant } from '../testing/rollout-fixture.ts';

describe('the package of a device', () => {
  let fixture: RolloutFixture;
  let sensor: string;
  let two: string;
  let three: string;
  let delivery: Delivery;
  beforeEach(async () => {
    fixture = await openRolloutFixture();
    sensor = await fixture.profile('sensor');
    ({ package_id: two } = (
      await fixture.rows<{ package_id: string }>(`SELECT package_id FROM ota_packages WHERE name = 'two'`)
    )[0]!);
    three = await fixture.package('three', '3.0.0');
    delivery = new Delivery(fixture.test.database, fixture.profiles, fixture.clock);
  });
  afterEach(() => fixture.close());

  const take = async (device: string) => (await delivery.take(tenant, device)).commands;
  /** What the device gets: the version of its package, and the result of a request for a chunk of it. */
  const gets = async (device: string, packageId: string) => [
    await fixture.metadata(device).then(
      ({ version }) => version,
      ({ code }: { code: string }) => code,
    ),
    await refusal(fixture.chunk(device, packageId)),
  ];
  const held = ['NOT_FOUND', 'PERMISSION_DENIED'];
  const minute = (milliseconds: number) => new Date(fixture.clock.now() + milliseconds).toISOString().slice(11, 16);

  describe('is not given before it was delivered or begun while the rollout', () => {
    for (const [what, hold, letGo] of [
      [
        'is paused',
        (id: string) => fixture.rollouts.pause(fixture.context, id),
        (id: string) => fixture.rollouts.resume(fixture.context, id, undefined),
      ],
      [
        'is outside its window',
        (id: string) => fixture.apply(id, { window: { start: minute(3_600_000), end: minute(7_200_000) } }),
        async () => fixture.clock.advance(5_400_000),
      ],
      [
        'is outside the profile’s window',
        () =>
          fixture.rows(
            `UPDATE profiles SET document = document || jsonb_build_object('ota_policy', jsonb_build_object('window', $1::jsonb))`,
            { start: minute(3_600_000), end: minute(7_200_000), time_zone: 'UTC' },
          ),
        async () => fixture.clock.advance(5_400_000),
      ],
    ] as const) {
      it(`${what}`, async () => {
        const [told, downloading, idle] = (await fixture.make(sensor, 3)) as [string, string, string];
        const id = await fixture.start({ canaryPercent: 100 });
        expect(await take(told)).to.have.length(1);
        expect(await gets(downloading, two)).to.deep.equal(['2.0.0', 'nothing']);
        // It has read the metadata, and downloaded nothing.
        expect(await fixture.metadata(idle)).to.include({ version: '2.0.0' });
        await hold(id);
        const { message } = await fixture.rollouts.get(tenant, id);
        expect(message).to.match(
          what === 'is paused' ? /^paused by/ : /^outside its window until 20..-..-..T..:..Z: 3 of 3/,
        );
        for (const device of [told, downloading]) expect(await gets(device, two)).to.deep.equal(['2.0.0', 'nothing']);
        expect(await gets(idle, two)).to.deep.equal(held);
        await letGo(id);
        expect(await gets(idle, two)).to.deep.equal(['2.0.0', 'nothing']);
      });
    }
  });

  it('is the update once the device has reported on it, although nothing was delivered', async () => {
    const [device] = (await fixture.make(sensor, 1)) as [string];
    const id = await fixture.start({ canaryPercent: 100 });
    await fixture.report(device, id, '2.0.0');
    await fixture.rollouts.pause(fixture.context, id);
    expect(await gets(device, two)).to.deep.equal(['2.0.0', 'nothing']);
  });

  it('goes back with the rollout if the device had begun by itself', async () => {
    const [begun, idle] = (await fixture.make(sensor, 2)) as [string, string];
    const id = await fixture.start({ canaryPercent: 100 });
    expect(await refusal(fixture.chunk(begun, two))).to.equal('nothing');
    await fixture.rollouts.rollback(fixture.context, id);
    expect((await take(begun)).map(({ params }) => params['version'])).to.deep.equal(['1.0.0']);
    expect(await fixture.metadata(begun)).to.include({ version: '1.0.0' });
    expect(await take(idle)).to.deep.equal([]);
    expect(await gets(idle, two)).to.deep.equal(held);
  });

  it('never begins after a rollout was rolled back, however close the two are', async () => {
    const fleet = await fixture.make(sensor, 30);
    const id = await fixture.start({ canaryPercent: 100 });
    const [, ...begun] = await Promise.all([
      fixture.rollouts.rollback(fixture.context, id),
      ...fleet.map((device) => refusal(fixture.chunk(device, two))),
    ]);
    for (const [index, device] of fleet.entries()) {
      const versions = (await take(device)).map(({ params }) => params['version']);
      expect(versions).to.deep.equal(begun[index] === 'nothing' ? ['1.0.0'] : []);
      expect(await refusal(fixture.chunk(device, two))).to.equal('PERMISSION_DENIED');
    }
  });

  describe('after a rollout that updated it', () => {
    const back: [string, (id: string, device: string) => Promise<unknown>][] = [
      ['rolled back', (id) => fixture.rollouts.rollback(fixture.context, id)],
      ['cancelled', (id) => fixture.rollouts.cancel(fixture.context, id)],
      ['skipped', (id, device) => fixture.rollouts.skip(fixture.context, id, [device])],
      ['held', (id) => fixture.rollouts.pause(fixture.context, id)],
    ];
    for (const [what, verb] of back) {
      it(`stays if a newer one is ${what} before it was delivered`, async () => {
        const [device] = (await fixture.make(sensor, 1)) as [string];
        const first = await fixture.start({ canaryPercent: 100 });
        await fixture.report(device, first, '2.0.0');
        expect(await fixture.advance(first, { case: 'complete', value: {} })).to.equal(true);
        const second = await fixture.start({ packageRef: { name: 'three' }, canaryPercent: 100 });
        expect(await fixture.metadata(device)).to.include({ version: '3.0.0', rolloutId: second });
        await verb(second, device);
        expect(await fixture.metadata(device)).to.include({ version: '2.0.0', rolloutId: first });
        expect(await refusal(fixture.chunk(device, two))).to.equal('nothing');
        expect(await refusal(fixture.chunk(device, three))).to.equal('PERMISSION_DENIED');
      });
    }

    it('still goes back if a newer one is withdrawn before it was delivered', async () => {
      const [away] = (await fixture.make(sensor, 1)) as [string];
      const first = await fixture.start({ canaryPercent: 100, deviceTimeoutSeconds: 60 });
      await fixture.report(away, first, '2.0.0');
      await fixture.rollouts.rollback(fixture.context, first);
      fixture.clock.advance(61_000);
      await fixture.advance(first, { case: 'expireDevices', value: {} });
      expect(await fixture.advance(first, { case: 'finishRollback', value: {} })).to.equal(true);
      const second = await fixture.start({ packageRef: { name: 'three' }, canaryPercent: 100 });
      await fixture.rollouts.pause(fixture.context, second);
      expect(await take(away), 'the newer one has the device').to.deep.equal([]);
      await fixture.rollouts.cancel(fixture.context, second);
      expect((await take(away)).map(({ rollout_id: rollout }) => rollout)).to.deep.equal([first]);
      expect(await fixture.metadata(away)).to.include({ version: '1.0.0', rolloutId: first });
    });
  });

  describe('that is assigned to it alone', () => {
    let device: string;
    beforeEach(async () => {
      [device] = (await fixture.make(sensor, 1)) as [string];
    });
    const set = (packageId: string) => fixture.overrides.set(tenant, device, packageId);
    const report = (change: object) =>
      fixture.reports.report(tenant, device, create(OtaReportSchema, { rolloutId: '', ...change }));
    const commands = () =>
      fixture.rows<{ version: string; status: string }>(
        `SELECT params->>'version' AS version, status FROM device_commands WHERE device_id = $1 ORDER BY created_at`,
        device,
      );

    it('is announced by a command that the report completes', async () => {
      await set(two);
      const [command] = await take(device);
      expect(command).to.include({ method: 'ota_start', persistent: true, rollout_id: null });
      expect(command!.params).to.include({ rollout_id: '', package_id: two, type: 'fw', version: '2.0.0' });
      expect(command!.params)
        .to.have.property('sha256')
        .that.matches(/^[0-9a-f]{64}$/);
      await report({ progressPercent: 10 });
      await fixture.rows(`UPDATE device_commands SET not_before = now() WHERE not_before < 'infinity'`);
      expect(await take(device), 'it has the command').to.deep.equal([]);
      await report({ status: OtaReport_Status.success, firmwareVersion: '2.0.0' });
      expect(await commands()).to.deep.equal([{ version: '2.0.0', status: 'successful' }]);
    });

    it('is told once, and again if it is assigned again after a failure', async () => {
      await set(two);
      await set(two);
      expect(await commands()).to.have.length(1);
      await report({ status: OtaReport_Status.failure, firmwareVersion: '1.0.0', error: 'no space' });
      await set(two);
      expect((await commands()).map(({ status }) => status)).to.deep.equal(['failure', 'queued']);
    });

    it('replaces the command of another one, and withdraws it when it is removed', async () => {
      await set(two);
      await set(three);
      expect(await commands()).to.deep.equal([
        { version: '2.0.0', status: 'cancelled' },
        { version: '3.0.0', status: 'queued' },
      ]);
      await fixture.overrides.remove(tenant, device);
      expect((await commands()).map(({ status }) => status)).to.deep.equal(['cancelled', 'cancelled']);
    });

    it('sends nothing to a device that runs the version', async () => {
      await fixture.rows(`UPDATE devices SET firmware_version = '2.0.0' WHERE device_id = $1`, device);
      await set(two);
      expect(await commands()).to.deep.equal([]);
      expect(await gets(device, two)).to.deep.equal(['2.0.0', 'nothing']);
    });

    it('takes the place of a rollout’s command', async () => {
      const id = await fixture.start({ canaryPercent: 100 });
      await set(three);
      expect((await take(device)).map(({ params }) => params['version'])).to.deep.equal(['3.0.0']);
      await fixture.overrides.remove(tenant, device);
      expect((await take(device)).map(({ rollout_id: rollout }) => rollout)).to.deep.equal([id]);
    });

    it('refuses an unknown package and sends nothing', async () => {
      expect(await refusal(set(newId()))).to.equal('NOT_FOUND');
      expect(await commands()).to.deep.equal([]);
    });
  });
});
