// Pages of lists whose rows are as large as the limits allow, read from a running process.
import { expect } from 'chai';
import { insertUser } from './auth/accounts/account-store.ts';
import { hashPassword } from './auth/accounts/passwords.ts';
import { newId } from './platform/ids.ts';
import { createTestDatabase, type TestDatabase } from './platform/testing/test-database.ts';
import { fillTenant } from './tenant-data/testing/test-rows.ts';
import { type TestProcess, TestProcesses } from './testing/test-process.ts';

const tenantId = 'large';
const password = 'correct horse battery';
const mebibyte = 2 ** 20;

/** A list, and copies of one of its rows with large columns. */
interface List {
  readonly route: string;
  /** The field of the response that has the items, and that of an item with its id. */
  readonly field: string;
  readonly id: string;
  readonly table: string;
  readonly rows: number;
  /** The columns of row `n` as SQL. */
  readonly columns: Readonly<Record<string, string>>;
  /** SQL: which rows are listed, unless all of the tenant are. */
  readonly where?: string;
  readonly order: string;
}

/** SQL of a JSON object with so many random texts of 1 KB. */
const texts = (count: number) =>
  `(SELECT jsonb_object_agg('k' || i, repeat(md5((n * 1000 + i)::text), 32)) FROM generate_series(1, ${count}) AS i)`;
const lists: readonly List[] = [
  {
    ...{ route: 'devices/{device_id}/rpc', field: 'commands', id: 'correlation_id', table: 'device_commands', rows: 8 },
    columns: {
      correlation_id: 'gen_random_uuid()',
      status: `'successful'`,
      response: texts(900),
      idempotency_key: 'NULL',
    },
    order: 'created_at, correlation_id',
  },
  {
    ...{ route: 'devices', field: 'devices', id: 'device_id', table: 'devices', rows: 200 },
    columns: {
      ...{ device_id: 'gen_random_uuid()', hardware_id: `'large ' || n`, deleted_at: 'NULL' },
      ...{ tags: `'{}'::jsonb`, metadata: texts(15) },
    },
    order: 'device_id',
  },
  {
    ...{ route: 'customers', field: 'customers', id: 'customer_id', table: 'customers', rows: 200 },
    columns: { customer_id: 'gen_random_uuid()', name: `'large ' || n`, contact: `repeat(md5(n::text), 512)` },
    order: 'customer_id',
  },
  {
    ...{ route: 'device-groups', field: 'device_groups', id: 'group_id', table: 'device_groups', rows: 200 },
    columns: {
      ...{ group_id: 'gen_random_uuid()', name: `'large ' || n`, query: 'NULL' },
      description: `repeat(md5(n::text), 512)`,
    },
    order: 'group_id',
  },
  {
    ...{ route: 'ota/rollouts/{rollout_id}/devices', field: 'devices', id: 'device_id', table: 'ota_rollout_devices' },
    ...{ rows: 200, order: 'device_id' },
    columns: { device_id: 'gen_random_uuid()', error: `repeat(md5(n::text), 512)` },
  },
  {
    ...{ route: 'assets', field: 'assets', id: 'asset_id', table: 'assets', rows: 100 },
    columns: { asset_id: 'gen_random_uuid()', tags: texts(64) },
    order: 'asset_id',
  },
  {
    ...{ route: 'alarms', field: 'alarms', id: 'alarm_id', table: 'alarms', rows: 200 },
    columns: { alarm_id: 'gen_random_uuid()', status: `'cleared'`, type: `'large ' || n`, details: texts(15) },
    order: 'alarm_id DESC',
  },
  {
    ...{ route: 'entity-views', field: 'entity_views', id: 'entity_view_id', table: 'entity_views', rows: 100 },
    columns: {
      entity_view_id: 'gen_random_uuid()',
      keys: `(SELECT jsonb_agg(repeat(md5((n * 1000 + i)::text), 4)) FROM generate_series(1, 250) AS i)`,
    },
    order: 'entity_view_id',
  },
  {
    ...{ route: 'profiles', field: 'profiles', id: 'profile_id', table: 'profiles', rows: 10 },
    columns: {
      ...{ profile_id: 'gen_random_uuid()', name: `'large ' || n`, resource_name: `'large-' || n` },
      document: `jsonb_build_object('default_tags', ${texts(600)})`,
    },
    order: 'name COLLATE "C", profile_id',
  },
  {
    ...{ route: 'ota/packages', field: 'packages', id: 'package_id', table: 'ota_packages', rows: 200 },
    columns: {
      ...{ package_id: 'gen_random_uuid()', name: `'large-' || n`, display_name: `'large ' || n` },
      release_notes: `repeat(md5(n::text), 512)`,
    },
    order: 'created_at, package_id',
  },
  {
    ...{ route: 'rules', field: 'rules', id: 'rule_id', table: 'rules', rows: 10 },
    columns: {
      ...{ rule_id: 'gen_random_uuid()', name: `'large ' || n`, enabled: 'false' },
      actions: `jsonb_build_array(jsonb_build_object('kind', 'rpc', 'method', 'm', 'params', ${texts(600)}))`,
    },
    order: 'rule_id',
  },
  {
    ...{ route: 'auth/sso/providers', field: 'providers', id: 'provider', table: 'sso_providers', rows: 12 },
    columns: { provider: `'large-' || n`, role_mapping: texts(250) },
    order: 'provider',
  },
  {
    ...{ route: 'auth/api-keys', field: 'api_keys', id: 'key_id', table: 'api_keys', rows: 600 },
    columns: {
      ...{ key_id: 'gen_random_uuid()', key_hash: 'sha256(n::text::bytea)', device_id: 'NULL', revoked_at: 'NULL' },
      ip_allowlist: `to_jsonb(array_fill('2001:0db8:1111:2222:3333:4444:5555:6666/128'::text, ARRAY[100]))`,
    },
    where: 'device_id IS NULL AND revoked_at IS NULL',
    order: 'key_id',
  },
];

