// What the rules of a tenant may take, against a real database.
import { RulesService } from '@kellet/proto/es/kellet/v1/rules_pb';
import { expect } from 'chai';
import { createProfileReader } from '../device-link/provisioning/profiles.ts';
import { clearAlarmsOf } from '../device-registry/alarms/alarm-store.ts';
import { DeviceDirectory } from '../device-registry/devices/directory.ts';
import { createLogger } from '../platform/observability/logger.ts';
import { createMetrics } from '../platform/observability/metrics.ts';
import { countBytesRead } from '../platform/testing/bytes-read.ts';
import { type ClaimedAction, failAction } from './actions/action-queue.ts';
import { CompiledRules } from './evaluation/compiled-rules.ts';
import { RuleEngine } from './evaluation/engine.ts';
import { feed, refusalOf, TestRules } from './testing/test-rules.ts';

const mebibyte = 1024 * 1024;

/** An expression of a kilobyte. */
const long = `device.name == "${'a'.repeat(1007)}"`;

describe('the limits of rules', function () {
  this.timeout(60_000);
  let rules: TestRules;
  beforeEach(async () => {
    rules = await TestRules.start({}, { evaluates: false });
  });
  afterEach(() => rules.stop());

  const evaluate = async (database = rules.test.database) => {
    const parts = { database, clock: rules.clock, logger: createLogger('silent'), metrics: createMetrics() };
    const devices = new DeviceDirectory(database, createProfileReader(database));
    expect(await new RuleEngine({ ...parts, devices, queued: () => undefined }).evaluateTenant('acme')).to.equal(true);
  };
  const hot = (count: number) => Array.from({ length: count }, (_, at) => ({ at, numeric: { t: 31 } }));
  /** Ten commands of 64 KiB each. */
  const largeActions = Array.from({ length: 10 }, () => ({
    action: { case: 'rpc', value: { method: 'm', params: { text: 'x'.repeat(65_000) } } } as const,
  }));
  const waiting = async () =>
    (
      await rules.query<{ number: number; bytes: number }>(
        'SELECT count(*)::int4 AS number, coalesce(sum(bytes), 0)::float8 AS bytes FROM rule_actions WHERE dead_at IS NULL',
      )
    )[0]!;

  it('leave out actions of matches beyond 32 MiB in a batch, and say so', async () => {
    const { ruleId } = await rules.makeRule({ actions: largeActions });
    await feed(rules.test.database, 'acme', await rules.makeDevice(), hot(100));
    await evaluate();
    const { number, bytes } = await waiting();
    expect(bytes).to.be.within(30 * mebibyte, 32 * mebibyte);
    expect(number % 10).to.equal(0);
    const { matches, lastError } = await rules.getRule(ruleId);
    expect({ matches, lastError }).to.deep.equal({ matches: 100, lastError: 'too many actions are waiting' });
    expect((await rules.alarms({ ruleId }))[0]!.count).to.equal(100);
  });

  it('have their actions copied by the database, which take far more as objects', async () => {
    await rules.makeRule({ actions: largeActions });
    await feed(rules.test.database, 'acme', await rules.makeDevice(), hot(3));
    const { database, bytes } = countBytesRead(rules.test.database);
    await evaluate(database);
    expect(bytes()).to.be.below(50_000);
    const copied = await rules.query<{ actions: number; same: number }>(
      `SELECT count(*)::int4 AS actions, count(*) FILTER (WHERE actions @> jsonb_build_array(action))::int4 AS same
       FROM rule_actions JOIN rules USING (tenant_id, rule_id)`,
    );
    expect(copied).to.deep.equal([{ actions: 30, same: 30 }]);
  });

  it('leave out actions while 64 MiB of them wait', async () => {
    await rules.makeRule({ actions: largeActions });
    const device = await rules.makeDevice();
    const sums: number[] = [];
    for (let batch = 0; batch < 4; batch += 1) {
      const points = hot(100).map((point) => ({ ...point, at: point.at + 100 * batch }));
      await feed(rules.test.database, 'acme', device, points);
      await evaluate();
      sums.push((await waiting()).bytes / mebibyte);
    }
    expect(sums[2]).to.be.within(64, 96);
    expect(sums[3]).to.equal(sums[2]);
  });

  const makeRules = async (count: number) => {
    await rules.query(
      `INSERT INTO rules (tenant_id, rule_id, name, expression, alarm_type)
       SELECT 'acme', gen_random_uuid(), n::text, 'numeric.t > 30.0', 'a' FROM generate_series(1, $1) AS n`,
      [count],
    );
    await rules.query(`INSERT INTO rule_revisions (tenant_id, revision) VALUES ('acme', 1)`);
  };
  /** Evaluates all points that wait, and returns the number of batches that this takes. */
  const evaluateAll = async (database = rules.test.database): Promise<number> => {
    for (let batches = 0; ; batches += 1) {
      if ((await rules.query('SELECT FROM rule_points')).length === 0) return batches;
      await evaluate(database);
    }
  };

  it('raise and clear some alarms in a batch, and leave the other points to the next ones, in order', async () => {
    await makeRules(100);
    const device = await rules.makeDevice();
    const string = { one: 'x'.repeat(3500), other: 'y'.repeat(3500) };
    const points = Array.from({ length: 12 }, (_, at) => ({ at, numeric: { t: at % 2 === 0 ? 31 : 29 }, string }));
    await feed(rules.test.database, 'acme', device, points);
    const { database, greatest } = countBytesRead(rules.test.database);
    expect(await evaluateAll(database)).to.be.within(4, 6);
    expect(greatest()).to.be.below(mebibyte);
    const [all] = await rules.query<{ alarms: number; cleared: number }>(
      `SELECT count(*)::int4 AS alarms, count(*) FILTER (WHERE status = 'cleared' AND count = 1)::int4 AS cleared FROM alarms`,
    );
    expect(all).to.deep.equal({ alarms: 600, cleared: 600 });
    const changes = Map.groupBy(await rules.events(), ({ data }) => data['alarm_id']);
    for (const events of changes.values()) {
      expect(events.map(({ subject }) => subject.split('.')[1])).to.deep.equal(['raised', 'cleared']);
      expect(events.map(({ data }) => (data['details'] as { string_values: object }).string_values)).to.deep.equal([
        string,
        string,
      ]);
    }
  });

  it('show an alarm that was open before with its details, when it leads to an action and when it is cleared', async () => {
    const { name } = await rules.makeRule({ actions: [{ action: { case: 'rpc', value: { method: 'm' } } }] });
    const device = await rules.makeDevice();
    for (const [at, t] of [31, 32, 20].entries()) {
      await feed(rules.test.database, 'acme', device, [{ at, numeric: { t } }]);
      await evaluate();
    }
    const actions = await rules.query<{ event: string }>('SELECT event FROM rule_actions ORDER BY action_id');
    const shown = actions.map(({ event }) => (JSON.parse(event) as { data: Record<string, unknown> }).data);
    expect(shown.map(({ count }) => count)).to.deep.equal([1, 2]);
    const events = (await rules.events()).map(({ data }) => data);
    expect(events).to.have.length(2);
    for (const { details } of [...shown, ...events]) {
      expect(details).to.deep.include({ rule: name, numeric_values: { t: 31 } });
    }
  });

  it('read few last points of devices in a batch, if these are large', async () => {
    await rules.makeRule({});
    const payload = JSON.stringify({ numeric_values: {}, string_values: { s: 'x'.repeat(3 * mebibyte) } });
    for (let count = 0; count < 4; count += 1) {
      const device = await rules.makeDevice();
      await rules.query(
        `INSERT INTO rule_last_points (tenant_id, device_id, time, payload) VALUES ('acme', $1, 0, $2)`,
        [device, payload],
      );
      await feed(rules.test.database, 'acme', device, hot(1));
    }
    const { database, greatest } = countBytesRead(rules.test.database);
    expect(await evaluateAll(database)).to.equal(2);
    expect(greatest()).to.be.within(6 * mebibyte, 7 * mebibyte);
    expect(await rules.alarms()).to.have.length(4);
  });

  it('read nothing of rules that were deleted', async () => {
    await rules.makeRule({});
    const device = await rules.makeDevice();
    await rules.query(
      `INSERT INTO alarms (tenant_id, alarm_id, device_id, rule_id, type, severity, status, count, first_at, last_at)
       SELECT 'acme', gen_random_uuid(), $1, gen_random_uuid(), 'a', 'minor', 'active', 1, now(), now()
       FROM generate_series(1, 1000)`,
      [device],
    );
    await feed(rules.test.database, 'acme', device, hot(1));
    const { database, bytes } = countBytesRead(rules.test.database);
    await evaluate(database);
    expect(bytes()).to.be.below(10_000);
    expect(await rules.query(`SELECT FROM alarms WHERE status = 'active'`)).to.have.length(1001);
  });

  it('clear the alarms of a deleted device a hundred at a time', async () => {
    const device = await rules.makeDevice();
    await rules.query(
      `INSERT INTO alarms (tenant_id, alarm_id, device_id, type, severity, status, count, first_at, last_at, details)
       SELECT 'acme', gen_random_uuid(), $1, n::text, 'minor', 'active', 1, now(), now(), $2 FROM generate_series(1, 450) AS n`,
      [device, JSON.stringify({ text: 'x'.repeat(16_000) })],
    );
    const { database, bytes, greatest } = countBytesRead(rules.test.database);
    await database.tenant('acme', (tx) => clearAlarmsOf(tx, 'acme', [device], rules.clock));
    expect(bytes()).to.be.above(450 * 16_000);
    expect(greatest()).to.be.below(101 * 17_000);
    expect(await rules.query(`SELECT FROM alarms WHERE status <> 'cleared'`)).to.have.length(0);
    expect(await rules.events()).to.have.length(450);
  });

  it('keep the newest thousand actions that were given up', async () => {
    const { ruleId } = await rules.makeRule({});
    const insert = (dead: string, count: number) =>
      rules.query<ClaimedAction>(
        `INSERT INTO rule_actions (tenant_id, action_id, rule_id, device_id, action, event, attempts, dead_at)
         SELECT 'acme', gen_random_uuid(), $1, gen_random_uuid(), '{"kind":"rpc","method":"m","params":{}}', '{}', 10, ${dead}
         FROM generate_series(1, $2) AS n RETURNING *`,
        [ruleId, count],
      );
    await insert(`now() - n * interval '1 minute'`, 1000);
    const [claim] = await insert('NULL', 1);
    await rules.test.database.tenant('acme', (tx) => failAction(tx, 'acme', claim!, 'failed', true));
    const [dead] = await rules.query<{ number: number; oldest: number; has: boolean }>(
      `SELECT count(*)::int4 AS number, bool_or(action_id = $1) AS has,
         round(extract(epoch FROM now() - min(dead_at)) / 60)::int4 AS oldest FROM rule_actions`,
      [claim!.action_id],
    );
    expect(dead).to.deep.equal({ number: 1000, has: true, oldest: 999 });
  });

  it('bound the bytes of all expressions', async () => {
    await rules.query(
      `INSERT INTO rules (tenant_id, rule_id, name, expression, alarm_type)
       SELECT 'acme', gen_random_uuid(), n::text, $1, 'a' FROM generate_series(1, $2) AS n`,
      [long, 511],
    );
    const small = await rules.makeRule({ expression: 'true' });
    await rules.makeRule({ expression: 'true' });
    const refused = `RESOURCE_EXHAUSTED the expressions of the rules of a tenant have at most ${512 * 1024} bytes together`;
    expect(await refusalOf(rules.makeRule({ expression: long }))).to.equal(refused);
    const update = (expression: string) =>
      refusalOf(
        rules.rules(RulesService.method.updateRule, {
          ...{ ruleId: small.ruleId, expression },
          updateMask: { paths: ['expression'] },
        }),
      );
    expect(await update(long)).to.equal(refused);
    expect(await update('1 == 1')).to.equal('OK');
    expect(await refusalOf(rules.makeRule({ expression: long }, 'other'))).to.equal('OK');
  });

  it('compile only what has changed, and serve others meanwhile', async () => {
    const conditions = Array.from({ length: 70 }, (_, key) => `numeric.a${key} > ${key}.0`).join(' && ');
    await rules.query(
      `INSERT INTO rules (tenant_id, rule_id, name, expression, alarm_type)
       SELECT 'acme', gen_random_uuid(), n::text, $1 || ' || numeric.b > ' || n || '.0', 'a' FROM generate_series(1, 200) AS n`,
      [conditions],
    );
    await rules.query(`INSERT INTO rule_revisions (tenant_id, revision) VALUES ('acme', 1)`);
    const compiled = new CompiledRules();
    const read = () => rules.test.database.tenant('acme', (tx) => compiled.of(tx, 'acme'));
    let beats = 0;
    const beat = setInterval(() => (beats += 1), 1);
    const first = await read();
    clearInterval(beat);
    expect(first).to.have.length(200);
    expect(beats, 'turns of others').to.be.above(10);
    await rules.makeRule({ expression: 'true' });
    const [changed] = first;
    await rules.rules(RulesService.method.updateRule, {
      ...{ ruleId: changed!.row.rule_id, expression: 'false' },
      updateMask: { paths: ['expression'] },
    });
    const second = new Map((await read()).map((rule) => [rule.row.rule_id, rule]));
    expect(second.size).to.equal(201);
    const kept = first.filter(({ row, matches }) => second.get(row.rule_id)!.matches === matches);
    expect(kept).to.have.length(199);
    expect(second.get(changed!.row.rule_id)!.matches({} as never)).to.equal(false);
  });
});
