// A walk over every operation of the contract, over REST and gRPC, over /ws and MQTT: as another tenant, a viewer, a device, a user
// limited to device groups and a user of a customer. Nothing of the victim may appear in a response, and no row of it may change.
// Routes come from the contract, channels and topics from their types: what is new is walked, or does not compile.
import {
  create,
  type DescMethod,
  fromJson,
  type JsonObject,
  type JsonValue,
  ScalarType,
  toJsonString,
} from '@bufbuild/protobuf';
import { Client, credentials, Metadata, type ServiceError } from '@grpc/grpc-js';
import { Access_Caller as AccessCaller } from '@kellet/proto/es/kellet/v1/options_pb';
import { expect } from 'chai';
import { WebSocket } from 'ws';
import { insertUser } from './auth/accounts/account-store.ts';
import { hashPassword } from './auth/accounts/passwords.ts';
import { mintKey } from './auth/credentials/api-key-format.ts';
import { insertTenant } from './auth/testing/test-fixtures.ts';
import type { ClientMessage } from './dashboard-bff/client-message.ts';
import { publicServices } from './gateway/services.ts';
import { type Route, RouteTable } from './gateway/transcoding/routes.ts';
import { hasUpdateMask } from './gateway/transcoding/update-mask.ts';
import { TestClient } from './mqtt/testing/test-mqtt.ts';
import type { Action } from './mqtt/topics.ts';
import { requestExamples } from './openapi/examples.ts';
import { sampleIds } from './openapi/sample-ids.ts';
import { sleep } from './platform/clock.ts';
import { grpcService } from './platform/grpc/grpc-service.ts';
import { newId } from './platform/ids.ts';
import { allScopes } from './platform/scopes.ts';
import { createTestDatabase, type TestDatabase } from './platform/testing/test-database.ts';
import { ofTenant, type TenantTable, tenantTables } from './tenant-data/tenant-tables.ts';
import { fillTenant } from './tenant-data/testing/test-rows.ts';
import { type TestProcess, TestProcesses } from './testing/test-process.ts';

const victim = 'victim';
const stranger = 'stranger';
const password = 'correct horse battery';
const uuid = /[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}/g;

/** Where the walk finds an id of the victim, by the name of the variable in a path or field. */
const idSources: Readonly<Record<string, readonly [table: string, column: string]>> = {
  key_id: ['api_keys', 'key_id'],
  session_id: ['sessions', 'session_id'],
  email: ['users', 'email'],
  user_id: ['users', 'user_id'],
  credential_id: ['webauthn_credentials', 'credential_id'],
  group_id: ['device_groups', 'group_id'],
  provider: ['sso_providers', 'provider'],
  tenant_id: ['tenants', 'tenant_id'],
  device_id: ['devices', 'device_id'],
  gateway_device_id: ['devices', 'device_id'],
  authority_id: ['device_authorities', 'authority_id'],
  customer_id: ['customers', 'customer_id'],
  asset_id: ['assets', 'asset_id'],
  entity_view_id: ['entity_views', 'entity_view_id'],
  alarm_id: ['alarms', 'alarm_id'],
  profile_id: ['profiles', 'profile_id'],
  target_profile_id: ['profiles', 'profile_id'],
  template_id: ['provisioning_templates', 'template_id'],
  correlation_id: ['device_commands', 'correlation_id'],
  package_id: ['ota_packages', 'package_id'],
  rollback_package_id: ['ota_packages', 'package_id'],
  rollout_id: ['ota_rollouts', 'rollout_id'],
  rule_id: ['rules', 'rule_id'],
  batch_id: ['anchor_batches', 'batch_id'],
  webhook_id: ['webhooks', 'webhook_id'],
  delivery_id: ['webhook_deliveries', 'event_id'],
  data_hash_hex: ['telemetry_points', "encode(data_hash, 'hex')"],
};

