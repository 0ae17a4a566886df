import { create } from '@bufbuild/protobuf';
import { provisionKeyBinding } from '@kellet/crds';
import { Kind, RemoveRequestSchema } from '@kellet/proto/es/kellet/control/v1/control_pb.ts';
import { ClaimDeviceRequestSchema } from '@kellet/proto/es/kellet/v1/provisioning_pb.ts';
import { expect } from 'chai';
import { deviceCredentials, insertTenant } from '../../auth/testing/test-fixtures.ts';
import type { Change, ChangeCoalescer } from '../../control/changes.ts';
import type { Dispatcher } from '../../control/dispatcher.ts';
import { AuditTrail } from '../../platform/audit/audit-trail.ts';
import { systemClock } from '../../platform/clock.ts';
import { KelletError } from '../../platform/errors.ts';
import type { OutboxRelay } from '../../platform/events/outbox.ts';
import { newId } from '../../platform/ids.ts';
import { createLogger } from '../../platform/observability/logger.ts';
import { createMetrics } from '../../platform/observability/metrics.ts';
import { internalContext, publicCaller } from '../../platform/rpc.ts';
import { createTestDatabase, type TestDatabase } from '../../platform/testing/test-database.ts';
import { RolloutMembership } from '../ota/rollouts/membership.ts';
import { claimMethod } from './claims.ts';
import { mintProvisionKey, provisionKeyHash } from './provision-key.ts';
import { applyProfile, applyTemplate, provisioningDispatcher } from './testing/test-fixtures.ts';

