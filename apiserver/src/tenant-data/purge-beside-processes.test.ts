// The purge of a tenant beside processes that served it and still have its credentials, points and batches in memory.
import { expect } from 'chai';
import { insertUser } from '../auth/accounts/account-store.ts';
import { hashPassword } from '../auth/accounts/passwords.ts';
import { mintDeviceKey } from '../auth/device-credentials/device-keys.ts';
import { insertTenant } from '../auth/testing/test-fixtures.ts';
import { MovableClock, testPlatform } from '../auth/testing/test-platform.ts';
import { s3SettingsOf } from '../config/config.ts';
import { ArtifactStores } from '../device-link/ota/artifacts/artifact-stores.ts';
import { sleep } from '../platform/clock.ts';
import { newId } from '../platform/ids.ts';
import { eventually } from '../platform/testing/eventually.ts';
import { createTestDatabase, type TestDatabase } from '../platform/testing/test-database.ts';
import { openColdStorage } from '../telemetry/cold/cold-storage.ts';
import { type TestProcess, TestProcesses } from '../testing/test-process.ts';
import { Purge } from './purge.ts';
import { ResourcePurge } from './resource-purge.ts';
import { tenantTables } from './tenant-tables.ts';
import { emptyCluster } from './testing/empty-cluster.ts';

describe('the purge of a tenant that two processes serve', function () {
  this.timeout(240_000);
  let test: TestDatabase;
  let processes: TestProcesses;
  before(async () => {
    test = await createTestDatabase();
    processes = await TestProcesses.create(test.url);
  });
  after(async () => {
    await processes.kill();
    await processes.remove();
    await test.drop();
  });
  const query = async (text: string, values: unknown[] = []) =>
    (await test.database.system((tx) => tx.query<Record<string, unknown>>(text, values))).rows;
  const placesOf = async (tenantId: string): Promise<string[]> => {
    const places: string[] = [];
    for (const table of (await test.database.system((tx) => tenantTables(tx))).all) {
      const rows = await query(`SELECT FROM ONLY ${table} t WHERE t::text LIKE $1 LIMIT 1`, [`%${tenantId}%`]);
      if (rows.length > 0) places.push(table);
    }
    return places;
  };

  it('leaves nothing, however long they send and read, although they do not hear of the deletion', async () => {
    const tenantId = 'doomed';
    await insertTenant(test.database, tenantId);
    await query('UPDATE tenants SET rate_limit_per_minute = 1000000');
    const deviceId = newId();
    const key = await test.database.tenant(tenantId, async (tx) => {
      await tx.query(`INSERT INTO devices (tenant_id, device_id, name, hardware_id) VALUES ('doomed', $1, 'd', 'd')`, [
        deviceId,
      ]);
      return mintDeviceKey(tx, tenantId, deviceId);
    });
    const user = { userId: newId(), tenantId, email: 'admin@doomed.test', name: '', role: 'tenant_admin' } as const;
    const passwordHash = await hashPassword('correct horse battery');
    await test.database.system((tx) => insertUser(tx, { ...user, passwordHash, disabled: false }));
    const servers: TestProcess[] = [await processes.start({}), await processes.start({})];
    const call = (server: TestProcess, route: string, headers: Record<string, string>, body?: unknown) =>
      fetch(`http://127.0.0.1:${server.ports.restPort}/api/v1/${route}`, {
        method: body === undefined ? 'GET' : 'POST',
        headers: { ...headers, 'content-type': 'application/json' },
        ...(body === undefined ? {} : { body: JSON.stringify(body) }),
      });
    const login = await call(servers[0]!, 'auth/login', {}, { email: user.email, password: 'correct horse battery' });
    const { access_token: token } = (await login.json()) as { access_token: string };
    const bearer = { authorization: `Bearer ${token}` };

    const counts = { accepted: 0, created: 0 };
    let isOver = false;
    // A point, a device and a change of the device, over and over, on both.
    const use = async (server: TestProcess): Promise<void> => {
      for (let turn = 0; !isOver; turn += 1) {
        const point = { device_id: deviceId, timestamp: new Date().toISOString(), numeric_values: { turn } };
        const sent = await call(server, 'telemetry', { 'x-api-key': key }, { points: [point] });
        if (((await sent.json()) as { accepted?: number }).accepted === 1) counts.accepted += 1;
        const made = await call(server, 'devices', bearer, { name: 'x', hardware_id: newId() });
        if (made.status < 300) counts.created += 1;
        await made.text();
        await sleep(50);
      }
    };
    const using = Promise.all(servers.map(use));
    try {
      await eventually(() => counts.accepted > 20 && counts.created > 20, 60_000);
      // Without the notification that a deletion sends.
      await query(`UPDATE tenants SET deleted_at = now(), purge_at = now() WHERE tenant_id = 'doomed'`);
      const { config, logger, audit } = testPlatform(test.database, new MovableClock());
      const artifacts = new ArtifactStores(config.artifactStore, s3SettingsOf(config));
      const purge = new Purge({
        ...{ database: test.database, logger, audit, artifacts },
        cold: openColdStorage(testPlatform(test.database, new MovableClock())),
        resources: new ResourcePurge(emptyCluster, logger),
        broker: { purgeTenant: async () => undefined },
      });
      expect(await purge.purgeTenant(tenantId, false, new AbortController().signal)).to.be.greaterThan(40);
      artifacts.close();
      const before = { ...counts };
      // With the wait before the purge, longer than a process keeps what it writes later: latest values for half a minute.
      await sleep(20_000);
      expect(counts).to.deep.equal(before);
    } finally {
      isOver = true;
      await using;
    }
    for (const server of servers) {
      expect((await call(server, 'devices', bearer)).status).to.equal(401);
      expect((await call(server, 'telemetry', { 'x-api-key': key }, { points: [] })).status).to.equal(401);
      expect(server.child.exitCode).to.equal(null);
    }
    // Its row, and the platform's own records of the purge and of refused attempts.
    const kept = ['tenants', 'audit_pending', 'audit_events', 'audit_heads'];
    expect((await placesOf(tenantId)).filter((place) => !kept.includes(place))).to.deep.equal([]);
    const rows = await query(
      `SELECT 1 FROM audit_events WHERE tenant_id = 'doomed' UNION ALL SELECT 1 FROM audit_heads WHERE tenant_id = 'doomed'`,
    );
    expect(rows, 'events of its own audit log').to.deep.equal([]);
    expect(await placesOf(deviceId)).to.deep.equal([]);
  });
});
