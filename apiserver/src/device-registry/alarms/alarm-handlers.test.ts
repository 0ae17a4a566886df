import {
  Alarm_Severity,
  Alarm_Status,
  ChangeDevicesRequest_Action as Action,
  DeviceRegistryService,
} from '@kellet/proto/es/kellet/v1/device_registry_pb';
import { expect } from 'chai';
import { newId } from '../../platform/ids.ts';
import { refusalOf, TestRules } from '../../rules-engine/testing/test-rules.ts';

const { method } = DeviceRegistryService;

describe('alarms', () => {
  let services: TestRules;
  let deviceId: string;

  before(async () => {
    services = await TestRules.start();
  });
  after(() => services.stop());
  beforeEach(async () => {
    deviceId = await services.makeDevice();
  });

  const raise = (type = 'leak', fields: { severity?: Alarm_Severity; details?: { note: string } } = {}) =>
    services.devices(method.createAlarm, { deviceId, type, ...fields });
  const eventsOf = async (alarmId: string) =>
    (await services.events())
      .filter(({ subject }) => subject.endsWith(alarmId))
      .map(({ subject }) => subject.split('.')[1]);

  it('are raised by hand and count instead of repeating', async () => {
    const alarm = await raise('leak', { severity: Alarm_Severity.minor, details: { note: 'wet' } });
    expect(alarm).to.deep.include({ deviceId, ruleId: '', type: 'leak', count: 1, status: Alarm_Status.active });
    services.clock.advance(1000);
    const again = await raise('leak', { severity: Alarm_Severity.critical });
    expect(again).to.deep.include({ alarmId: alarm.alarmId, count: 2, severity: Alarm_Severity.critical });
    expect(again.details).to.deep.equal({ note: 'wet' });
    expect(Number(again.lastAt!.seconds - alarm.lastAt!.seconds)).to.equal(1);
    expect((await raise('fire')).alarmId).not.to.equal(alarm.alarmId);
    expect(await services.devices(method.getAlarm, { alarmId: alarm.alarmId })).to.deep.equal(again);
    expect(await eventsOf(alarm.alarmId)).to.deep.equal(['raised']);
  });

  it('are one however many raise them at once', async () => {
    const raised = await Promise.all(Array.from({ length: 8 }, () => raise()));
    expect(new Set(raised.map(({ alarmId }) => alarmId)).size).to.equal(1);
    expect(Math.max(...raised.map(({ count }) => count))).to.equal(8);
  });

  it('go from active to acknowledged to cleared; repeated verbs change nothing', async () => {
    const { alarmId } = await raise();
    const acknowledged = await services.devices(method.acknowledgeAlarm, { alarmId });
    expect(acknowledged.status).to.equal(Alarm_Status.acknowledged);
    expect(acknowledged.acknowledgedAt).not.to.equal(undefined);
    services.clock.advance(1000);
    expect(await services.devices(method.acknowledgeAlarm, { alarmId })).to.deep.equal(acknowledged);
    const cleared = await services.devices(method.clearAlarm, { alarmId });
    expect(cleared.status).to.equal(Alarm_Status.cleared);
    services.clock.advance(1000);
    expect(await services.devices(method.clearAlarm, { alarmId })).to.deep.equal(cleared);
    expect(await refusalOf(services.devices(method.acknowledgeAlarm, { alarmId }))).to.match(/^FAILED_PRECONDITION/);
    expect(await eventsOf(alarmId)).to.deep.equal(['raised', 'cleared']);
    // A cleared alarm is over: the same fault again is another one.
    expect((await raise()).alarmId).not.to.equal(alarmId);
  });

  it('are changed and deleted', async () => {
    const { alarmId } = await raise('leak', { details: { note: 'a' } });
    const update = (fields: object, paths: string[]) =>
      services.devices(method.updateAlarm, { alarmId, ...fields, updateMask: { paths } });
    expect(await update({ severity: Alarm_Severity.warning }, ['severity'])).to.include({
      severity: Alarm_Severity.warning,
    });
    expect((await update({}, ['details'])).details).to.deep.equal({});
    expect(await refusalOf(update({}, ['severity']))).to.match(/^INVALID_ARGUMENT severity is required/);
    expect(await refusalOf(update({}, ['status']))).to.match(/^INVALID_ARGUMENT update_mask/);
    await services.devices(method.deleteAlarm, { alarmId });
    expect(await refusalOf(services.devices(method.getAlarm, { alarmId }))).to.match(/^NOT_FOUND/);
    expect(await eventsOf(alarmId)).to.deep.equal(['raised', 'cleared']);
  });

  describe('are cleared before a device that has very many is locked to be deleted', () => {
    for (const [how, remove] of [
      ['by its id', () => services.devices(method.deleteDevice, { deviceId })],
      [
        'in bulk',
        () =>
          services.devices(method.changeDevices, {
            filter: { tag: ['many=alarms'] },
            action: Action.delete,
            expected: 1,
          }),
      ],
    ] as const) {
      it(how, async () => {
        const { database } = services.test;
        deviceId = await services.makeDevice({ tags: { many: 'alarms' } });
        await database.system((tx) =>
          tx.query(
            `INSERT INTO alarms (tenant_id, alarm_id, device_id, type, severity, status, count, first_at, last_at)
           SELECT 'acme', gen_random_uuid(), $1, 't' || n, 'minor', 'active', 1, now(), now() FROM generate_series(1, 2500) AS n`,
            [deviceId],
          ),
        );
        await remove();
        const { rows } = await database.system((tx) =>
          tx.query<{ status: string; alarms: number; together: number }>(
            `SELECT a.status, count(*)::int4 AS alarms, (count(*) FILTER (WHERE a.xmin = d.xmin))::int4 AS together
           FROM alarms a JOIN devices d USING (tenant_id, device_id) WHERE device_id = $1 GROUP BY a.status`,
            [deviceId],
          ),
        );
        expect(rows).to.deep.equal([{ status: 'cleared', alarms: 2500, together: 0 }]);
      });
    }
  });

  it('are listed by device, rule, severity and status, newest first, in pages', async () => {
    const one = await raise('a', { severity: Alarm_Severity.major });
    const two = await raise('b');
    const three = await raise('c', { severity: Alarm_Severity.major });
    await services.devices(method.clearAlarm, { alarmId: one.alarmId });
    const list = async (filter: object) => (await services.alarms({ deviceId, ...filter })).map(({ type }) => type);
    expect(await list({})).to.deep.equal(['c', 'b', 'a']);
    expect(await list({ severity: Alarm_Severity.major })).to.deep.equal(['c', 'a']);
    expect(await list({ severity: Alarm_Severity.major, status: Alarm_Status.active })).to.deep.equal(['c']);
    const page = await services.devices(method.listAlarms, { deviceId, pageSize: 2 });
    expect(page.alarms.map(({ alarmId }) => alarmId)).to.deep.equal([three.alarmId, two.alarmId]);
    const rest = await services.devices(method.listAlarms, { deviceId, pageSize: 2, pageToken: page.nextPageToken });
    expect(rest.alarms.map(({ alarmId }) => alarmId)).to.deep.equal([one.alarmId]);
    expect(rest.nextPageToken).to.equal('');
    const other = services.devices(method.listAlarms, { pageSize: 2, pageToken: page.nextPageToken });
    expect(await refusalOf(other)).to.match(/^INVALID_ARGUMENT page_token/);
    expect(await refusalOf(services.alarms({ deviceId: newId() }))).to.match(/^NOT_FOUND device_id/);
    expect(await refusalOf(services.alarms({ ruleId: newId() }))).to.match(/^NOT_FOUND rule_id/);
  });

  it('belong to one tenant', async () => {
    const { alarmId } = await raise();
    for (const call of [method.getAlarm, method.deleteAlarm, method.acknowledgeAlarm, method.clearAlarm]) {
      expect(await refusalOf(services.devices(call, { alarmId }, 'other'))).to.match(/^NOT_FOUND/);
    }
    expect(await services.alarms({}, 'other')).to.deep.equal([]);
    const foreign = services.devices(method.createAlarm, { deviceId, type: 'x' }, 'other');
    expect(await refusalOf(foreign)).to.match(/^NOT_FOUND device_id/);
  });

  it('are refused without a type or a device', async () => {
    expect(await refusalOf(raise(''))).to.match(/^INVALID_ARGUMENT type is required/);
    const nowhere = services.devices(method.createAlarm, { deviceId: 'x', type: 'x' });
    expect(await refusalOf(nowhere)).to.match(/^NOT_FOUND device_id/);
  });
});
