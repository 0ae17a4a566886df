// Whose groups follow their query first, and how often devices are compared, against a real database.
import { expect } from 'chai';
import { customerHasUsers } from '../../auth/accounts/account-store.ts';
import { insertTenant } from '../../auth/testing/test-fixtures.ts';
import { MovableClock, testPlatform } from '../../auth/testing/test-platform.ts';
import { RolloutMembership } from '../../device-link/ota/rollouts/membership.ts';
import { createProfileReader } from '../../device-link/provisioning/profiles.ts';
import { templatesOfGroup } from '../../device-link/provisioning/template-store.ts';
import { sleep } from '../../platform/clock.ts';
import { eventually } from '../../platform/testing/eventually.ts';
import { createTestDatabase, type TestDatabase } from '../../platform/testing/test-database.ts';
import { createDeviceRegistry } from '../service.ts';
import { advanceWalk, beginWalk, lockWalk, nextOfWalk } from './query-group-store.ts';

describe('groups with a query of many tenants', function () {
  this.timeout(60_000);
  let test: TestDatabase;

  beforeEach(async () => {
    test = await createTestDatabase();
    for (const tenant of ['acme', 'victim']) {
      await insertTenant(test.database, tenant);
      await query(
        `INSERT INTO device_groups (tenant_id, group_id, name, query)
         SELECT $1, gen_random_uuid(), n::text, '{"tag": ["site=north"]}' FROM generate_series(1, 5) AS n`,
        [tenant],
      );
    }
  });
  afterEach(() => test.drop());

  const query = async <Row extends Record<string, unknown>>(text: string, values: readonly unknown[] = []) =>
    (await test.database.system((tx) => tx.query<Row>(text, values))).rows;
  const addDevices = (tenant: string, count: number) =>
    query(
      `INSERT INTO devices (tenant_id, device_id, name, hardware_id)
       SELECT $1, gen_random_uuid(), 'd', n::text FROM generate_series(1, $2::int4) AS n`,
      [tenant, count],
    );
  const setDefaultTag = (tenant: string, site: string) =>
    query(
      `UPDATE tenants SET defaults = jsonb_build_object('tags', jsonb_build_object('site', $2::text)) WHERE tenant_id = $1`,
      [...[tenant, site]],
    );
  const makeRegistry = () => {
    const platform = testPlatform(test.database, new MovableClock());
    return createDeviceRegistry(
      ...([platform, createProfileReader(test.database), new RolloutMembership(platform.clock)] as const),
      { ofGroup: templatesOfGroup, customerHasUsers },
    );
  };
  const walksOf = async (tenant: string): Promise<number> =>
    (await query('SELECT FROM device_group_walks WHERE tenant_id = $1', [tenant])).length;

  it('have one walk for each target, however often it changes', async () => {
    await addDevices('acme', 10);
    for (let change = 0; change < 200; change += 1) await setDefaultTag('acme', String(change));
    expect(await walksOf('acme')).to.equal(1);
    const [group] = await query<{ group_id: string }>(
      `SELECT group_id FROM device_groups WHERE tenant_id = 'acme' LIMIT 1`,
    );
    for (let change = 0; change < 3; change += 1) {
      await test.database.tenant('acme', (tx) => beginWalk(tx, 'acme', group!.group_id));
    }
    expect(await walksOf('acme')).to.equal(2);
    await setDefaultTag('victim', 'north');
    expect(await walksOf('victim')).to.equal(1);
  });

  it('compare each device after each change, although changes never stop', async () => {
    await addDevices('acme', 1000);
    const devices = (await query<{ id: string }>(`SELECT device_id::text AS id FROM devices ORDER BY device_id`)).map(
      ({ id }) => id,
    );
    const compared = new Map(devices.map((id) => [id, [] as number[]]));
    const changes: number[] = [];
    let step = 0;
    const change = async () => {
      await setDefaultTag('acme', `at ${step}`);
      changes.push(step);
    };
    const walk = (): Promise<boolean> =>
      test.database.system(async (tx) => {
        const row = await lockWalk(tx, 'acme', undefined);
        if (!row) return false;
        const ids = await nextOfWalk(tx, row, 300);
        step += 1;
        for (const id of ids) compared.get(id)!.push(step);
        await advanceWalk(tx, row, ids.length < 300 ? undefined : ids.at(-1));
        return true;
      });
    // A change after each step, through several rounds; and one that comes when the walk has begun again.
    for (let count = 0; count < 14; count += 1) {
      await change();
      await walk();
    }
    while (await walk());
    await change();
    await walk();
    await walk();
    await change();
    for (let count = 0; count < 3; count += 1) await walk();
    await change();
    while (await walk());
    const last = changes.at(-1)!;
    for (const steps of compared.values()) {
      expect(steps.some((at) => at > last)).to.equal(true);
      // During the changes as well.
      expect(steps.filter((at) => at <= 14).length).to.be.within(2, 4);
    }
    expect(await walksOf('acme')).to.equal(0);
  });

  it('take turns, however much one has to compare', async () => {
    await query('CREATE TABLE steps (n int4 GENERATED ALWAYS AS IDENTITY, kind text, tenant_id text)');
    await query(`CREATE FUNCTION note_step() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
      BEGIN INSERT INTO steps (kind, tenant_id) VALUES (TG_TABLE_NAME, OLD.tenant_id); RETURN NULL; END $$`);
    for (const [table, events] of [
      ['device_group_walks', 'UPDATE OR DELETE'],
      ['device_group_checks', 'DELETE'],
    ]) {
      await query(`CREATE TRIGGER noted AFTER ${events} ON ${table} FOR EACH ROW EXECUTE FUNCTION note_step()`);
    }
    // 6,000 changed devices, and 40 walks of a dozen steps.
    await addDevices('acme', 6000);
    await query(
      `INSERT INTO device_group_walks (tenant_id, profile_id) SELECT 'acme', gen_random_uuid() FROM generate_series(1, 40)`,
    );
    await setDefaultTag('acme', 'north');
    await addDevices('victim', 10);
    await setDefaultTag('victim', 'north');

    const registry = makeRegistry();
    await registry.start?.();
    try {
      await eventually(async () => (await walksOf('victim')) === 0 && (await walksOf('acme')) === 0, 30_000);
      await eventually(async () => (await query('SELECT FROM device_group_checks')).length === 0, 30_000);
    } finally {
      await registry.stop?.();
    }
    for (const [kind, before] of [
      ['device_group_walks', 1],
      ['device_group_checks', 500],
    ] as const) {
      const [row] = await query<{ before: number; all: number }>(
        `SELECT count(*) FILTER (WHERE n < (SELECT max(n) FROM steps WHERE kind = $1 AND tenant_id = 'victim'))::int4 AS before,
           count(*)::int4 AS all FROM steps WHERE kind = $1 AND tenant_id = 'acme'`,
        [kind],
      );
      expect(row!.before, kind).to.be.at.most(before);
      expect(row!.all, kind).to.be.above(30);
    }
    const [members] = await query<{ members: number }>(
      `SELECT count(*)::int4 AS members FROM device_group_members WHERE tenant_id IN ('acme', 'victim')`,
    );
    expect(members!.members).to.equal(5 * 6010);
  });

  it('keep their members while their tenant is deleted, until it is restored', async () => {
    await setDefaultTag('acme', 'north');
    await query(
      `INSERT INTO device_groups (tenant_id, group_id, name, query) VALUES ('acme', gen_random_uuid(), 's', '{"status": "online"}')`,
    );
    await addDevices('acme', 10);
    const membersOf = async (tenant: string): Promise<number> =>
      (await query('SELECT FROM device_group_members WHERE tenant_id = $1', [tenant])).length;
    const setStatus = (tenant: string, status: string) =>
      query('UPDATE devices SET status = $2 WHERE tenant_id = $1', [tenant, status]);
    await setStatus('acme', 'online');
    const registry = makeRegistry();
    await registry.start?.();
    try {
      await eventually(async () => (await membersOf('acme')) === 60);
      await query(
        `UPDATE tenants SET deleted_at = now(), purge_at = now() + interval '1 day' WHERE tenant_id = 'acme'`,
      );
      // As after the end of their connections.
      await setStatus('acme', 'offline');
      await query(`INSERT INTO device_group_walks (tenant_id) VALUES ('acme')`);
      // Those of others follow meanwhile.
      await setDefaultTag('victim', 'north');
      await addDevices('victim', 10);
      await eventually(async () => (await membersOf('victim')) === 50);
      await sleep(1500);
      expect(await membersOf('acme')).to.equal(60);
      await query(`UPDATE tenants SET deleted_at = NULL, purge_at = NULL WHERE tenant_id = 'acme'`);
      await eventually(async () => (await walksOf('acme')) === 0);
      await eventually(async () => (await query('SELECT FROM device_group_checks')).length === 0);
      // But for the group of those that are online.
      expect(await membersOf('acme')).to.equal(50);
    } finally {
      await registry.stop?.();
    }
  });

  it('follow changes of what devices inherit although the devices of another cannot be compared', async () => {
    await addDevices('victim', 3);
    await query('DELETE FROM device_group_checks');
    await query(`UPDATE device_groups SET query = '{"tag": 5}' WHERE tenant_id = 'acme'`);
    await query('DELETE FROM device_group_walks');
    await addDevices('acme', 1);
    await setDefaultTag('victim', 'north');
    const registry = makeRegistry();
    await registry.start?.();
    try {
      await eventually(async () => (await walksOf('victim')) === 0);
      expect(await query(`SELECT FROM device_group_members WHERE tenant_id = 'victim'`)).to.have.length(15);
      expect(await query('SELECT FROM device_group_checks')).to.have.length(1);
    } finally {
      await registry.stop?.();
    }
  });

  it('do not wait for a long change of a device of another', async () => {
    await addDevices('acme', 2);
    await addDevices('victim', 2);
    const registry = makeRegistry();
    const locked = Promise.withResolvers<void>();
    const ended = Promise.withResolvers<void>();
    const change = test.database.tenant('acme', async (tx) => {
      await tx.query(`SELECT FROM devices WHERE tenant_id = 'acme' FOR NO KEY UPDATE`);
      locked.resolve();
      await ended.promise;
    });
    await locked.promise;
    for (const tenant of ['acme', 'victim']) await setDefaultTag(tenant, 'north');
    await registry.start?.();
    try {
      await eventually(async () => (await walksOf('victim')) === 0, 8000);
      expect(await walksOf('acme')).to.equal(1);
      ended.resolve();
      await change;
      await eventually(async () => (await walksOf('acme')) === 0, 8000);
    } finally {
      ended.resolve();
      await change;
      await registry.stop?.();
    }
  });
});