/** Calls that end or change the access of their caller: the walk makes them last. */
const ofCaller = [
  ...['UpdateOwnTenant', 'EnrollTotp', 'ConfirmTotp', 'BeginWebauthnRegistration', 'FinishWebauthnRegistration'],
  ...['DeleteTotp', 'DeleteSecurityKey', 'ReplaceRecoveryCodes'],
  ...['ChangePassword', 'DeleteSession', 'RevokeAllSessions', 'LogoutSso', 'Logout'],
];

/** Streams over gRPC, each with its own test of what it may name. */
const streams = ['Connect', 'IngestStream', 'ImportDevices', 'ExportDevices', 'UploadArtifact'];

interface CallResult {
  readonly what: string;
  readonly code: string;
  readonly text: string;
  readonly sent: string;
}

describe('every operation, as somebody else', function () {
  this.timeout(600_000);
  let test: TestDatabase;
  let processes: TestProcesses;
  let process: TestProcess;
  let client: Client;
  const ids: Record<string, string> = {};
  /** What only the victim's rows contain. */
  let secrets: ReadonlySet<string>;
  const routes = new RouteTable(publicServices).routes.toSorted(
    (left, right) => ofCaller.indexOf(left.method.name) - ofCaller.indexOf(right.method.name),
  );

  const query = async (text: string, values: unknown[] = []) =>
    (await test.database.system((tx) => tx.query<Record<string, unknown>>(text, values))).rows;
  const tables = async (): Promise<readonly TenantTable[]> =>
    (await test.database.system((tx) => tenantTables(tx))).tables.filter(({ name }) => !/_\d+$/.test(name));
  /** The rows of the victim that existed before anybody was added to it, by table. */
  const rowsOfVictim = async (): Promise<Map<string, string[]>> => {
    const found = new Map<string, string[]>();
    for (const table of await tables()) {
      const rows = await query(`SELECT t::text AS row FROM ${table.name} t WHERE ${ofTenant(table, 't')} ORDER BY 1`, [
        victim,
      ]);
      found.set(
        table.name,
        rows.map((row) => String(row['row'])),
      );
    }
    return found;
  };

  before(async () => {
    test = await createTestDatabase();
    await fillTenant(test.database, victim);
    await insertTenant(test.database, stranger);
    await query('UPDATE tenants SET rate_limit_per_minute = 1000000');
    // Otherwise a loop of the process cancels it during the walk.
    await query(`UPDATE resource_intents SET deadline = now() + interval '1 day'`);
    for (const [name, [table, column]] of Object.entries(idSources)) {
      const rows = await query(`SELECT ${column}::text AS id FROM ${table} WHERE tenant_id = $1 LIMIT 1`, [victim]);
      ids[name] = String(rows[0]!['id']);
    }
    secrets = new Set([...(await rowsOfVictim()).values()].flat().flatMap((row) => row.match(uuid) ?? []));
    expect(secrets.size).to.be.above(50);
    processes = await TestProcesses.create(test.url);
    process = await processes.start({});
    client = new Client(`127.0.0.1:${process.ports.grpcPort}`, credentials.createInsecure());
  });
  after(async () => {
    client?.close();
    await processes?.kill();
    await processes?.remove();
    await test?.drop();
  });

  const keyOf = async (
    tenantId: string,
    scopes: readonly string[],
    deviceId: string | null = null,
  ): Promise<string> => {
    const { key, hash, prefix, last4 } = mintKey();
    await query(
      `INSERT INTO api_keys (key_id, tenant_id, device_id, name, key_hash, prefix, last4, scopes)
       VALUES ($1, $2, $3, 'walk', $4, $5, $6, $7)`,
      [newId(), tenantId, deviceId, hash, prefix, last4, deviceId ? [] : [...scopes]],
    );
    return key;
  };
  const userOf = async (tenantId: string, role: 'tenant_admin' | 'operator' | 'viewer', customerId?: string) => {
    const [userId, email] = [newId(), `${newId()}@walk.test`];
    const user = {
      userId,
      tenantId,
      email,
      name: '',
      role,
      passwordHash: await hashPassword(password),
      disabled: false,
    };
    await test.database.system((tx) => insertUser(tx, user));
    if (customerId) await query('UPDATE users SET customer_id = $2 WHERE user_id = $1', [userId, customerId]);
    const signIn = async (): Promise<string> => {
      const response = await fetch(`${base()}/api/v1/auth/login`, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify({ email, password, tenant_id: tenantId }),
      });
      return ((await response.json()) as { access_token: string }).access_token;
    };
    return { userId, signIn };
  };
  const base = (): string => `http://127.0.0.1:${process.ports.restPort}`;

  /** Replaces the sample ids in a request by those of the victim. */
  const withIds = (value: JsonValue): JsonValue => {
    let text = JSON.stringify(value);
    for (const [name, sample] of Object.entries(sampleIds)) text = text.replaceAll(sample, ids[name] ?? sample);
    return JSON.parse(text) as JsonValue;
  };
  /** The fields of a request that name something: those in the path, and the others. */
  const requestOf = ({ method, template }: Route) => {
    const inPath = new Set(template.variables.map(({ fieldPath }) => fieldPath.join('.')));
    for (const name of inPath)
      expect(ids, `a variable of ${method.name} that the walk does not know`).to.have.property(name);
    const named = method.input.fields.filter(
      ({ name, fieldKind, scalar, oneof }, _, all) =>
        fieldKind === 'scalar' &&
        scalar === ScalarType.STRING &&
        name in ids &&
        // Of fields that exclude each other, the first.
        (!oneof || all.find((field) => field.oneof === oneof)!.name === name),
    );
    const fields = Object.fromEntries(named.map(({ name }) => [name, ids[name]!]));
    return { inPath, fields, body: withIds(requestExamples[method.name] ?? {}) as JsonObject };
  };
  const overRest = async (route: Route, credential: string): Promise<CallResult> => {
    const { inPath, fields, body } = requestOf(route);
    const path = route.path.replace(/\{(\w+)[^}]*\}/g, (_, name: string) => encodeURIComponent(ids[name]!));
    const isRead = route.body === '';
    const filters = new URLSearchParams(Object.entries(fields).filter(([name]) => !inPath.has(name))).toString();
    const sent = isRead ? `${path}?${filters}` : `${path} ${JSON.stringify(body)}`;
    const response = await fetch(`${base()}${path}${isRead && filters !== '' ? `?${filters}` : ''}`, {
      method: route.verb,
      redirect: 'manual',
      headers: { 'content-type': 'application/json', ...(credential && { 'x-api-key': credential }) },
      ...(isRead ? {} : { body: JSON.stringify(body) }),
      signal: AbortSignal.timeout(30_000),
    });
    const text = `${await response.text()} ${[...response.headers.values()].join(' ')}`;
    return { what: `REST ${route.verb} ${route.path}`, code: String(response.status), text, sent };
  };
  const overGrpc = async ({ method, ...route }: Route, credential: string): Promise<CallResult> => {
    const { fields, body } = requestOf({ method, ...route });
    const { path, requestSerialize, responseDeserialize } = grpcService(method.parent)[method.name]!;
    const mask = Object.keys(body).map((name) => name.replace(/_(.)/g, (_, letter: string) => letter.toUpperCase()));
    const request = { ...body, ...fields, ...(hasUpdateMask(method.input) && { update_mask: mask.join() }) };
    const message = decoded(method, request);
    const metadata = new Metadata();
    if (credential !== '') metadata.set('x-api-key', credential);
    const [code, text] = await new Promise<[string, string]>((resolve) => {
      const options = { deadline: Date.now() + 30_000 };
      client.makeUnaryRequest(
        path,
        requestSerialize,
        responseDeserialize,
        message,
        metadata,
        options,
        (error: ServiceError | null, response) =>
          resolve(error ? [String(error.code), error.details] : ['0', toJsonString(method.output, response as never)]),
      );
    });
    return { what: `gRPC ${method.name}`, code, text, sent: JSON.stringify(request) };
  };
  const decoded = (method: DescMethod, request: JsonObject) => {
    try {
      return fromJson(method.input, request, { ignoreUnknownFields: true });
    } catch {
      return create(method.input);
    }
  };

  /** Makes every call, each on both ports. `credential` is called before those that end the access of their caller. */
  const walk = async (signIn: () => Promise<string>): Promise<readonly CallResult[]> => {
    const results: CallResult[] = [];
    let credential = await signIn();
    for (const route of routes) {
      const isUnary = route.method.methodKind === 'unary';
      if (!isUnary) expect(streams, 'a stream that the walk does not know').to.include(route.method.name);
      if (ofCaller.includes(route.method.name)) {
        for (const call of [overRest, overGrpc]) results.push(await call(route, (credential = await signIn())));
      } else {
        const grpc = isUnary ? [overGrpc(route, credential)] : [];
        results.push(...(await Promise.all([overRest(route, credential), ...grpc])));
      }
    }
    expect(results.filter(({ text }) => text.includes('update_mask is required'))).to.deep.equal([]);
    return results;
  };
  /** Fails if a response contains something of the victim that the request did not. */
  const expectNothingOf = (results: readonly CallResult[], allowed: readonly string[] = []): void => {
    // The caller's own log has what the caller has sent before.
    const sentBefore = results.map(({ sent }) => sent).join('\n');
    for (const { what, text, sent: sentNow } of results) {
      const sent = /audit-events|ListAuditEvents/.test(what) ? sentBefore : sentNow;
      const leaked = (text.match(uuid) ?? []).filter(
        (one) => secrets.has(one) && !sent.includes(one) && !allowed.includes(one),
      );
      expect(leaked, `${what}: ${text.slice(0, 300)}`).to.deep.equal([]);
    }
  };
  const succeeded = (results: readonly CallResult[]): string[] =>
    results.filter(({ code }) => code === '0' || /^2/.test(code)).map(({ what }) => what);
  const isRefused = (code: string): boolean => ['401', '16'].includes(code);

  /** Runs an attack, and fails if it has removed or changed a row of the victim that nothing else changes. */
  const withoutChange = async (attack: () => Promise<void>): Promise<void> => {
    const first = await rowsOfVictim();
    await sleep(1500);
    const before = await rowsOfVictim();
    // What the loops of the process change by themselves.
    const busy = [...before].filter(([name, rows]) => rows.join() !== first.get(name)!.join()).map(([name]) => name);
    await attack();
    const after = await rowsOfVictim();
    for (const [name, rows] of before) {
      if (busy.includes(name) || own.includes(name)) continue;
      const kept = new Set(after.get(name));
      // The devices of the walk are called own, and change their own status.
      const changed = rows.filter((row) => !kept.has(row) && !row.includes(',own,'));
      expect(changed, `changed rows of ${name}`).to.deep.equal([]);
    }
  };
  /** Tables that the sign-ins and refused attempts of the walk, and the loops of the process, change. */
  const own = [
    ...[
      'audit_pending',
      'audit_events',
      'audit_heads',
      'outbox',
      'sessions',
      'refresh_tokens',
      'api_keys',
      'rate_windows',
    ],
    ...['rule_points', 'rule_actions', 'webhook_deliveries', 'device_count_changes', 'device_counts', 'tenants'],
    ...[
      'telemetry_points',
      'anchor_batches',
      'telemetry_quotas',
      'telemetry_days',
      'telemetry_usage',
      'telemetry_tenant_usage',
      'proven_leaves',
      'anchor_usage',
      'device_commands',
    ],
  ];

  it('as an administrator and a key of another tenant', async () => {
    const admin = await userOf(stranger, 'tenant_admin');
    const key = await keyOf(stranger, allScopes);
    await withoutChange(async () => {
      for (const signIn of [async () => key, admin.signIn]) {
        const results = await walk(signIn);
        expectNothingOf(results);
        expect(succeeded(results).length).to.be.above(40);
      }
      // Whatever names something of the victim in its path is refused.
      const named = routes.filter(({ template, access }) => {
        const isOwn = template.variables.some(({ fieldPath }) => fieldPath[0] === 'email');
        return template.variables.length > 0 && !isOwn && access.callers.includes(AccessCaller.SERVICE);
      });
      expect(named.length).to.be.above(60);
      const reached = [];
      for (const route of named) {
        const { code, what } = await overRest(route, key);
        if (/^2/.test(code)) reached.push(what);
      }
      expect(reached).to.deep.equal([]);
    });
  });

  it('as a viewer, who changes nothing', async () => {
    const viewer = await userOf(victim, 'viewer');
    await withoutChange(async () => {
      const results = await walk(viewer.signIn);
      const writing = new Set(
        routes.filter(({ access }) => access.scope.endsWith(':write')).map(({ method }) => method.name),
      );
      const allowed = results
        .filter(({ what }) => writing.has(what.split(' ').at(-1)!))
        .filter(({ code }) => code === '0');
      expect(allowed.map(({ what }) => what)).to.deep.equal([]);
      expect(succeeded(results).length).to.be.above(40);
      expect(results.filter(({ code }) => isRefused(code)).length).to.be.below(20);
    });
  });

  it('as a device, which reaches nothing but itself', async () => {
    const deviceId = newId();
    await query(`INSERT INTO devices (tenant_id, device_id, name, hardware_id) VALUES ($1, $2, 'own', $3)`, [
      ...[victim, deviceId, newId()],
    ]);
    const key = await keyOf(victim, [], deviceId);
    await withoutChange(async () => {
      const results = await walk(async () => key);
      expectNothingOf(results);
      expect(results.filter(({ code }) => isRefused(code)).length).to.be.below(20);
    });
  });

  it('as a user whose scopes are limited to a device group', async () => {
    const [deviceId, groupId, userGroup] = [newId(), newId(), newId()];
    await query(`INSERT INTO devices (tenant_id, device_id, name, hardware_id) VALUES ($1, $2, 'own', $3)`, [
      ...[victim, deviceId, newId()],
    ]);
    await query(`INSERT INTO device_groups (tenant_id, group_id, name) VALUES ($1, $2, 'own')`, [victim, groupId]);
    await query('INSERT INTO device_group_members (tenant_id, group_id, device_id) VALUES ($1, $2, $3)', [
      ...[victim, groupId, deviceId],
    ]);
    const user = await userOf(victim, 'viewer');
    await query(
      `INSERT INTO user_groups (tenant_id, group_id, name, scopes, device_group_ids) VALUES ($1, $2, 'limited', $3, $4)`,
      [victim, userGroup, [...allScopes], [groupId]],
    );
    await query('INSERT INTO user_group_members (tenant_id, group_id, user_id) VALUES ($1, $2, $3)', [
      ...[victim, userGroup, user.userId],
    ]);
    await query('UPDATE users SET role = NULL WHERE user_id = $1', [user.userId]);
    await withoutChange(async () => {
      const results = await walk(user.signIn);
      expectNothingOf(results);
      expect(results.filter(({ code }) => isRefused(code)).length).to.be.below(20);
    });
  });

  it('as a user of a customer', async () => {
    const customerId = newId();
    await query(`INSERT INTO customers (tenant_id, customer_id, name) VALUES ($1, $2, 'own')`, [victim, customerId]);
    for (const role of ['viewer', 'operator'] as const) {
      const user = await userOf(victim, role, customerId);
      await withoutChange(async () => {
        const results = await walk(user.signIn);
        expectNothingOf(results);
        expect(results.filter(({ code }) => isRefused(code)).length).to.be.below(20);
      });
    }
  });

  it('over /ws, on every channel, as another tenant', async () => {
    const subscriptions: Record<ClientMessage['channel'], readonly JsonObject[]> = {
      'telemetry.live': [
        { device_id: ids['device_id']! },
        { device_ids: [ids['device_id']!] },
        { group_id: ids['group_id']! },
      ],
      rollouts: [{ rollout_id: ids['rollout_id']! }, {}],
      alarms: [{}],
      events: [{}],
    };
    const token = await (await userOf(stranger, 'tenant_admin')).signIn();
    const socket = new WebSocket(`ws://127.0.0.1:${process.ports.restPort}/ws?token=${token}`);
    const received: string[] = [];
    socket.on('message', (data: Buffer) => received.push(data.toString()));
    await new Promise((resolve, reject) => socket.on('open', resolve).on('error', reject));
    let sent = '';
    for (const [channel, targets] of Object.entries(subscriptions)) {
      for (const target of targets) {
        const message = JSON.stringify({ subscribe: channel, ...target });
        sent += message;
        socket.send(message);
      }
    }
    // Something happens to the victim.
    const key = await keyOf(victim, allScopes);
    await fetch(`${base()}/api/v1/alarms`, {
      method: 'POST',
      headers: { 'x-api-key': key, 'content-type': 'application/json' },
      body: JSON.stringify({ device_id: ids['device_id'], type: 'walk', severity: 'ALARM_SEVERITY_MAJOR' }),
    });
    await sleep(2000);
    socket.close();
    expect(received.length).to.be.above(3);
    expectNothingOf([{ what: '/ws', code: '0', text: received.join('\n'), sent }]);
    expect(received.filter((text) => text.includes('"alarm_id"'))).to.deep.equal([]);
    expect(received.filter((text) => text.includes(ids['device_id']!) && !text.includes('error'))).to.deep.equal([]);
  });

  it('over MQTT, on every topic, as a device of another tenant and another device of the same', async () => {
    const { device_id: device, correlation_id: command, package_id: packageId } = ids;
    const messages: Record<Action['kind'], readonly (readonly [topic: string, payload: unknown])[]> = {
      telemetry: [
        ['telemetry', { device_id: device, numeric_values: { stolen: 1 } }],
        [`gateway/${device}/telemetry`, { numeric_values: { stolen: 1 } }],
      ],
      response: [
        [`commands/${command}/response`, { status: 'successful', device_id: device }],
        [`gateway/${device}/commands/${command}/response`, { status: 'successful' }],
      ],
      attributes: [['attributes', { stolen: true, device_id: device }]],
      getAttributes: [['attributes/get/1', { device_id: device }]],
      getUpdate: [['ota/get/1', { device_id: device }]],
      getChunk: [[`ota/${packageId}/chunk/0/100`, {}]],
      report: [['ota/report', { device_id: device, package_id: packageId, status: 'installed' }]],
      claim: [['provision', { provision_key: 'x', hardware_id: 'y' }]],
    };
    for (const tenantId of [stranger, victim]) {
      const deviceId = newId();
      await query(`INSERT INTO devices (tenant_id, device_id, name, hardware_id) VALUES ($1, $2, 'own', $3)`, [
        ...[tenantId, deviceId, newId()],
      ]);
      const key = await keyOf(tenantId, [], deviceId);
      await withoutChange(async () => {
        for (const [topic, payload] of Object.values(messages).flat()) {
          // A refused message may end the connection.
          const options = { username: deviceId, password: key, protocolVersion: 5 as const, reconnectPeriod: 0 };
          const peer = await new TestClient(`mqtt://127.0.0.1:${process.ports.mqttPort}`, options).connected();
          expect(await peer.publish('telemetry', { numeric_values: { own: 1 } })).to.be.below(0x80);
          await peer.publish(topic, payload, 0).catch(() => undefined);
          await sleep(200);
          peer.cut();
        }
      });
      const stolen = await query(`SELECT FROM telemetry_points WHERE device_id = $1 AND payload LIKE '%stolen%'`, [
        device,
      ]);
      expect(stolen).to.deep.equal([]);
    }
  });
});