describe('lists of large rows', function () {
  this.timeout(60_000);
  let test: TestDatabase;
  let processes: TestProcesses;
  let process: TestProcess;
  let token: string;
  let deviceId: string;
  let rolloutId: string;

  before(async () => {
    test = await createTestDatabase();
    await fillTenant(test.database, tenantId);
    const user = { userId: newId(), tenantId, email: 'admin@large.test', name: '', role: 'tenant_admin' } as const;
    const passwordHash = await hashPassword(password);
    await test.database.system(async (tx) => {
      await insertUser(tx, { ...user, passwordHash, disabled: false });
      const { rows: devices } = await tx.query<{ id: string }>(
        `UPDATE device_commands SET device_id = (SELECT device_id FROM devices WHERE tenant_id = $1 LIMIT 1)
         WHERE tenant_id = $1 RETURNING device_id AS id`,
        [tenantId],
      );
      deviceId = devices[0]!.id;
      const { rows: rollouts } = await tx.query<{ id: string }>(
        `UPDATE ota_rollout_devices SET rollout_id = (SELECT rollout_id FROM ota_rollouts WHERE tenant_id = $1 LIMIT 1)
         WHERE tenant_id = $1 RETURNING rollout_id AS id`,
        [tenantId],
      );
      rolloutId = rollouts[0]!.id;
      for (const { table, columns, rows } of lists) {
        const record = Object.entries(columns).map(([name, value]) => `'${name}', ${value}`);
        const { rows: stored } = await tx.query<{ name: string }>(
          `SELECT column_name::text AS name FROM information_schema.columns
           WHERE table_schema = current_schema() AND table_name = $1 AND is_generated = 'NEVER'`,
          [table],
        );
        const names = stored.map(({ name }) => name);
        await tx.query(
          `INSERT INTO ${table} (${names.join(', ')}) SELECT ${names.map((name) => `filled.${name}`).join(', ')}
           FROM (SELECT h AS held FROM ${table} AS h WHERE tenant_id = $1 LIMIT 1) AS one, generate_series(1, $2::int4) AS n,
             LATERAL jsonb_populate_record(one.held, jsonb_build_object(${record.join(', ')})) AS filled`,
          [tenantId, rows],
        );
      }
    });
    processes = await TestProcesses.create(test.url);
    process = await processes.start({ KELLET_ACCESS_LOG: 'off' });
    const login = await fetch(`http://127.0.0.1:${process.ports.restPort}/api/v1/auth/login`, {
      method: 'POST',
      body: JSON.stringify({ email: user.email, password }),
    });
    token = ((await login.json()) as { access_token: string }).access_token;
  });
  after(async () => {
    await processes?.kill();
    await processes?.remove();
    await test?.drop();
  });

  /** Reads a list page by page. Returns the ids of its items, and how many pages there were. */
  const pagesOf = async ({ route, field, id }: Pick<List, 'route' | 'field' | 'id'>) => {
    const filled = route.replace('{device_id}', deviceId).replace('{rollout_id}', rolloutId);
    const path = `http://127.0.0.1:${process.ports.restPort}/api/v1/${filled}`;
    const ids: string[] = [];
    let pages = 0;
    let pageToken = '';
    do {
      const response = await fetch(`${path}?page_size=500&page_token=${encodeURIComponent(pageToken)}`, {
        headers: { authorization: `Bearer ${token}` },
      });
      const text = await response.text();
      expect(response.status, text.slice(0, 200)).to.equal(200);
      expect(text.length).to.be.below(2.1 * mebibyte);
      const body = JSON.parse(text) as Record<string, Record<string, string>[]> & { next_page_token: string };
      expect(body[field]).not.to.deep.equal([]);
      ids.push(...body[field]!.map((item) => item[id]!));
      pageToken = body.next_page_token;
      pages += 1;
    } while (pageToken !== '');
    return { ids, pages };
  };

  for (const list of lists) {
    it(`ends pages of ${list.field} early, and none is missing`, async () => {
      const { ids, pages } = await pagesOf(list);
      const { id, table, where = 'true', order } = list;
      const { rows } = await test.database.system((tx) =>
        tx.query<{ id: string }>(
          `SELECT ${id} AS id FROM ${table} WHERE tenant_id = $1 AND ${where} ORDER BY ${order}`,
          [tenantId],
        ),
      );
      expect(ids).to.deep.equal(rows.map((row) => row.id));
      expect(pages).to.be.above(2);
    });
  }

  it('ends pages of groups of users early where these have many members', async () => {
    await test.database.system(async (tx) => {
      await tx.query(
        `INSERT INTO users (user_id, tenant_id, email, role, password_hash)
         SELECT gen_random_uuid(), $1, n || '@members.test', 'viewer', '' FROM generate_series(1, 1000) AS n`,
        [tenantId],
      );
      await tx.query(
        `INSERT INTO user_groups (tenant_id, group_id, name, scopes)
         SELECT $1, gen_random_uuid(), 'large ' || n, ARRAY['ota:read'] FROM generate_series(1, 80) AS n`,
        [tenantId],
      );
      await tx.query(
        `INSERT INTO user_group_members (tenant_id, group_id, user_id)
         SELECT $1, group_id, user_id FROM user_groups g JOIN users u USING (tenant_id)
         WHERE g.tenant_id = $1 AND g.name LIKE 'large %' AND u.email LIKE '%@members.test'`,
        [tenantId],
      );
    });
    const { ids, pages } = await pagesOf({ route: 'auth/groups', field: 'groups', id: 'group_id' });
    const { rows } = await test.database.system((tx) =>
      tx.query<{ id: string }>(`SELECT group_id AS id FROM user_groups WHERE tenant_id = $1 ORDER BY group_id`, [
        tenantId,
      ]),
    );
    expect(ids).to.deep.equal(rows.map((row) => row.id));
    expect(pages).to.be.above(2);
  });

  it('ends pages of devices early where they inherit much', async () => {
    await test.database.system(async (tx) => {
      await tx.query(`UPDATE devices SET metadata = '{}' WHERE tenant_id = $1`, [tenantId]);
      await tx.query(
        `UPDATE tenants SET defaults = jsonb_build_object('tags', (SELECT ${texts(64)} FROM (VALUES (1)) AS one (n)))
         WHERE tenant_id = $1`,
        [tenantId],
      );
      await tx.query(`UPDATE devices SET profile_id = NULL WHERE tenant_id = $1`, [tenantId]);
    });
    const response = await fetch(`http://127.0.0.1:${process.ports.restPort}/api/v1/devices?page_size=500`, {
      headers: { authorization: `Bearer ${token}` },
    });
    const text = await response.text();
    const body = JSON.parse(text) as { devices: { effective_tags: object }[]; next_page_token: string };
    expect(Object.keys(body.devices[0]!.effective_tags)).to.have.length(64);
    expect(text.length).to.be.below(4.5 * mebibyte);
    expect(body.next_page_token).not.to.equal('');
  });
});
