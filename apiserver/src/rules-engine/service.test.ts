import { createHmac } from 'node:crypto';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { createServer, type IncomingHttpHeaders, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { Alarm_Severity, Alarm_Status, DeviceRegistryService } from '@kellet/proto/es/kellet/v1/device_registry_pb';
import { type Rule_Action, RulesService } from '@kellet/proto/es/kellet/v1/rules_pb';
import { expect } from 'chai';
import { newId } from '../platform/ids.ts';
import { eventually } from '../platform/testing/eventually.ts';
import { refusalOf, TestRules } from './testing/test-rules.ts';

const { method } = RulesService;
const migration = new URL('../../migrations/0043_alarms_of_deleted_devices.sql', import.meta.url);
const registry = DeviceRegistryService.method;
const hot = (at: number, t = 31) => ({ at, numeric: { t } });
const cold = (at: number) => hot(at, 20);

describe('rules', () => {
  let rules: TestRules;
  let device: string;

  before(async () => {
    rules = await TestRules.start({ KELLET_WEBHOOK_HOSTS: '127.0.0.1' });
  });
  after(() => rules.stop());
  beforeEach(async () => {
    device = await rules.makeDevice({ name: 'roof', tags: { site: 'north' } });
  });
  afterEach(async () => {
    for (const { ruleId } of (await rules.rules(method.listRules, { pageSize: 500 })).rules) {
      await rules.rules(method.deleteRule, { ruleId });
    }
  });

  describe('their definitions', () => {
    it('are created with defaults, read, listed and deleted', async () => {
      const rule = await rules.makeRule({ name: 'too hot' });
      expect(rule).to.deep.include({ name: 'too hot', alarmType: 'too hot', enabled: true, matches: 0, lastError: '' });
      expect(rule.severity).to.equal(undefined);
      expect(await rules.getRule(rule.ruleId)).to.deep.equal(rule);
      const disabled = await rules.makeRule({ enabled: false });
      const list = async (enabled?: boolean) =>
        (await rules.rules(method.listRules, { enabled })).rules.map(({ ruleId }) => ruleId);
      expect(await list()).to.deep.equal([rule.ruleId, disabled.ruleId]);
      expect(await list(false)).to.deep.equal([disabled.ruleId]);
      await rules.rules(method.deleteRule, { ruleId: rule.ruleId });
      expect(await refusalOf(rules.getRule(rule.ruleId))).to.match(/^NOT_FOUND/);
      expect(await refusalOf(rules.rules(method.deleteRule, { ruleId: rule.ruleId }))).to.match(/^NOT_FOUND/);
      // The name is free again.
      await rules.makeRule({ name: 'too hot' });
    });

    it('are paged', async () => {
      for (let n = 0; n < 3; n += 1) await rules.makeRule({});
      const first = await rules.rules(method.listRules, { pageSize: 2 });
      const second = await rules.rules(method.listRules, { pageSize: 2, pageToken: first.nextPageToken });
      expect([first.rules.length, second.rules.length, second.nextPageToken]).to.deep.equal([2, 1, '']);
    });

    it('are changed field by field, enabled and disabled', async () => {
      const { ruleId } = await rules.makeRule({ cooldownSeconds: 5, severity: Alarm_Severity.major });
      const changed = await rules.rules(method.updateRule, {
        ruleId,
        forSeconds: 7,
        updateMask: { paths: ['for_seconds', 'severity'] },
      });
      expect(changed).to.include({ forSeconds: 7, cooldownSeconds: 5 });
      expect(changed.severity).to.equal(undefined);
      expect(await rules.rules(method.disableRule, { ruleId })).to.include({ enabled: false });
      expect(await rules.rules(method.disableRule, { ruleId })).to.include({ enabled: false });
      expect(await rules.rules(method.enableRule, { ruleId })).to.include({ enabled: true });
    });

    const invalid: [string, Parameters<TestRules['makeRule']>[0], RegExp][] = [
      ['no name', { name: '' }, /^INVALID_ARGUMENT name is required/],
      [
        'a wrong expression',
        { expression: 'numeric.t >' },
        /^INVALID_ARGUMENT expression: line 1, column 12: a value is missing/,
      ],
      [
        'a wrong clear expression',
        { clearExpression: 'x' },
        /^INVALID_ARGUMENT clear_expression: line 1, column 1: there is no variable/,
      ],
      ['an unknown profile', { profileId: newId() }, /^NOT_FOUND profile_id/],
      ['a malformed profile', { profileId: 'x' }, /^NOT_FOUND profile_id/],
      ['an unknown group', { deviceGroupId: newId() }, /^NOT_FOUND device_group_id/],
      ['too long a time', { forSeconds: 4_000_000 }, /^INVALID_ARGUMENT for_seconds/],
      ['an empty action', { actions: [{}] }, /^INVALID_ARGUMENT actions\[0\] must have webhook or rpc/],
      [
        'an action without a method',
        { actions: [{ action: { case: 'rpc', value: {} } }] },
        /^INVALID_ARGUMENT actions\[0\]\.rpc\.method/,
      ],
      [
        'a webhook without TLS',
        { actions: [{ action: { case: 'webhook', value: { url: 'http://example.org/' } } }] },
        /^INVALID_ARGUMENT actions\[0\]\.webhook\.url must be an https URL/,
      ],
      [
        'a webhook inside the network',
        { actions: [{ action: { case: 'webhook', value: { url: 'https://10.0.0.1/' } } }] },
        /^INVALID_ARGUMENT actions\[0\]\.webhook\.url leads to no address/,
      ],
    ];
    for (const [name, request, message] of invalid) {
      it(`are refused with ${name}`, async () => {
        expect(await refusalOf(rules.makeRule(request))).to.match(message);
      });
    }

    it('have unique names', async () => {
      await rules.makeRule({ name: 'twice' });
      expect(await refusalOf(rules.makeRule({ name: 'twice' }))).to.match(/^ALREADY_EXISTS a rule named "twice"/);
      const { ruleId } = await rules.makeRule({});
      const rename = rules.rules(method.updateRule, { ruleId, name: 'twice', updateMask: { paths: ['name'] } });
      expect(await refusalOf(rename)).to.match(/^ALREADY_EXISTS/);
    });

    it('command devices only for authors who may', async () => {
      const request = {
        name: 'x',
        expression: 'true',
        actions: [{ action: { case: 'rpc', value: { method: 'm' } } }],
      } as const;
      const create = rules.rules(method.createRule, { ...request, actions: [...request.actions] }, 'acme', [
        'rules:write',
      ]);
      expect(await refusalOf(create)).to.match(/^PERMISSION_DENIED actions: the scope rpc:write/);
    });

    it('that command devices are changed and enabled only by authors who may, and disabled by others', async () => {
      const actions = [{ action: { case: 'rpc', value: { method: 'm' } } }] as const;
      const { ruleId } = await rules.makeRule({ expression: 'false', actions: [...actions], enabled: false });
      const update = (changes: { expression?: string; enabled?: boolean }) =>
        rules.rules(method.updateRule, { ruleId, ...changes, updateMask: { paths: Object.keys(changes) } }, 'acme', [
          'rules:write',
        ]);
      const refused = /^PERMISSION_DENIED actions: the scope rpc:write/;
      expect(await refusalOf(update({ expression: 'true' }))).to.match(refused);
      expect(await refusalOf(update({ enabled: true }))).to.match(refused);
      expect(await refusalOf(update({ enabled: false, expression: 'true' }))).to.match(refused);
      expect(await refusalOf(rules.rules(method.enableRule, { ruleId }, 'acme', ['rules:write']))).to.match(refused);
      const { expression, enabled } = await rules.getRule(ruleId);
      expect({ expression, enabled }).to.deep.equal({ expression: 'false', enabled: false });
      await rules.rules(method.enableRule, { ruleId });
      expect((await update({ enabled: false })).enabled).to.equal(false);
      await rules.rules(method.disableRule, { ruleId }, 'acme', ['rules:write']);
    });

    it('are changed and enabled only by authors who may read the points of all devices', async () => {
      const fields = { name: newId(), expression: 'true', enabled: false };
      const { ruleId } = await rules.makeRule(fields);
      const { groupId } = await rules.devices(registry.createDeviceGroup, { name: 'halls' });
      const limited = [{ scopes: ['devices:read', 'telemetry:read'], deviceGroupIds: [groupId] }];
      const refused = /^PERMISSION_DENIED a rule reads the points of all devices: (devices|telemetry):read/;
      for (const [scope, grants] of [
        ['rules:write', []],
        ['rules:write', limited],
        ['devices:read', limited],
        ['telemetry:read', limited],
      ] as const) {
        const by: [string[], typeof limited] = [['rules:write', scope], [...grants]];
        const update = { ruleId, expression: 'false', updateMask: { paths: ['expression'] } };
        const made = rules.rules(method.createRule, { ...fields, name: newId() }, 'acme', ...by);
        expect(await refusalOf(made), scope).to.match(refused);
        expect(await refusalOf(rules.rules(method.updateRule, update, 'acme', ...by))).to.match(refused);
        expect(await refusalOf(rules.rules(method.enableRule, { ruleId }, 'acme', ...by))).to.match(refused);
      }
      const reading = ['rules:write', 'devices:read', 'telemetry:read'];
      expect((await rules.rules(method.enableRule, { ruleId }, 'acme', reading)).enabled).to.equal(true);
      await rules.rules(method.deleteRule, { ruleId }, 'acme', ['rules:write']);
    });

    it('belong to one tenant', async () => {
      const { ruleId } = await rules.makeRule({});
      for (const call of [method.getRule, method.deleteRule, method.enableRule, method.disableRule]) {
        expect(await refusalOf(rules.rules(call, { ruleId }, 'other'))).to.match(/^NOT_FOUND/);
      }
      const update = rules.rules(method.updateRule, { ruleId, name: 'n', updateMask: { paths: ['name'] } }, 'other');
      expect(await refusalOf(update)).to.match(/^NOT_FOUND/);
      expect((await rules.rules(method.listRules, {}, 'other')).rules).to.deep.equal([]);
      await rules
        .makeRule({ name: (await rules.getRule(ruleId)).name }, 'other')
        .then(({ ruleId: id }) => rules.rules(method.deleteRule, { ruleId: id }, 'other'));
    });

    it('send no command that Kellet itself sends', async () => {
      const { ruleId } = await rules.makeRule({});
      for (const reserved of ['ota_start', 'attributes_changed']) {
        const actions = [{ action: { case: 'rpc', value: { method: reserved } } as const }];
        const refused = `INVALID_ARGUMENT actions[0].rpc.method must not be ${reserved}, which only Kellet itself sends`;
        expect(await refusalOf(rules.makeRule({ actions }))).to.equal(refused);
        const updateMask = { paths: ['actions'] };
        expect(await refusalOf(rules.rules(method.updateRule, { ruleId, actions, updateMask }))).to.equal(refused);
      }
      expect((await rules.getRule(ruleId)).actions).to.deep.equal([]);
    });

    it('give up an action of an earlier release that sends one', async () => {
      const actions = [{ action: { case: 'rpc', value: { method: 'cool' } } as const }];
      const { ruleId } = await rules.makeRule({ actions });
      await rules.query(`UPDATE rules SET actions = jsonb_set(actions, '{0,method}', '"ota_start"')`);
      await rules.query('UPDATE rule_revisions SET revision = revision + 1');
      await rules.send(device, [hot(0)]);
      await eventually(async () => (await rules.getRule(ruleId)).lastError.includes('only Kellet itself sends'));
      expect(await rules.query('SELECT FROM device_commands WHERE device_id = $1', [device])).to.deep.equal([]);
      await rules.query('DELETE FROM rule_actions');
    });

    it('never show the secret of a webhook, which is stored encrypted and kept by an update without one', async () => {
      const webhook = { url: 'http://127.0.0.1:9/x', secret: 'very secret' };
      const rule = await rules.makeRule({ actions: [{ action: { case: 'webhook', value: webhook } }] });
      expect(rule.actions[0]!.action).to.deep.include({ case: 'webhook' });
      expect(JSON.stringify(rule.actions)).not.to.contain('very secret');
      const stored = () =>
        rules.query<{ actions: { secret: string }[] }>('SELECT actions FROM rules WHERE rule_id = $1', [rule.ruleId]);
      const [before] = await stored();
      expect(JSON.stringify(before)).not.to.contain('very secret');
      await rules.rules(method.updateRule, {
        ruleId: rule.ruleId,
        actions: rule.actions,
        updateMask: { paths: ['actions'] },
      });
      expect(await stored()).to.deep.equal([before]);
    });

    it('show the URL of a webhook to those who write rules, and where it leads to those who read them', async () => {
      const url = 'http://127.0.0.1:9/services/T0/secret?token=1';
      const { ruleId } = await rules.makeRule({ actions: [{ action: { case: 'webhook', value: { url } } }] });
      const urlsOf = ({ actions }: { actions: readonly Rule_Action[] }): unknown[] =>
        actions.map(({ action }) => action.case === 'webhook' && action.value.url);
      for (const [scopes, shown] of [
        [['rules:read'], 'http://127.0.0.1:9'],
        [['rules:read', 'rules:write'], url],
      ] as const) {
        const one = await rules.rules(method.getRule, { ruleId }, 'acme', [...scopes]);
        const list = await rules.rules(method.listRules, { pageSize: 100 }, 'acme', [...scopes]);
        const listed = list.rules.find((rule) => rule.ruleId === ruleId)!;
        expect([urlsOf(one), urlsOf(listed)]).to.deep.equal([[shown], [shown]]);
      }
    });

    it('can be validated and tried', async () => {
      expect(await rules.rules(method.validateRule, { expression: 'numeric.t > 3' })).to.include({ valid: true });
      const { valid, errors } = await rules.rules(method.validateRule, { expression: 'numeric.t >\n "3"' });
      expect(valid).to.equal(false);
      expect(errors[0]).to.include({ line: 1, column: 11 });
      const point = { deviceId: device, timestamp: '2026-01-01T00:00:10Z', numericValues: { t: 5 } };
      const attempt = (expression: string, given: object = {}) =>
        rules.rules(method.testRule, { expression, point, ...given });
      expect(await attempt('numeric.t > 3 && device.name == "roof" && device.tags.site == "north"')).to.include({
        matched: true,
        error: '',
      });
      expect(await attempt('numeric.t < 3')).to.include({ matched: false, error: '' });
      expect((await attempt('numeric.x < 3')).error).to.match(/^line 1, column \d+: .*x/);
      const previous = { timestamp: '2026-01-01T00:00:00Z', numericValues: { t: 1 } };
      expect(
        await attempt('numeric.t - previous.numeric.t > 3.0 && timestamp - previous.timestamp == duration("10s")', {
          previous,
        }),
      ).to.include({ matched: true });
      const untimed = { numericValues: { t: 5 } };
      expect(
        await attempt('timestamp > timestamp("2026-01-01T00:00:00Z")', { point: untimed }),
        'a point without a timestamp is of now',
      ).to.include({ matched: true });
      expect(await refusalOf(attempt('numeric.t >'))).to.match(/^INVALID_ARGUMENT expression: line 1/);
      expect(await refusalOf(attempt('true', { point: { ...point, deviceId: newId() } }))).to.match(
        /^NOT_FOUND point\.device_id/,
      );
      expect(await refusalOf(attempt('true', { point: { ...point, timestamp: 'now' } }))).to.match(
        /^INVALID_ARGUMENT point\.timestamp/,
      );
      expect(await refusalOf(attempt('true', { point: undefined }))).to.match(/^INVALID_ARGUMENT point is required/);
      expect(await rules.alarms({ deviceId: device })).to.deep.equal([]);
    });

    it('are tried only on values that a point can have', async () => {
      const names = (count: number) => Array.from({ length: count }, (_, index) => `k${index}`);
      const refusal = (given: object) =>
        refusalOf(rules.rules(method.testRule, { expression: 'true', point: { numericValues: { t: 5 } }, ...given }));
      const many = { numericValues: Object.fromEntries(names(257).map((name) => [name, 1])) };
      const long = { stringValues: { digits: '9'.repeat(4097) } };
      expect(await refusal({ point: many })).to.match(/^INVALID_ARGUMENT point: more than 256 values/);
      expect(await refusal({ point: long })).to.match(/^INVALID_ARGUMENT point: .*digits.* longer than 4096 bytes/);
      expect(await refusal({ previous: many })).to.match(/^INVALID_ARGUMENT previous: more than 256 values/);
      const ofService = { stringValues: { 'kellet.ota.version': '1.0.0' } };
      expect(await refusal({ point: ofService }), 'points of the service reach rules too').to.equal('OK');
    });

    it('are tried and checked one at a time, so that many that take long let others run', async () => {
      const numericValues = Object.fromEntries(Array.from({ length: 256 }, (_, index) => [`n${index}`, index]));
      const expression = `numeric.exists(k, ${Array(40).fill('int(1e300) == 1').join(' || ')})`;
      // Of this process alone: the machine may be busy.
      const processorMilliseconds = () => process.cpuUsage().user / 1000;
      let [longest, last] = [0, processorMilliseconds()];
      const beat = setInterval(() => {
        longest = Math.max(longest, processorMilliseconds() - last);
        last = processorMilliseconds();
      }, 1);
      try {
        const calls = Array.from({ length: 80 }, (_, index) =>
          refusalOf(
            index % 2 === 0
              ? rules.rules(method.testRule, { expression, point: { numericValues } })
              : rules.rules(method.validateRule, { expression }),
          ),
        );
        const outcomes = await Promise.all(calls);
        const refused = outcomes.filter((outcome) => outcome !== 'OK');
        expect(refused).to.deep.equal(
          Array(15).fill('RESOURCE_EXHAUSTED too many expressions are being checked or tried'),
        );
      } finally {
        clearInterval(beat);
      }
      expect(longest, 'milliseconds without a turn of others').to.be.below(500);
    });

    it('keep neither a connection nor the rules of their tenant while their expression waits to be checked', async () => {
      const { ruleId } = await rules.makeRule({});
      const expression = Array.from({ length: 40 }, (_, n) => `string.a.matches("(a|b|c${n}){20}")`).join(' || ');
      const checked = Array.from({ length: 30 }, () => rules.rules(method.validateRule, { expression }));
      let isChanged = false;
      const change = rules
        .rules(method.updateRule, { ruleId, expression, updateMask: { paths: ['expression'] } })
        .finally(() => (isChanged = true));
      await checked[1];
      await rules.test.database.tenant('acme', (tx) =>
        tx.query(`SELECT FROM rule_revisions WHERE tenant_id = 'acme' FOR UPDATE NOWAIT`),
      );
      expect(isChanged).to.equal(false);
      expect((await change).expression).to.equal(expression);
      await Promise.all(checked);
    });

    it('are tried only on devices that the caller may read', async () => {
      const { groupId } = await rules.devices(registry.createDeviceGroup, { name: 'roofs' });
      const inGroup = await rules.makeDevice({ name: 'in the group', groupIds: [groupId] });
      const attempt = (deviceId: string, scopes: string[], groups: string[] = []) =>
        rules.rules(
          method.testRule,
          {
            expression: 'device.name.startsWith("in the")',
            point: { deviceId, timestamp: '2026-01-01T00:00:10Z', numericValues: { t: 5 } },
          },
          'acme',
          scopes,
          groups.map((id) => ({ scopes: ['devices:read'], deviceGroupIds: [id] })),
        );
      expect(await attempt(inGroup, ['rules:read', 'devices:read'])).to.include({ matched: true });
      expect(await refusalOf(attempt(inGroup, ['rules:read']))).to.match(
        /^PERMISSION_DENIED point\.device_id: the scope devices:read/,
      );
      expect(await attempt(inGroup, ['rules:read'], [groupId])).to.include({ matched: true });
      expect(await refusalOf(attempt(device, ['rules:read'], [groupId]))).to.match(/^NOT_FOUND point\.device_id/);
      expect(await refusalOf(attempt(newId(), ['rules:read'], [groupId]))).to.match(/^NOT_FOUND point\.device_id/);
      expect(await attempt('', ['rules:read'])).to.include({ matched: false, error: '' });
    });
  });

  describe('their evaluation', () => {
    it('raises an alarm, counts, and clears it, with an event of each', async () => {
      const rule = await rules.makeRule({ severity: Alarm_Severity.major, alarmType: 'overheat' });
      await rules.send(device, [cold(0), hot(1), hot(2), hot(3)]);
      const [alarm, ...others] = await rules.alarms({ ruleId: rule.ruleId });
      expect(others).to.deep.equal([]);
      expect(alarm).to.deep.include({
        ...{ deviceId: device, ruleId: rule.ruleId, type: 'overheat', count: 3 },
        ...{ severity: Alarm_Severity.major, status: Alarm_Status.active },
      });
      expect(Number(alarm!.lastAt!.seconds - alarm!.firstAt!.seconds)).to.equal(2);
      expect(alarm!.details).to.deep.include({ rule: rule.name, numeric_values: { t: 31 } });
      await rules.send(device, [cold(4)]);
      expect(await rules.alarms({ ruleId: rule.ruleId, status: Alarm_Status.active })).to.deep.equal([]);
      expect((await rules.alarms({ ruleId: rule.ruleId }))[0]).to.include({ status: Alarm_Status.cleared, count: 3 });
      expect(await rules.getRule(rule.ruleId)).to.include({ matches: 3, lastError: '' });
      const events = (await rules.events()).filter(({ subject }) => subject.endsWith(alarm!.alarmId));
      expect(events.map(({ subject }) => subject)).to.deep.equal([
        `alarm.raised.acme.${alarm!.alarmId}`,
        `alarm.cleared.acme.${alarm!.alarmId}`,
      ]);
      expect(events[0]!.data).to.deep.include({
        alarm_id: alarm!.alarmId,
        status: 'active',
        severity: 'major',
        type: 'overheat',
      });
      expect(events[1]!.data).to.deep.include({ status: 'cleared', count: 3 });
    });

    it('carries state across batches: previous, time held and the open alarm', async () => {
      const held = await rules.makeRule({ forSeconds: 10 });
      const jump = await rules.makeRule({ expression: 'numeric.t - previous.numeric.t > 5.0' });
      await rules.send(device, [hot(0)]);
      await rules.send(device, [hot(9, 37)]);
      expect(await rules.alarms({ ruleId: held.ruleId })).to.deep.equal([]);
      expect(await rules.alarms({ ruleId: jump.ruleId })).to.have.length(1);
      await rules.send(device, [hot(10)]);
      await rules.send(device, [hot(20)]);
      expect((await rules.alarms({ ruleId: held.ruleId }))[0]).to.include({ count: 2 });
    });

    it('forgets the time held when the expression changes', async () => {
      const { ruleId } = await rules.makeRule({ forSeconds: 10 });
      await rules.send(device, [hot(0)]);
      await rules.rules(method.updateRule, {
        ruleId,
        expression: 'numeric.t > 25',
        updateMask: { paths: ['expression'] },
      });
      await rules.send(device, [hot(11)]);
      expect(await rules.alarms({ ruleId })).to.deep.equal([]);
    });

    it('raises several alarms within one batch when the fault comes and goes', async () => {
      const { ruleId } = await rules.makeRule({});
      await rules.send(device, [hot(0), cold(1), hot(2), cold(3), hot(4)]);
      const statuses = (await rules.alarms({ ruleId })).map(({ status }) => status);
      expect(statuses).to.deep.equal([Alarm_Status.active, Alarm_Status.cleared, Alarm_Status.cleared]);
    });

    it('clears only by the clear expression', async () => {
      const { ruleId } = await rules.makeRule({ clearExpression: 'numeric.t < 25' });
      await rules.send(device, [hot(0), hot(1, 28)]);
      expect((await rules.alarms({ ruleId }))[0]!.status).to.equal(Alarm_Status.active);
      await rules.send(device, [cold(2)]);
      expect((await rules.alarms({ ruleId }))[0]!.status).to.equal(Alarm_Status.cleared);
    });

    it('keeps an acknowledged alarm, and raises a new one after it was cleared by hand', async () => {
      const { ruleId } = await rules.makeRule({});
      await rules.send(device, [hot(0)]);
      const { alarmId } = (await rules.alarms({ ruleId }))[0]!;
      await rules.devices(registry.acknowledgeAlarm, { alarmId });
      await rules.send(device, [hot(1)]);
      expect((await rules.alarms({ ruleId }))[0]).to.include({ count: 2, status: Alarm_Status.acknowledged });
      await rules.devices(registry.clearAlarm, { alarmId });
      await rules.send(device, [hot(2)]);
      expect((await rules.alarms({ ruleId })).map(({ count }) => count)).to.deep.equal([1, 2]);
    });

    it('shows the error of the last evaluation, and changes no alarm by it', async () => {
      const { ruleId } = await rules.makeRule({});
      await rules.send(device, [hot(0), { at: 1, numeric: { other: 1 } }]);
      expect((await rules.getRule(ruleId)).lastError).to.match(/^line 1, column \d+: .*\bt\b/);
      expect((await rules.alarms({ ruleId }))[0]!.status).to.equal(Alarm_Status.active);
      await rules.send(device, [cold(2)]);
      expect((await rules.getRule(ruleId)).lastError).to.equal('');
    });

    it('leaves out late points and repeated ones', async () => {
      const { ruleId } = await rules.makeRule({});
      await rules.send(device, [hot(10)]);
      await rules.send(device, [hot(10), cold(5), hot(10, 32)]);
      expect((await rules.alarms({ ruleId }))[0]).to.include({ count: 2, status: Alarm_Status.active });
    });

    it('applies to the devices of the profile and group, and of the tenant, that the rule names', async () => {
      const group = await rules.devices(registry.createDeviceGroup, { name: newId() });
      const member = await rules.makeDevice({ groupIds: [group.groupId] });
      const foreign = await rules.makeDevice({}, 'other');
      const { ruleId } = await rules.makeRule({ deviceGroupId: group.groupId });
      for (const id of [device, member]) await rules.send(id, [hot(0)]);
      await rules.send(foreign, [hot(0)], 'other');
      expect((await rules.alarms({ ruleId })).map(({ deviceId }) => deviceId)).to.deep.equal([member]);
      expect(await rules.alarms({}, 'other')).to.deep.equal([]);
    });

    it('ends when the rule is disabled or deleted; alarms remain', async () => {
      const { ruleId } = await rules.makeRule({});
      await rules.send(device, [hot(0)]);
      await rules.rules(method.disableRule, { ruleId });
      await rules.send(device, [hot(1), cold(2)]);
      await rules.rules(method.deleteRule, { ruleId });
      await rules.send(device, [hot(3)]);
      expect(await rules.alarms({ ruleId })).to.have.length(1);
      expect((await rules.alarms({ ruleId }))[0]).to.include({ count: 1, status: Alarm_Status.active });
    });

    it('clears the open alarms of a device that is deleted, each once', async () => {
      const { ruleId } = await rules.makeRule({});
      const kept = await rules.makeDevice();
      for (const each of [device, kept]) await rules.send(each, [hot(0)]);
      const byHand = await rules.devices(registry.createAlarm, { deviceId: device, type: 'smoke' });
      const closed = await rules.devices(registry.createAlarm, { deviceId: device, type: 'dust' });
      await rules.devices(registry.clearAlarm, { alarmId: closed.alarmId });
      await rules.devices(registry.acknowledgeAlarm, { alarmId: byHand.alarmId });
      await rules.devices(registry.deleteDevice, { deviceId: device });
      const alarms = await rules.alarms({ deviceId: device });
      expect(alarms.map(({ status }) => status)).to.deep.equal(Array(3).fill(Alarm_Status.cleared));
      expect((await rules.alarms({ deviceId: kept })).map(({ status }) => status)).to.deep.equal([Alarm_Status.active]);
      const raised = alarms.find((alarm) => alarm.ruleId === ruleId)!;
      const cleared = (await rules.events()).filter(({ subject }) => subject.startsWith('alarm.cleared.'));
      for (const { alarmId } of [raised, byHand, closed]) {
        const own = cleared.filter(({ subject }) => subject.endsWith(alarmId));
        expect(own.map(({ data }) => data['status'])).to.deep.equal(['cleared']);
      }
      await rules.send(device, [hot(1)]);
      expect(await rules.alarms({ deviceId: device, status: Alarm_Status.active })).to.deep.equal([]);
    });

    it('are cleared by the upgrade if an earlier release has left them to a deleted device', async () => {
      const { alarmId } = await rules.devices(registry.createAlarm, { deviceId: device, type: 'smoke' });
      const other = await rules.devices(registry.createAlarm, { deviceId: await rules.makeDevice(), type: 'smoke' });
      await rules.query('UPDATE devices SET deleted_at = now() WHERE device_id = $1', [device]);
      await rules.query(await readFile(migration, 'utf8'));
      expect(await rules.devices(registry.getAlarm, { alarmId })).to.include({ status: Alarm_Status.cleared });
      expect(await rules.devices(registry.getAlarm, { alarmId: other.alarmId })).to.include({
        status: Alarm_Status.active,
      });
    });

    it('skips points of devices that have been deleted', async () => {
      const { ruleId } = await rules.makeRule({});
      await rules.devices(registry.deleteDevice, { deviceId: device });
      await rules.send(device, [hot(0)]);
      expect(await rules.alarms({ ruleId })).to.deep.equal([]);
    });
  });

  describe('their actions', () => {
    let server: Server;
    let url: string;
    let received: { headers: IncomingHttpHeaders; body: string }[];
    let status: number;

    beforeEach(async () => {
      received = [];
      status = 204;
      server = createServer((request, response) => {
        const parts: Buffer[] = [];
        request.on('data', (part: Buffer) => parts.push(part));
        request.on('end', () => {
          received.push({ headers: request.headers, body: Buffer.concat(parts).toString() });
          response.writeHead(status, { location: 'http://127.0.0.1:1/' }).end('response');
        });
      });
      server.listen(0, '127.0.0.1');
      await once(server, 'listening');
      url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/hook?token=abc`;
    });
    afterEach(async () => {
      server.closeAllConnections();
      server.close();
      await once(server, 'close');
      await rules.query('DELETE FROM rule_actions');
    });

    const webhook = (secret = 's3cret') => ({ action: { case: 'webhook', value: { url, secret } } }) as const;
    /** Makes actions due that wait for their next attempt. */
    const hurry = () =>
      rules.query(`UPDATE rule_actions SET next_at = now() - interval '1 second' WHERE dead_at IS NULL`);

    it('call a webhook with a signed event, limited by the cooldown', async () => {
      const { ruleId } = await rules.makeRule({ actions: [webhook()], cooldownSeconds: 60 });
      await rules.send(device, [hot(0), hot(1), hot(2)]);
      await eventually(() => received.length === 1);
      const [{ headers, body }] = received as [(typeof received)[number]];
      const signature = createHmac('sha256', 's3cret').update(body).digest('hex');
      expect(headers['x-kellet-signature']).to.equal(`sha256=${signature}`);
      const [alarm] = await rules.alarms({ ruleId });
      const event = JSON.parse(body) as Record<string, unknown> & { data: object };
      expect(event).to.include({ specversion: '1.0', tenantid: 'acme', type: `alarm.raised.acme.${alarm!.alarmId}` });
      expect(event.data).to.deep.include({ alarm_id: alarm!.alarmId, device_id: device, count: 1 });
      expect(alarm!.count).to.equal(3);
      rules.clock.advance(60_000);
      await rules.send(device, [hot(3)]);
      await eventually(() => received.length === 2);
      await eventually(async () => (await rules.query('SELECT FROM rule_actions')).length === 0);
    });

    it('are retried with growing delay, shown on the rule, and given up after ten attempts', async () => {
      status = 302;
      const { ruleId } = await rules.makeRule({ actions: [webhook()] });
      await rules.send(device, [hot(0)]);
      const attempts = async () =>
        (
          await rules.query<{ attempts: number; delay: number }>(
            'SELECT attempts, extract(epoch FROM next_at - now())::float8 AS delay FROM rule_actions WHERE dead_at IS NULL AND error <> $$$$',
          )
        )[0];
      await eventually(async () => (await attempts())?.attempts === 1 && (await attempts())!.delay < 11);
      const host = new URL(url).host;
      expect((await rules.getRule(ruleId)).lastError).to.equal(`webhook ${host}: the server responded with 302`);
      for (let attempt = 2; attempt <= 10; attempt += 1) {
        await hurry();
        await eventually(() => received.length === attempt);
        if (attempt === 10) continue;
        // A claimed action comes back after 30 s, should its process die; a failed one after its delay.
        const isSettled = ({ attempts: count, delay }: { attempts: number; delay: number }) =>
          count === attempt && Math.abs(delay - 10 * 2 ** (attempt - 1)) < 5;
        await eventually(async () => isSettled((await attempts()) ?? { attempts: 0, delay: 0 }));
      }
      await eventually(
        async () => (await rules.query('SELECT FROM rule_actions WHERE dead_at IS NOT NULL')).length === 1,
      );
      await eventually(async () => (await rules.getRule(ruleId)).lastError.endsWith('given up after 10 attempts'));
      expect((await rules.getRule(ruleId)).lastError).not.to.contain('token');
    });

    it('succeed later, which removes the error from the rule', async () => {
      status = 500;
      const { ruleId } = await rules.makeRule({ actions: [webhook()] });
      await rules.send(device, [hot(0)]);
      await eventually(async () => (await rules.getRule(ruleId)).lastError !== '');
      status = 200;
      await hurry();
      await eventually(async () => (await rules.getRule(ruleId)).lastError === '');
      expect(new Set(received.map(({ body }) => (JSON.parse(body) as { id: string }).id)).size).to.equal(1);
    });

    it('are dropped when they are due if their rule has been disabled or deleted', async () => {
      status = 500;
      const made = [await rules.makeRule({ actions: [webhook()] }), await rules.makeRule({ actions: [webhook()] })];
      const [disabled, deleted] = made as [(typeof made)[number], (typeof made)[number]];
      const other = await rules.makeRule({ actions: [webhook()] });
      await rules.send(device, [hot(0)]);
      await eventually(async () => {
        const errors = await Promise.all(
          [...made, other].map(async ({ ruleId }) => (await rules.getRule(ruleId)).lastError),
        );
        return errors.every((error) => error !== '');
      });
      expect(received).to.have.length(3);
      await rules.rules(method.updateRule, {
        ...{ ruleId: disabled.ruleId, enabled: false },
        updateMask: { paths: ['enabled'] },
      });
      await rules.rules(method.deleteRule, { ruleId: deleted.ruleId });
      status = 200;
      await hurry();
      await eventually(async () => (await rules.query('SELECT FROM rule_actions')).length === 0);
      expect(received).to.have.length(4);
      expect((await rules.getRule(other.ruleId)).lastError).to.equal('');
    });

    it('are dropped when they are due if they have been taken out of their rule, unless only the secret is another', async () => {
      status = 500;
      const rpc = (now: boolean) => ({ action: { case: 'rpc', value: { method: 'valve', params: { now } } } }) as const;
      const { ruleId: changedId } = await rules.makeRule({ actions: [webhook()] });
      const { ruleId: keptId } = await rules.makeRule({ actions: [rpc(true), webhook()] });
      await rules.send(device, [hot(0)]);
      await eventually(async () => {
        const made = await Promise.all([changedId, keptId].map((ruleId) => rules.getRule(ruleId)));
        return made.every(({ lastError }) => lastError !== '');
      });
      const replace = (ruleId: string, action: ReturnType<typeof rpc> | ReturnType<typeof webhook>) =>
        rules.rules(method.updateRule, { ruleId, actions: [action], updateMask: { paths: ['actions'] } });
      await replace(changedId, rpc(false));
      await replace(keptId, webhook('another'));
      // On a busy machine they have been tried again meanwhile.
      const tried = received.length;
      status = 204;
      await hurry();
      await eventually(async () => (await rules.query('SELECT FROM rule_actions')).length === 0);
      expect(received.length - tried).to.equal(1);
    });

    it('never reach an address that is not allowed', async () => {
      const { ruleId } = await rules.makeRule({ actions: [webhook()] });
      // As if the list of hosts had been shortened since.
      await rules.query(`UPDATE rules SET actions = jsonb_set(actions, '{0,url}', '"http://169.254.169.254/"')`);
      await rules.query('UPDATE rule_revisions SET revision = revision + 1');
      await rules.send(device, [hot(0)]);
      await eventually(async () => (await rules.getRule(ruleId)).lastError.includes('the URL must be an https URL'));
      expect(received).to.deep.equal([]);
    });

    it('send a command to the device, once', async () => {
      const action = { action: { case: 'rpc', value: { method: 'valve_close', params: { now: true } } } } as const;
      await rules.makeRule({ actions: [action] });
      await rules.send(device, [hot(0)]);
      const commands = () =>
        rules.query<object>('SELECT method, params, persistent FROM device_commands WHERE device_id = $1', [device]);
      await eventually(async () => (await commands()).length === 1);
      expect(await commands()).to.deep.equal([{ method: 'valve_close', params: { now: true }, persistent: false }]);
    });

    it('wait while their tenant is suspended, without delaying others, and are never taken once it is deleted', async () => {
      const { ruleId } = await rules.makeRule({ actions: [webhook()] });
      const mark = (column: 'suspended_at' | 'deleted_at', value: 'now()' | 'NULL') =>
        rules.query(`UPDATE tenants SET ${column} = ${value} WHERE tenant_id = 'acme'`);
      await rules.query(
        `INSERT INTO tenants (tenant_id, name, namespace) VALUES ('busy', 'B', 'busy') ON CONFLICT DO NOTHING`,
      );
      /** Queues actions of both tenants; the one of the other tenant, without device, ends after those due before it. */
      const queueBoth = async () => {
        await rules.query(
          `INSERT INTO rule_actions (tenant_id, action_id, rule_id, device_id, action, event, next_at)
           SELECT 'acme', gen_random_uuid(), rule_id, $2, actions -> 0, '{}', now() - interval '1 minute'
           FROM rules WHERE rule_id = $1`,
          [ruleId, device],
        );
        await rules.query(
          `INSERT INTO rule_actions (tenant_id, action_id, rule_id, device_id, action, event)
           VALUES ('busy', gen_random_uuid(), $1, $2, '{"kind":"rpc","method":"m","params":{}}', '{}')`,
          [newId(), newId()],
        );
        await eventually(
          async () =>
            (await rules.query(`SELECT FROM rule_actions WHERE tenant_id = 'busy' AND dead_at IS NULL`)).length === 0,
        );
      };
      await mark('suspended_at', 'now()');
      await queueBoth();
      expect(received).to.have.length(0);
      await mark('suspended_at', 'NULL');
      await eventually(() => received.length === 1);
      await mark('deleted_at', 'now()');
      await queueBoth();
      expect(received).to.have.length(1);
      await rules.query('DELETE FROM rule_actions');
      await mark('deleted_at', 'NULL');
    });

    it('do not wait for those of another tenant that are locked, which are taken later', async () => {
      const { ruleId } = await rules.makeRule({ actions: [webhook()], expression: 'false' });
      const locked = newId();
      // Due once it is locked.
      await rules.query(
        `INSERT INTO rule_actions (tenant_id, action_id, rule_id, device_id, action, event, next_at)
         SELECT tenant_id, $2, rule_id, $3, actions -> 0, '{}', now() + interval '1 second' FROM rules WHERE rule_id = $1`,
        [ruleId, locked, device],
      );
      await rules.test.database.system(async (tx) => {
        await tx.query('SELECT FROM rule_actions WHERE action_id = $1 FOR UPDATE', [locked]);
        await eventually(
          async () => (await rules.query('SELECT FROM rule_actions WHERE next_at <= now()')).length === 1,
        );
        await rules.query(
          `INSERT INTO rule_actions (tenant_id, action_id, rule_id, device_id, action, event)
           VALUES ('other', $1, $1, $1, '{"kind":"rpc","method":"m","params":{}}', '{}')`,
          [newId()],
        );
        const waiting = `SELECT FROM rule_actions WHERE tenant_id = 'other' AND dead_at IS NULL`;
        await eventually(async () => (await rules.query(waiting)).length === 0);
        expect(received).to.have.length(0);
      });
      await eventually(() => received.length === 1);
    });

    it('are given up at once for a device that was deleted', async () => {
      const action = { action: { case: 'rpc', value: { method: 'm' } } } as const;
      const { ruleId } = await rules.makeRule({ actions: [action] });
      await rules.test.database.system(async (tx) => {
        await tx.query('UPDATE devices SET deleted_at = now() WHERE device_id = $1', [device]);
        await tx.query(
          `INSERT INTO rule_actions (tenant_id, action_id, rule_id, device_id, action, event)
           VALUES ('acme', gen_random_uuid(), $1, $2, '{"kind":"rpc","method":"m","params":{}}', '{}')`,
          [ruleId, device],
        );
      });
      await eventually(async () => (await rules.getRule(ruleId)).lastError.includes('the device is deleted'));
    });

    it('are repeated when their process died with them', async () => {
      const action = { action: { case: 'rpc', value: { method: 'again' } } } as const;
      const { ruleId } = await rules.makeRule({ expression: 'false', actions: [action] });
      await rules.query(
        `INSERT INTO rule_actions (tenant_id, action_id, rule_id, device_id, action, event, attempts, next_at)
         VALUES ('acme', gen_random_uuid(), $1, $2, '{"kind":"rpc","method":"again","params":{}}', '{}', 1, now() - interval '1 second')`,
        [ruleId, device],
      );
      const sent = () => rules.query(`SELECT FROM device_commands WHERE method = 'again'`);
      await eventually(async () => (await sent()).length === 1);
    });
  });
});