describe('claims', () => {
  let test: TestDatabase;
  let dispatcher: Dispatcher;
  let audit: AuditTrail;
  let claimDevice: ReturnType<typeof claimMethod>['claimDevice'];
  const released: bigint[] = [];
  const marked: Change[] = [];

  before(async () => {
    test = await createTestDatabase();
    dispatcher = provisioningDispatcher(test.database);
    await insertTenant(test.database, 'acme');
    await insertTenant(test.database, 'other');
    await insertTenant(test.database, 'small', { quotas: { devices: 1 } });
    for (const tenantId of ['acme', 'other', 'small']) await applyProfile(dispatcher, { tenantId, name: 'pumps' });
    const { database } = test;
    audit = new AuditTrail({ database, clock: systemClock, logger: createLogger('silent'), metrics: createMetrics() });
    ({ claimDevice } = claimMethod({
      database: test.database,
      // The relay publishes to the broker; a claim only releases one event.
      outbox: {
        release: async (positions: readonly bigint[]) => void released.push(...positions),
      } as unknown as OutboxRelay,
      changes: { mark: (change: Change) => void marked.push(change) } as unknown as ChangeCoalescer,
      clock: systemClock,
      logger: createLogger('silent'),
      metrics: createMetrics(),
      membership: new RolloutMembership(systemClock),
      credentials: deviceCredentials(),
      audit,
    }));
  });
  after(async () => {
    await audit.close();
    await test.drop();
  });

  const claim = (key: string, hardwareId: string, context = internalContext(publicCaller)) => {
    const request = { provisionKey: key, hardwareId, deviceName: `device ${hardwareId}` };
    return claimDevice(create(ClaimDeviceRequestSchema, request), context) as Promise<{
      deviceId: string;
      apiKey: string;
    }>;
  };
  const outcome = (key: string, hardwareId: string) =>
    claim(key, hardwareId).then(
      (response) => response,
      (error: unknown) => {
        if (!(error instanceof KelletError)) throw error;
        return { code: error.code, message: error.message };
      },
    );
  const denied = { code: 'PERMISSION_DENIED', message: 'the provision key does not allow this claim' };
  /** Creates a separate template with its own key. */
  const template = async (spec: Parameters<typeof applyTemplate>[3] = {}, tenantId = 'acme') => {
    const key = mintProvisionKey();
    const name = newId();
    const { id, refusal } = await applyTemplate(dispatcher, { tenantId, name }, key, spec);
    expect(refusal).to.equal(undefined);
    return { key, name, id, tenantId };
  };
  const rows = async <Row extends Record<string, unknown>>(text: string, ...values: unknown[]): Promise<Row[]> =>
    (await test.database.system((tx) => tx.query<Row>(text, values))).rows;
  const provisioned = (hardwareId: string) =>
    rows<{ position: bigint; payload: string; tenant_id: string }>(
      `SELECT position, payload, tenant_id FROM outbox
       WHERE subject = 'device.provisioned' AND payload::json->'data'->>'hardware_id' = $1`,
      hardwareId,
    );
  const claimsOf = async (id: string) =>
    (
      await rows<{ claims: number }>(
        'SELECT coalesce(sum(claims), 0)::int4 AS claims FROM provisioning_claims WHERE template_id = $1',
        id,
      )
    )[0]!.claims;

  describe('never assign a device to a tenant that copied the hash of its key', () => {
    const hashOf = (key: string) => provisionKeyHash(key).toString('hex');
    /** Applies a template in the thief's tenant with the values of acme's manifest or invented ones. */
    const steal = (key: string, keyBinding: string, name = newId()) =>
      applyTemplate(dispatcher, { tenantId: 'other', name }, 'not the key', {
        keySha256: hashOf(key),
        keyBinding,
      });
    const tenantOf = async (deviceId: string) =>
      (await rows<{ tenant_id: string }>('SELECT tenant_id FROM devices WHERE device_id = $1', deviceId))[0]?.tenant_id;
    const bindings: [string, (key: string) => string][] = [
      ['no binding', () => ''],
      ["the owner's binding", (key) => provisionKeyBinding('acme', key)],
      ['an invented binding', () => provisionKeyBinding('other', 'a guess')],
    ];
    for (const [what, bindingOf] of bindings) {
      it(`rejects devices before the owner exists and assigns them to the owner afterwards: ${what}`, async () => {
        const key = mintProvisionKey();
        await steal(key, bindingOf(key));
        expect(await outcome(key, `${what} early`)).to.deep.equal(denied);
        const { refusal } = await applyTemplate(dispatcher, { tenantId: 'acme', name: newId() }, key);
        expect(refusal).to.equal(undefined);
        expect(await tenantOf((await claim(key, `${what} early`)).deviceId)).to.equal('acme');
      });

      it(`keeps the owner's devices with the owner: ${what}`, async () => {
        const { key, name } = await template();
        await steal(key, bindingOf(key));
        expect(await tenantOf((await claim(key, `${what} late`)).deviceId)).to.equal('acme');
        // The owner's template does not have to exist.
        const meta = { tenantId: 'acme', namespace: 'kellet-acme', name, uid: 'uid' };
        await dispatcher.remove(create(RemoveRequestSchema, { meta, kind: Kind.PROVISIONING_TEMPLATE }));
        expect(await outcome(key, `${what} last`)).to.deep.equal(denied);
      });
    }

    it('leaves a key used before bindings existed with its tenant, until another proves to have it', async () => {
      const { key } = await template();
      await test.database.system((tx) =>
        tx.query('UPDATE provision_keys SET binding = NULL WHERE key_hash = $1', [provisionKeyHash(key)]),
      );
      await steal(key, provisionKeyBinding('other', 'a guess'), 'found again');
      expect(await tenantOf((await claim(key, 'unbound')).deviceId)).to.equal('acme');
      expect((await steal(key, provisionKeyBinding('other', key), 'found again')).refusal).to.equal(undefined);
      expect(await tenantOf((await claim(key, 'proven')).deviceId)).to.equal('other');
    });

    it('leaves a key known to several tenants with the first', async () => {
      const { key } = await template();
      expect((await applyTemplate(dispatcher, { tenantId: 'other', name: newId() }, key)).refusal).to.equal(undefined);
      expect(await tenantOf((await claim(key, 'known to both')).deviceId)).to.equal('acme');
    });
  });

  it('creates the device in the tenant of the key, with its profile, its groups and an API key', async () => {
    const group = newId();
    await test.database.system((tx) =>
      tx.query(`INSERT INTO device_groups (tenant_id, group_id, name) VALUES ('acme', $1, 'group')`, [group]),
    );
    const { key, id, name } = await template({ defaultGroups: [group] });
    const response = await claim(key, 'first');
    expect(response.apiKey).to.match(/^sk_live_/);
    const [device] = await rows('SELECT * FROM devices WHERE device_id = $1', response.deviceId);
    expect(device).to.include({
      tenant_id: 'acme',
      hardware_id: 'first',
      name: 'device first',
      credential_type: 'api_key',
    });
    const [profile] = await rows<{ profile_id: string }>(`SELECT profile_id FROM profiles WHERE tenant_id = 'acme'`);
    expect(device!['profile_id']).to.equal(profile!.profile_id);
    expect(
      await rows('SELECT group_id FROM device_group_members WHERE device_id = $1', response.deviceId),
    ).to.deep.equal([{ group_id: group }]);
    expect(await claimsOf(id)).to.equal(1);
    expect(marked.map((change) => change.name)).to.include(name);
  });

  it('publishes an event after the response, and none for a repeat', async () => {
    const { key } = await template();
    let respond: () => void = () => undefined;
    const context = internalContext(publicCaller, { afterResponse: (run) => (respond = run) });
    const response = await claim(key, 'announced', context);
    const [event] = await provisioned('announced');
    expect(JSON.parse(event!.payload)).to.deep.include({ type: 'device.provisioned', tenantid: 'acme' });
    expect((JSON.parse(event!.payload) as { data: object }).data).to.include({ device_id: response.deviceId });
    expect(released).not.to.include(event!.position);
    respond();
    expect(released).to.include(event!.position);

    expect(await claim(key, 'announced')).to.deep.equal({ deviceId: response.deviceId, apiKey: '' });
    expect(await provisioned('announced')).to.have.length(1);
  });

  it('holds the event back for a second if the end of the response is not reported, then leaves it to the sweep', async () => {
    const { key } = await template();
    await claim(key, 'held', internalContext(publicCaller, { afterResponse: () => undefined }));
    const [held] = await rows<{ milliseconds: number }>(
      `SELECT extract(epoch FROM not_before - now()) * 1000 AS milliseconds FROM outbox
       WHERE payload::json->'data'->>'hardware_id' = 'held'`,
    );
    expect(Number(held!.milliseconds)).to.be.within(1, 1000);
  });

  it('returns the same error for invalid, disabled, expired, used and mismatching claims', async () => {
    const disabled = await template({ suspended: true });
    const expired = await template({ expiresInSeconds: 60 });
    await test.database.system((tx) =>
      tx.query(`UPDATE provision_keys SET first_seen_at = now() - interval '61 seconds' WHERE key_hash = $1`, [
        provisionKeyHash(expired.key),
      ]),
    );
    const used = await template({ keyUse: 'Once' });
    await claim(used.key, 'user');
    const pattern = await template({ hardwareIdPattern: 'AA-*' });
    const cases = [
      [mintProvisionKey(), 'x'],
      [disabled.key, 'x'],
      [expired.key, 'x'],
      [used.key, 'x'],
      [pattern.key, 'x'],
      // The key is checked first, also for a known hardware id.
      [disabled.key, 'user'],
      [expired.key, 'user'],
      [pattern.key, 'user'],
    ] as const;
    for (const [key, hardwareId] of cases) expect(await outcome(key, hardwareId)).to.deep.equal(denied);
    expect(await rows(`SELECT FROM devices WHERE hardware_id = 'x'`)).to.have.length(0);
  });

  it('counts expiry from when the key was first seen, whatever is applied later', async () => {
    const { key, name, tenantId } = await template({ expiresInSeconds: 60 });
    await test.database.system((tx) =>
      tx.query(`UPDATE provision_keys SET first_seen_at = now() - interval '59 seconds' WHERE key_hash = $1`, [
        provisionKeyHash(key),
      ]),
    );
    expect(await outcome(key, 'in-time')).to.have.property('deviceId');
    await test.database.system((tx) =>
      tx.query(`UPDATE provision_keys SET first_seen_at = now() - interval '61 seconds' WHERE key_hash = $1`, [
        provisionKeyHash(key),
      ]),
    );
    await applyTemplate(dispatcher, { tenantId, name, generation: 2n }, key, { expiresInSeconds: 60, keyUse: 'Once' });
    expect(await outcome(key, 'too-late')).to.deep.equal(denied);
  });

  it('accepts a used one-time key from the hardware id that used it, and from no other', async () => {
    const { key, id } = await template({ keyUse: 'Once' });
    const first = await claim(key, 'only');
    expect(await claim(key, 'only')).to.deep.equal({ deviceId: first.deviceId, apiKey: '' });
    expect(await outcome(key, 'second')).to.deep.equal(denied);
    expect(await claimsOf(id)).to.equal(1);
    await test.database.system((tx) =>
      tx.query('UPDATE devices SET deleted_at = now() WHERE device_id = $1', [first.deviceId]),
    );
    expect(await outcome(key, 'only')).to.deep.equal(denied);
  });

  it('does not use up a one-time key by a repeat', async () => {
    const open = await template();
    const known = await claim(open.key, 'known');
    const once = await template({ keyUse: 'Once' });
    expect(await claim(once.key, 'known')).to.deep.equal({ deviceId: known.deviceId, apiKey: '' });
    expect((await claim(once.key, 'fresh')).apiKey).to.match(/^sk_live_/);
  });

  it('remembers a used key when its template is deleted and created again', async () => {
    const key = mintProvisionKey();
    await applyTemplate(dispatcher, { tenantId: 'acme', name: 'again' }, key, { keyUse: 'Once' });
    await claim(key, 'before');
    const meta = { tenantId: 'acme', namespace: 'kellet-acme', name: 'again' };
    await dispatcher.remove(create(RemoveRequestSchema, { meta, kind: Kind.PROVISIONING_TEMPLATE }));
    expect(await outcome(key, 'before')).to.deep.equal(denied);
    const { observed } = await applyTemplate(dispatcher, { tenantId: 'acme', name: 'again', uid: 'new' }, key, {
      keyUse: 'Once',
    });
    expect(observed.value).to.include({ keyState: 'used', claims: 1 });
    expect(await outcome(key, 'after')).to.deep.equal(denied);
  });

  it('gives a new identity to the hardware id of a deleted device', async () => {
    const { key } = await template();
    const first = await claim(key, 'reborn');
    await test.database.system((tx) =>
      tx.query('UPDATE devices SET deleted_at = now() WHERE device_id = $1', [first.deviceId]),
    );
    const second = await claim(key, 'reborn');
    expect(second.deviceId).not.to.equal(first.deviceId);
    expect(second.apiKey).to.match(/^sk_live_/);
  });

  it('isolates tenants: the same hardware id is a separate device in each', async () => {
    const ours = await claim((await template()).key, 'shared');
    const theirs = await claim((await template({}, 'other')).key, 'shared');
    expect(theirs.deviceId).not.to.equal(ours.deviceId);
    expect(theirs.apiKey).to.match(/^sk_live_/);
  });

  it('rejects claims beyond the tenant’s quota of devices', async () => {
    const { key } = await template({}, 'small');
    await claim(key, 'fits');
    expect(await outcome(key, 'too-many')).to.include({ code: 'RESOURCE_EXHAUSTED' });
    expect(await claim(key, 'fits')).to.include({ apiKey: '' });
  });

  it('rejects a claim of a gateway’s child that would be in more device groups than a device can be', async () => {
    const groups = await rows<{ group_id: string }>(
      `INSERT INTO device_groups (tenant_id, group_id, name)
       SELECT 'acme', gen_random_uuid(), 'many ' || n FROM generate_series(1, 101) AS n RETURNING group_id`,
    );
    const [last, ...others] = groups.map((row) => row.group_id);
    const [gatewayId, childId] = [newId(), newId()];
    await rows(
      `INSERT INTO devices (tenant_id, device_id, name, hardware_id, gateway_device_id)
       VALUES ('acme', $1, 'gateway', 'full gateway', NULL), ('acme', $2, 'child', 'full', $1)`,
      ...[gatewayId, childId],
    );
    await rows(
      `INSERT INTO device_group_members (tenant_id, group_id, device_id) SELECT 'acme', unnest($1::uuid[]), $2`,
      ...[others, childId],
    );
    const { key } = await template({ defaultGroups: [last!] });
    expect(await outcome(key, 'full')).to.include({ code: 'RESOURCE_EXHAUSTED' });
    const { key: other } = await template({ defaultGroups: [others[0]!] });
    expect(await claim(other, 'full')).to.include({ deviceId: childId });
  });

  it('rejects the keys of a deleted tenant', async () => {
    await insertTenant(test.database, 'gone');
    await applyProfile(dispatcher, { tenantId: 'gone', name: 'pumps' });
    const { key } = await template({}, 'gone');
    await test.database.system((tx) => tx.query(`UPDATE tenants SET deleted_at = now() WHERE tenant_id = 'gone'`));
    expect(await outcome(key, 'x')).to.deep.equal({ code: 'PERMISSION_DENIED', message: 'tenant deleted' });
  });

  it('reports an invalid field before it checks the key', async () => {
    const wrong = async (fields: object) => {
      const request = { provisionKey: 'k', hardwareId: 'h', deviceName: 'n', ...fields };
      return claimDevice(create(ClaimDeviceRequestSchema, request), internalContext(publicCaller)).then(
        () => 'fine',
        (error: unknown) => (error instanceof KelletError ? `${error.code} ${error.message}` : String(error)),
      );
    };
    expect(await wrong({ provisionKey: '' })).to.equal('INVALID_ARGUMENT provision_key is required');
    expect(await wrong({ hardwareId: '' })).to.equal('INVALID_ARGUMENT hardware_id is required');
    expect(await wrong({ deviceName: '' })).to.equal('INVALID_ARGUMENT device_name is required');
    expect(await wrong({ hardwareId: 'a\0b' })).to.equal('INVALID_ARGUMENT hardware_id must not contain NUL');
    expect(await wrong({ deviceName: 'x'.repeat(257) })).to.include('at most 256');
  });

  describe('a hundred concurrent claims', () => {
    it('of one one-time key create exactly one device', async () => {
      const { key, id } = await template({ keyUse: 'Once' });
      const results = await Promise.all(Array.from({ length: 100 }, (_, index) => outcome(key, `once-${index}`)));
      const won = results.flatMap((result) => ('deviceId' in result ? [result] : []));
      expect(won).to.have.length(1);
      expect(won[0]!.apiKey).to.match(/^sk_live_/);
      expect(results.filter((result) => 'code' in result)).to.have.length(99);
      for (const result of results) if ('code' in result) expect(result).to.deep.equal(denied);
      expect(await rows(`SELECT FROM devices WHERE hardware_id LIKE 'once-%'`)).to.have.length(1);
      expect(await claimsOf(id)).to.equal(1);
    });

    it('with keys of several tenants, known and unknown, create each device in the tenant of its key', async () => {
      const keys = [await template(), await template({}, 'other'), await template()];
      const outcomes = await Promise.all(
        Array.from({ length: 100 }, (_, index) =>
          outcome(keys[index % 4]?.key ?? mintProvisionKey(), `mixed-${index}`).then((found) => ({ index, found })),
        ),
      );
      const devices = await rows<{ hardware_id: string; tenant_id: string }>(
        `SELECT hardware_id, tenant_id FROM devices WHERE hardware_id LIKE 'mixed-%'`,
      );
      const tenants = new Map(devices.map((row) => [row.hardware_id, row.tenant_id]));
      for (const { index, found } of outcomes) {
        const expected = keys[index % 4]?.tenantId;
        expect(tenants.get(`mixed-${index}`), String(index)).to.equal(expected);
        if (expected === undefined) expect(found).to.deep.equal(denied);
        else expect(found).to.include.keys('deviceId', 'apiKey');
      }
    });

    it('of one hardware id create one device, one key and one event', async () => {
      const { key, id } = await template();
      const results = await Promise.all(Array.from({ length: 100 }, () => claim(key, 'same')));
      expect(new Set(results.map((result) => result.deviceId)).size).to.equal(1);
      expect(results.filter((result) => result.apiKey !== '')).to.have.length(1);
      const deviceId = results[0]!.deviceId;
      expect(await rows('SELECT FROM devices WHERE hardware_id = $1', 'same')).to.have.length(1);
      expect(await rows('SELECT FROM api_keys WHERE device_id = $1', deviceId)).to.have.length(1);
      expect(await provisioned('same')).to.have.length(1);
      expect(await claimsOf(id)).to.equal(1);
    });

    it('of one that a gateway has connected take it from the gateway, and give it one key', async () => {
      const groupId = newId();
      await rows(`INSERT INTO device_groups (tenant_id, group_id, name) VALUES ('acme', $1, 'claimed')`, groupId);
      const { key, id } = await template({ defaultGroups: [groupId] });
      const [gatewayId, childId] = [newId(), newId()];
      await rows(
        `INSERT INTO devices (tenant_id, device_id, name, hardware_id, gateway_device_id)
         VALUES ('acme', $1, 'gateway', 'gateway', NULL), ('acme', $2, 'child', 'child', $1)`,
        ...[gatewayId, childId],
      );
      const before = await claimsOf(id);
      const results = await Promise.all(Array.from({ length: 20 }, () => claim(key, 'child')));
      expect(new Set(results.map((result) => result.deviceId))).to.deep.equal(new Set([childId]));
      expect(results.filter((result) => result.apiKey !== '')).to.have.length(1);
      const [device] = await rows(
        `SELECT d.name, gateway_device_id, p.name AS profile, (SELECT count(*)::int4 FROM device_group_members m
           WHERE m.device_id = d.device_id AND m.group_id = $2) AS groups
         FROM devices d JOIN profiles p USING (tenant_id, profile_id) WHERE d.device_id = $1`,
        ...[childId, groupId],
      );
      expect(device).to.deep.equal({ name: 'device child', gateway_device_id: null, profile: 'pumps', groups: 1 });
      expect(await rows('SELECT FROM api_keys WHERE device_id = $1', childId)).to.have.length(1);
      expect(await provisioned('child')).to.have.length(1);
      expect((await claimsOf(id)) - before).to.equal(1);
    });

    it('of a hundred hardware ids create as many devices, all counted', async () => {
      const { key, id } = await template();
      const results = await Promise.all(Array.from({ length: 100 }, (_, index) => claim(key, `many-${index}`)));
      expect(new Set(results.map((result) => result.apiKey)).size).to.equal(100);
      expect(await claimsOf(id)).to.equal(100);
    });
  });
});
