// A walk over every paged list of the contract with thousands of items, while a second connection inserts and deletes others: what
// exists throughout is listed exactly once and in order. The lists come from the contract: a new one fails until it is walked.
import { type DescMethod, fromJson, type JsonObject, type JsonValue, ScalarType, toJson } from '@bufbuild/protobuf';
import { Client, credentials, Metadata, type ServiceError } from '@grpc/grpc-js';
import { Access_Caller as AccessCaller } from '@kellet/proto/es/kellet/v1/options_pb';
import { expect } from 'chai';
import pg from 'pg';
import { insertUser } from './auth/accounts/account-store.ts';
import { hashPassword } from './auth/accounts/passwords.ts';
import { mintKey } from './auth/credentials/api-key-format.ts';
import { publicServices } from './gateway/services.ts';
import { type Route, RouteTable } from './gateway/transcoding/routes.ts';
import { grpcService } from './platform/grpc/grpc-service.ts';
import { newId } from './platform/ids.ts';
import { allScopes } from './platform/scopes.ts';
import { createTestDatabase, type TestDatabase } from './platform/testing/test-database.ts';
import { fillTenant } from './tenant-data/testing/test-rows.ts';
import { type TestProcess, TestProcesses } from './testing/test-process.ts';

/** `make lists` has 10,000. */
const items = Number(process.env['KELLET_TEST_LIST_ITEMS'] ?? 2_500);
/** Rows that are added, and removed again, during each request. */
const changed = 3;
const tenantId = 'walked';
const password = 'correct horse battery';

/** How the items of a list are stored. The rows are copies of one, except for some columns. */
interface List {
  readonly table: string;
  /** SQL of an insertion of what each row refers to, which returns it as `key`; the rows are numbered by `FROM {numbers}`. */
  readonly first?: string;
  /** SQL by column; `n` is the number of the row, `keys.key` what was inserted first, and a name in braces an id from `ids`. */
  readonly columns: Readonly<Record<string, string>>;
  /** The column that a field of the items shows. */
  readonly id: string;
  /** That field, if it is called otherwise. */
  readonly field?: string;
  /** SQL: which rows are listed, unless all of the tenant are. */
  readonly where?: string;
  /** The rows cannot be deleted. */
  readonly isAppendOnly?: true;
  /** SQL: the order of the list. */
  readonly order: string;
}

const random = 'gen_random_uuid()';
const randomText = `'t-' || ${random}`;
const randomHash = `sha256(${random}::text::bytea)`;
// Some have the same time, and most differ by less than a millisecond.
const randomTime = `now() - floor(random() * 5000) * interval '1 microsecond'`;
const later = `now() + interval '1 day'`;

