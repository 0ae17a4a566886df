// The previous release and this one side by side on one database (`make compatibility`): as in a rolling upgrade, the new
// one migrates the schema while the old one serves, and as in a rollback, the old one starts with the new schema.
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect } from 'chai';
import { mintDeviceKey } from '../../apiserver/src/auth/device-credentials/device-keys.ts';
import { insertTenant } from '../../apiserver/src/auth/testing/test-fixtures.ts';
import { newSigningKey } from '../../apiserver/src/auth/testing/test-platform.ts';
import { pendingMigrations } from '../../apiserver/src/platform/database/migrate.ts';
import { newId } from '../../apiserver/src/platform/ids.ts';
import { eventually } from '../../apiserver/src/platform/testing/eventually.ts';
import { createTestDatabase, type TestDatabase } from '../../apiserver/src/platform/testing/test-database.ts';
import { fsck } from '../../apiserver/src/telemetry/testing/fsck.ts';
import { TestProcesses } from '../../apiserver/src/testing/test-process.ts';
import { Rest } from '../../dev/clients/rest.ts';
import { checkOut, previousRelease } from './testing/previous-release.ts';

const platform = { email: 'platform@kellet.test', password: 'correct horse battery staple' };
const tenantId = 'acme';

/** A device that sends and reads through one process until it is stopped. Every request must succeed. */
class Traffic {
  readonly failures: string[] = [];
  readonly acknowledged: string[] = [];
  private isOn = true;
  private readonly done: Promise<void>;

  constructor(base: string, deviceId: string, key: string, firstTime: number) {
    const device = new Rest(base, key);
    const once = async (time: number): Promise<void> => {
      const timestamp = new Date(time).toISOString();
      const points = [{ device_id: deviceId, timestamp, numeric_values: { level: time % 1000 } }];
      const sent = await device.send<{ accepted: number }>('POST', '/api/v1/telemetry', { body: { points } });
      if (sent.status === 200 && sent.body.accepted === 1) this.acknowledged.push(timestamp);
      else this.failures.push(`POST telemetry: ${sent.status} ${JSON.stringify(sent.body)}`);
      for (const path of [`devices/${deviceId}/rpc/pending`, `devices/${deviceId}/attributes`]) {
        const { status, body } = await device.send('GET', `/api/v1/${path}`);
        if (status !== 200) this.failures.push(`GET ${path}: ${status} ${JSON.stringify(body)}`);
      }
    };
    this.done = (async () => {
      for (let time = firstTime; this.isOn; time += 1000) {
        await once(time).catch((error: Error) => this.failures.push(error.message));
        await new Promise((resolve) => setTimeout(resolve, 20));
      }
    })();
  }

  /** Resolves after so many more acknowledged points. */
  async more(count: number): Promise<void> {
    const before = this.acknowledged.length;
    await eventually(() => this.acknowledged.length >= before + count || this.failures.length > 0, 60_000);
  }

  async stop(): Promise<void> {
    this.isOn = false;
    await this.done;
  }
}

describe('the previous release and this one on one database', function () {
  this.timeout(240_000);
  const folder = mkdtempSync(join(tmpdir(), 'kellet-previous-'));
  const settings = {
    KELLET_JWT_PRIVATE_KEY: newSigningKey(),
    KELLET_PLATFORM_ADMIN_EMAIL: platform.email,
    KELLET_PLATFORM_ADMIN_PASSWORD: platform.password,
  };
  const commit = previousRelease();
  let test: TestDatabase;
  let oldProcesses: TestProcesses;
  let newProcesses: TestProcesses;
  const traffics: Traffic[] = [];
  const deviceId = newId();
  let key: string;

  const restOf = (ports: { restPort: number }) => `http://127.0.0.1:${ports.restPort}`;
  const traffic = (base: string): Traffic => {
    const one = new Traffic(base, deviceId, key, Date.UTC(2026, 0, 1 + traffics.length));
    traffics.push(one);
    return one;
  };
  const signedIn = (base: string) => Rest.login(base, platform);

  before(async () => {
    checkOut(commit, folder);
    test = await createTestDatabase({ isEmpty: true });
    oldProcesses = await TestProcesses.create(test.url, join(folder, 'apiserver/src/main.ts'));
    newProcesses = await TestProcesses.create(test.url);
  });
  after(async () => {
    for (const one of traffics) await one.stop();
    await oldProcesses?.kill();
    await newProcesses?.kill();
    await oldProcesses?.remove();
    await newProcesses?.remove();
    await test?.drop();
    rmSync(folder, { recursive: true });
  });

  it(`serve devices and users without a failed request while this one migrates what ${commit.slice(0, 10)} has made`, async () => {
    const old = await oldProcesses.start(settings);
    const pending = await pendingMigrations(test.database);
    expect(pending, 'migrations since the previous release').not.to.deep.equal([]);
    console.log(`    ${pending.join(', ')}`);
    await insertTenant(test.database, tenantId);
    key = await test.database.tenant(tenantId, async (tx) => {
      await tx.query(`INSERT INTO devices (tenant_id, device_id, name, hardware_id) VALUES ($1, $2, 'a', 'a')`, [
        tenantId,
        deviceId,
      ]);
      return mintDeviceKey(tx, tenantId, deviceId);
    });
    const user = await signedIn(restOf(old.ports));
    const before = traffic(restOf(old.ports));
    await before.more(50);
    // The schema changes under the old process.
    const next = await newProcesses.start(settings);
    expect(await pendingMigrations(test.database)).to.deep.equal([]);
    const after = traffic(restOf(next.ports));
    await Promise.all([before.more(50), after.more(50)]);
    // A token of the old process is good for the new one, and the other way round.
    for (const [base, token] of [
      [restOf(next.ports), user.token],
      [restOf(old.ports), (await signedIn(restOf(next.ports))).token],
    ] as const) {
      expect((await new Rest(base, token).send('GET', '/api/v1/tenants')).status).to.equal(200);
    }
    expect(before.failures).to.deep.equal([]);
    expect(after.failures).to.deep.equal([]);
  });

  it('start again with the new schema, the previous one too, and migrate nothing twice', async () => {
    for (const one of traffics) await one.stop();
    await Promise.all([oldProcesses.kill(), newProcesses.kill()]);
    const again = await newProcesses.start(settings);
    const rolledBack = await oldProcesses.start(settings);
    const both = [traffic(restOf(again.ports)), traffic(restOf(rolledBack.ports))];
    await Promise.all(both.map((one) => one.more(30)));
    expect(both.flatMap(({ failures }) => failures)).to.deep.equal([]);
  });

  it('have every acknowledged point between them, in one chain', async () => {
    for (const one of traffics) await one.stop();
    const { rows } = await test.database.system((tx) =>
      tx.query<{ time: bigint }>('SELECT time FROM telemetry_points WHERE device_id = $1', [deviceId]),
    );
    const stored = new Set(rows.map(({ time }) => new Date(Number(time / 1_000_000n)).toISOString()));
    const acknowledged = traffics.flatMap((one) => one.acknowledged);
    expect(acknowledged.filter((timestamp) => !stored.has(timestamp))).to.deep.equal([]);
    expect(acknowledged.length).to.be.above(200);
    await oldProcesses.kill();
    await newProcesses.kill();
    expect((await fsck(test.database)).problems).to.deep.equal([]);
  });
});
