// What the rules of a tenant may take, against a real database.
import { RulesService } from '@kellet/proto/es/kellet/v1/rules_pb';
import { expect } from 'chai';
import { createProfileReader } from '../device-link/provisioning/profiles.ts';
import { DeviceDirectory } from '../device-registry/devices/directory.ts';
import { createLogger } from '../platform/observability/logger.ts';
import { createMetrics } from '../platform/observability/metrics.ts';
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

  const evaluate = async () => {
    const { database } = rules.test;
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