const lists: Readonly<Record<string, List>> = {
  ListBatches: {
    table: 'anchor_batches',
    columns: { batch_id: random, created_at: randomTime },
    id: 'batch_id',
    order: 'created_at DESC, batch_id DESC',
  },
  ListAuditEvents: {
    table: 'audit_events',
    columns: { event_id: random, sequence: 'n + 1', time: `date_trunc('milliseconds', ${randomTime})` },
    id: 'event_id',
    isAppendOnly: true,
    order: 'time DESC, sequence DESC',
  },
  ListAuditAnchors: { table: 'audit_anchors', columns: { sequence: 'n + 1' }, id: 'sequence', order: 'sequence DESC' },
  ListApiKeys: {
    table: 'api_keys',
    columns: { key_id: random, key_hash: randomHash, name: `'key'` },
    id: 'key_id',
    where: 'device_id IS NULL AND revoked_at IS NULL',
    order: 'key_id',
  },
  ListSessions: {
    table: 'sessions',
    columns: { session_id: random, user_id: '{user_id}', expires_at: later },
    id: 'session_id',
    where: 'user_id = {user_id}',
    order: 'session_id DESC',
  },
  ListLockouts: {
    table: 'login_failures',
    columns: {
      ...{ subject: randomHash, email: `md5(random()::text) || '@walk.test'`, address: `'192.0.2.1'`, failures: '20' },
      ...{ last_failure_at: 'now()', blocked_until: later },
    },
    id: 'email',
    where: 'email IS NOT NULL',
    order: 'email COLLATE "C"',
  },
  ListUsers: { table: 'users', columns: { user_id: random, email: randomText }, id: 'user_id', order: 'user_id' },
  ListGroups: {
    table: 'user_groups',
    columns: { group_id: random, name: randomText },
    id: 'group_id',
    order: 'group_id',
  },
  ListSsoProviders: { table: 'sso_providers', columns: { provider: randomText }, id: 'provider', order: 'provider' },
  ListTenants: {
    table: 'tenants',
    columns: { tenant_id: randomText, namespace: randomText },
    id: 'tenant_id',
    where: 'true',
    order: 'tenant_id COLLATE "C"',
  },
  ListRpcs: {
    table: 'device_commands',
    columns: {
      ...{ correlation_id: random, device_id: '{device_id}', status: `'successful'`, created_at: randomTime },
      ...{ expires_at: later, finished_at: 'now()' },
    },
    id: 'correlation_id',
    where: 'device_id = {device_id}',
    order: 'created_at, correlation_id',
  },
  ListDevices: {
    table: 'devices',
    columns: { device_id: random, hardware_id: randomText },
    id: 'device_id',
    order: 'device_id',
  },
  ListDeviceCertificates: {
    table: 'device_certificates',
    first: `INSERT INTO api_keys (key_id, tenant_id, device_id, name, key_hash, prefix, last4, scopes, credential_type, expires_at)
      SELECT ${random}, '${tenantId}', {device_id}, '', ${randomHash}, '', '', '{}', 'certificate', ${later} FROM {numbers}
      RETURNING key_id AS key`,
    columns: {
      ...{ key_id: 'keys.key', serial_number: randomText, public_key_hash: randomHash },
      ...{ not_after: later, device_id: '{device_id}' },
    },
    id: 'serial_number',
    order: 'key_id',
  },
  ListDeviceAuthorities: {
    table: 'device_authorities',
    columns: { authority_id: random, expires_at: later },
    id: 'authority_id',
    order: 'authority_id',
  },
  GetDeviceHistory: {
    table: 'device_history',
    columns: { device_id: '{device_id}', current: randomText, time: randomTime },
    id: 'current',
    field: 'to',
    where: 'device_id = {device_id}',
    order: 'position DESC',
  },
  ListDeviceGroups: {
    table: 'device_groups',
    columns: { group_id: random, name: randomText },
    id: 'group_id',
    order: 'group_id',
  },
  ListCustomers: { table: 'customers', columns: { customer_id: random }, id: 'customer_id', order: 'customer_id' },
  ListAssets: { table: 'assets', columns: { asset_id: random }, id: 'asset_id', order: 'asset_id' },
  ListEntityViews: {
    table: 'entity_views',
    columns: { entity_view_id: random },
    id: 'entity_view_id',
    order: 'entity_view_id',
  },
  ListAlarms: {
    table: 'alarms',
    columns: { alarm_id: random, status: `'cleared'`, cleared_at: 'now()', last_at: 'now()' },
    id: 'alarm_id',
    order: 'alarm_id DESC',
  },
  ListPackages: {
    table: 'ota_packages',
    columns: { package_id: random, status: `'available'`, created_at: randomTime },
    id: 'package_id',
    order: 'created_at, package_id',
  },
  ListRollouts: {
    table: 'ota_rollouts',
    columns: {
      ...{ rollout_id: random, phase: `'completed'`, outcome: `'succeeded'`, has_devices: 'false' },
      ...{ scheduling_due: 'false', created_at: randomTime },
    },
    id: 'rollout_id',
    order: 'created_at, rollout_id',
  },
  ListRolloutDevices: {
    table: 'ota_rollout_devices',
    columns: {
      ...{ device_id: random, rollout_id: '{rollout_id}' },
      state: `(ARRAY['successful', 'failure', 'skipped'])[1 + n % 3]`,
    },
    id: 'device_id',
    where: 'rollout_id = {rollout_id}',
    order: 'device_id',
  },
  ListProfiles: {
    table: 'profiles',
    // Many have the same name.
    columns: { profile_id: random, name: `'profile ' || n % 1000`, resource_name: randomText },
    id: 'profile_id',
    order: 'name COLLATE "C", profile_id',
  },
  ListTemplates: {
    table: 'provisioning_templates',
    first: `INSERT INTO provision_keys (key_hash, tenant_id) SELECT ${randomHash}, '${tenantId}' FROM {numbers}
      RETURNING key_hash AS key`,
    columns: {
      ...{ template_id: random, name: `'template ' || n % 1000`, resource_name: randomText },
      key_hash: 'keys.key',
    },
    id: 'template_id',
    order: 'name COLLATE "C", template_id',
  },
  ListRules: {
    table: 'rules',
    columns: { rule_id: random, name: randomText, enabled: 'false' },
    id: 'rule_id',
    order: 'rule_id',
  },
  ListWebhooks: {
    table: 'webhooks',
    columns: { webhook_id: random, enabled: 'false' },
    id: 'webhook_id',
    order: 'webhook_id',
  },
  ListWebhookDeliveries: {
    table: 'webhook_deliveries',
    columns: {
      ...{ webhook_id: '{webhook_id}', delivery_id: random, event_id: random, status: `'pending'` },
    },
    id: 'delivery_id',
    where: 'webhook_id = {webhook_id}',
    order: 'position DESC',
  },
};

/** Lists that are walked elsewhere, and where. */
const elsewhere: Readonly<Record<string, string>> = {
  GetHistory: 'below, with points that are ingested',
  GetBatchProof: 'the leaves of a sealed batch never change; verifier/service.test.ts',
  GetRolloutProof: 'the results of a rollout, which only grow in order of their ids; verifier/service.test.ts',
};

const routes = new RouteTable(publicServices).routes;
const paged = routes.filter(({ method }) =>
  method.input.fields.some(
    ({ name, fieldKind, scalar }) => name === 'page_token' && fieldKind === 'scalar' && scalar === ScalarType.STRING,
  ),
);
/** The name of the list in a response. */
const listOf = (method: DescMethod): string =>
  method.output.fields.find((field) => field.fieldKind === 'list' && field.listKind === 'message')!.name;

describe(`every list, with ${items} items while others come and go`, function () {
  this.timeout(600_000);
  let test: TestDatabase;
  let writer: pg.Client;
  let processes: TestProcesses;
  let process: TestProcess;
  let grpc: Client;
  /** Ids that the filling and the paths name. */
  const ids: Record<string, string> = {};
  const credentialOf: Partial<Record<AccessCaller, string>> = {};

  const one = async (text: string): Promise<string> =>
    String((await writer.query<{ id: string }>({ text, values: [tenantId] })).rows[0]!.id);
  const withIds = (text: string): string =>
    Object.entries(ids).reduce((result, [name, id]) => result.replaceAll(`{${name}}`, `'${id}'`), text);
  const ofTenant = ({ table }: List): string =>
    table === 'login_failures'
      ? `tenant_ids @> '{${tenantId}}'`
      : table === 'tenants'
        ? 'true'
        : `tenant_id = '${tenantId}'`;

  /** Columns that copies take over, by table. */
  const taken = new Map<string, string>();
  const takenOf = async ({ table, columns }: List): Promise<string> => {
    const { rows } = await writer.query<{ names: string }>(
      `SELECT string_agg(quote_ident(attname), ', ') AS names FROM pg_attribute
       WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped AND attidentity = '' AND attgenerated = '' AND attname <> ALL($2)`,
      [table, Object.keys(columns)],
    );
    return rows[0]!.names;
  };
  /** Adds copies of a row, numbered from `first`; returns their ids. */
  const add = async (list: List, count: number, first: number): Promise<string[]> => {
    const names = taken.get(list.table) ?? (await takenOf(list));
    taken.set(list.table, names);
    const numbers = `generate_series(${first}, ${first + count - 1}) AS n`;
    const made = list.first && withIds(list.first).replace('{numbers}', numbers);
    const { rows } = await writer.query<{ id: string }>(
      `${made ? `WITH made AS (${made}), keys AS (SELECT key, ${first} + row_number() OVER () AS n FROM made)` : ''}
       INSERT INTO ${list.table} (${Object.keys(list.columns).join(', ')}, ${names})
       SELECT ${withIds(Object.values(list.columns).join(', '))}, s.*
       FROM (SELECT ${names} FROM ${list.table} WHERE ${ofTenant(list)} LIMIT 1) AS s, ${made ? 'keys' : numbers}
       RETURNING ${list.id}::text AS id`,
    );
    return rows.map(({ id }) => id);
  };
  const remove = (list: List, which: readonly string[]): Promise<unknown> =>
    writer.query(`DELETE FROM ${list.table} WHERE ${ofTenant(list)} AND ${list.id}::text = ANY($1)`, [which]);
  const inOrder = async (list: List): Promise<string[]> => {
    const where = withIds(list.where ?? 'true');
    const { rows } = await writer.query<{ id: string }>(
      `SELECT ${list.id}::text AS id FROM ${list.table} WHERE ${ofTenant(list)} AND ${where} ORDER BY ${list.order}`,
    );
    return rows.map(({ id }) => id);
  };

  const signIn = async (email: string, tenant?: string): Promise<string> => {
    const response = await fetch(`${base()}/api/v1/auth/login`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ email, password, ...(tenant && { tenant_id: tenant }) }),
    });
    expect(response.status, email).to.equal(200);
    return ((await response.json()) as { access_token: string }).access_token;
  };
  const base = (): string => `http://127.0.0.1:${process.ports.restPort}`;

  before(async () => {
    test = await createTestDatabase();
    await fillTenant(test.database, tenantId);
    writer = new pg.Client({ connectionString: test.url });
    await writer.connect();
    await writer.query('UPDATE tenants SET rate_limit_per_minute = 10000000');
    // The events of the walk's own sign-ins follow those that are filled in.
    await writer.query('UPDATE audit_heads SET sequence = 1000000');
    await writer.query(`UPDATE rules SET enabled = false; UPDATE webhooks SET enabled = false;
      UPDATE ota_rollouts SET phase = 'completed', outcome = 'succeeded', scheduling_due = false;
      UPDATE api_keys SET expires_at = ${later} WHERE key_id IN (SELECT key_id FROM device_certificates);
      INSERT INTO provision_keys (key_hash, tenant_id) SELECT key_hash, tenant_id FROM provisioning_templates`);
    const passwordHash = await hashPassword(password);
    const account = { name: '', passwordHash, disabled: false };
    ids['user_id'] = newId();
    await test.database.system(async (tx) => {
      const admin = { ...account, userId: ids['user_id']!, tenantId, email: 'admin@walk.test' };
      await insertUser(tx, { ...admin, role: 'tenant_admin' });
      const platform = { ...account, userId: newId(), tenantId: null, email: 'platform@walk.test' };
      await insertUser(tx, { ...platform, role: 'platform_admin' });
    });
    for (const [name, table] of Object.entries({
      ...{ device_id: 'devices', webhook_id: 'webhooks', rollout_id: 'ota_rollouts' },
    }))
      ids[name] = await one(`SELECT ${name} AS id FROM ${table} WHERE tenant_id = $1`);
    processes = await TestProcesses.create(test.url);
    process = await processes.start({});
    grpc = new Client(`127.0.0.1:${process.ports.grpcPort}`, credentials.createInsecure());
    const { key, hash, prefix, last4 } = mintKey();
    await writer.query(
      `INSERT INTO api_keys (key_id, tenant_id, name, key_hash, prefix, last4, scopes) VALUES ($1, $2, 'walk', $3, $4, $5, $6)`,
      [newId(), tenantId, hash, prefix, last4, allScopes],
    );
    credentialOf[AccessCaller.SERVICE] = key;
    credentialOf[AccessCaller.USER] = await signIn('admin@walk.test', tenantId);
    credentialOf[AccessCaller.PLATFORM] = await signIn('platform@walk.test');
  });
  after(async () => {
    grpc?.close();
    await writer?.end();
    await processes?.kill();
    await processes?.remove();
    await test?.drop();
  });

  const credentialFor = ({ access, method }: Route): string => {
    const caller = [AccessCaller.SERVICE, AccessCaller.USER, AccessCaller.PLATFORM].find((one) =>
      access.callers.includes(one),
    );
    const credential = caller && credentialOf[caller];
    if (!credential) throw new Error(`nobody of this test may call ${method.name}`);
    return credential;
  };

  interface Page {
    readonly items: readonly JsonObject[];
    readonly next: string;
  }
  /** `size` as the request names it, and what it means. */
  interface Way {
    readonly size: number;
    readonly length: number;
    readonly call: Call;
  }
  type Call = (route: Route, size: number, token: string) => Promise<Page>;
  const pageOf = ({ method }: Route, response: JsonObject): Page => ({
    items: response[listOf(method)] as JsonObject[],
    next: response['next_page_token'] as string,
  });
  const overRest: Call = async (route, size, token) => {
    const path = route.path.replace(/\{(\w+)[^}]*\}/g, (_, name: string) => ids[name]!);
    const query = new URLSearchParams({ page_size: String(size), page_token: token });
    const credential = credentialFor(route);
    const response = await fetch(`${base()}${path}?${query.toString()}`, {
      headers: credential.startsWith('sk_live_')
        ? { 'x-api-key': credential }
        : { authorization: `Bearer ${credential}` },
    });
    const text = await response.text();
    expect(response.status, `${route.path}: ${text.slice(0, 300)}`).to.equal(200);
    return pageOf(route, JSON.parse(text) as JsonObject);
  };
  const overGrpc: Call = async (route, size, token) => {
    const { method } = route;
    const { path, requestSerialize, responseDeserialize } = grpcService(method.parent)[method.name]!;
    const metadata = new Metadata();
    metadata.set('x-api-key', credentialFor(route));
    const message = fromJson(method.input, { page_size: size, page_token: token });
    const response = await new Promise<JsonValue>((resolve, reject) => {
      const answered = (error: ServiceError | null, value?: unknown): void =>
        error
          ? reject(error)
          : resolve(toJson(method.output, value as never, { useProtoFieldName: true, alwaysEmitImplicit: true }));
      grpc.makeUnaryRequest(path, requestSerialize, responseDeserialize, message, metadata, answered);
    });
    return pageOf(route, response as JsonObject);
  };

  /** Walks a list to its end, and calls `change` beside many requests. Returns the ids in the order in which they were listed. */
  const walk = async (route: Route, field: string, way: Way, change: () => Promise<void>): Promise<string[]> => {
    const { size, call, length } = way;
    const seen: string[] = [];
    let token = '';
    let pages = 0;
    do {
      const isChanged = size > 0 || pages % 4 === 0;
      const [page] = await Promise.all([call(route, size, token), isChanged && change()]);
      const listed = page.items.map((item) => String(item[field] as string | number));
      // A page that is full says how to go on, and only the last may be shorter.
      if (page.next !== '') expect(listed, 'length of a page').to.have.length(length);
      if (pages % 64 === 4) {
        // The token still leads to the same place.
        const again = (await call(route, size, token)).items.map((item) => String(item[field] as string | number));
        const kept = listed.filter((id) => again.includes(id));
        expect(
          again.filter((id) => listed.includes(id)),
          'the same page again',
        ).to.deep.equal(kept);
        expect(kept.length, 'of the same page again').to.be.at.least(listed.length - 4 * changed);
      }
      seen.push(...listed);
      token = page.next;
      pages += 1;
    } while (token !== '');
    return seen;
  };

  const ways: readonly Way[] = [
    { size: 0, length: 50, call: overRest },
    { size: 100_000, length: 500, call: overRest },
  ];
  const overGrpcToo: Way = { size: 500, length: 500, call: overGrpc };
  /** Expects that a walk has seen what existed throughout, in order, and nothing twice. */
  const expectOnce = (seen: readonly string[], stable: readonly string[]): void => {
    expect(new Set(seen).size, 'items seen twice').to.equal(seen.length);
    const members = new Set(stable);
    expect(seen.filter((id) => members.has(id))).to.deep.equal(stable);
  };

  it('is one of these', () => {
    const known = [...Object.keys(lists), ...Object.keys(elsewhere)].toSorted();
    expect(paged.map(({ method }) => method.name).toSorted()).to.deep.equal(known);
  });

  for (const route of paged.filter(({ method }) => method.name in lists)) {
    it(`${route.method.name} lists each item once and in order`, async () => {
      const list = lists[route.method.name]!;
      await add(list, items, 1);
      await writer.query(`ANALYZE ${list.table}, api_keys, provision_keys`);
      let [count, extra] = [items + 1, await add(list, changed, items + 1)];
      const stable = (await inOrder(list)).filter((id) => !extra.includes(id));
      expect(stable.length).to.be.at.least(items);
      const change = async (): Promise<void> => {
        count += changed;
        const added = await add(list, changed, count);
        if (!list.isAppendOnly) await remove(list, extra);
        extra = added;
      };
      for (const way of route.method.name === 'ListDevices' ? [...ways, overGrpcToo] : ways)
        expectOnce(await walk(route, list.field ?? list.id, way, change), stable);
    });
  }

  it('GetHistory returns each point once and in order, while others arrive', async () => {
    const route = paged.find(({ method }) => method.name === 'GetHistory')!;
    // The other devices have points that are no real ones.
    ids['device_id'] = newId();
    await writer.query(`INSERT INTO devices (tenant_id, device_id, name, hardware_id) VALUES ($1, $2, '', 'walked')`, [
      ...[tenantId, ids['device_id']],
    ]);
    // At a whole second, so that times are returned both with and without a fraction.
    const start = Math.floor(Date.now() / 1000) * 1000 - 3_600_000;
    const ingest = async (times: readonly number[]): Promise<void> => {
      const points = times.map((time) => ({
        ...{ device_id: ids['device_id']!, timestamp: new Date(time).toISOString(), numeric_values: { t: time % 100 } },
      }));
      const response = await fetch(`${base()}/api/v1/telemetry`, {
        method: 'POST',
        headers: { 'content-type': 'application/json', 'x-api-key': credentialOf[AccessCaller.SERVICE]! },
        body: JSON.stringify({ points }),
      });
      expect(await response.json()).to.include({ accepted: points.length, rejected: 0 });
    };
    const times = Array.from({ length: items }, (_, index) => start + index * 10);
    for (let first = 0; first < items; first += 5000) await ingest(times.slice(first, first + 5000));
    const stable = times.map((time) => new Date(time).toISOString());
    const inMilliseconds = (time: string): string => new Date(time).toISOString();
    let others = 0;
    const change = (): Promise<void> =>
      ingest(Array.from({ length: changed }, () => start + (((others += 1) * 7919 * 10 + 5) % (items * 10))));
    const history = [ways[0]!, { ...ways[1]!, length: items }];
    for (const way of history) expectOnce((await walk(route, 'timestamp', way, change)).map(inMilliseconds), stable);
  });
});
