// Tests storage_bytes across two real processes on one database, to which artifacts and points are sent at once.
import { createHash, randomBytes } from 'node:crypto';
import { create } from '@bufbuild/protobuf';
import { ObjectMetaSchema } from '@kellet/proto/es/kellet/control/v1/control_pb';
import { expect } from 'chai';
import { mintKey } from './auth/credentials/api-key-format.ts';
import { insertTenant } from './auth/testing/test-fixtures.ts';
import { Packages } from './device-link/ota/packages/packages.ts';
import { recountRollouts } from './device-link/ota/rollouts/stores/rollout-store.ts';
import { testIntake } from './device-link/ota/testing/test-artifacts.ts';
import { newId } from './platform/ids.ts';
import { createLogger } from './platform/observability/logger.ts';
import { Paging } from './platform/requests/paging.ts';
import { createTestDatabase, type TestDatabase } from './platform/testing/test-database.ts';
import { readTenantUsage } from './telemetry/read/usage.ts';
import { type TestProcess, TestProcesses } from './testing/test-process.ts';

const tenantId = 'acme';
const quota = 350_000;
const artifactBytes = 100_000;
const pointsPerRequest = 100;

interface Outcome {
  readonly status: number;
  readonly body: { readonly message?: string; readonly accepted?: number };
}

describe('storage_bytes across two processes', function () {
  this.timeout(120_000);
  let test: TestDatabase;
  let processes: TestProcesses;
  let servers: readonly TestProcess[];
  let packages: Packages;
  let apiKey: string;
  let deviceId: string;

  before(async () => {
    test = await createTestDatabase();
    await insertTenant(test.database, tenantId, { quotas: { storage_bytes: quota } });
    deviceId = newId();
    const { key, hash, prefix, last4 } = mintKey();
    apiKey = key;
    await test.database.system(async (tx) => {
      await tx.query(`INSERT INTO devices (tenant_id, device_id, name, hardware_id) VALUES ($1, $2, 'a', 'a')`, [
        tenantId,
        deviceId,
      ]);
      await tx.query(
        `INSERT INTO api_keys (key_id, tenant_id, key_hash, prefix, last4, scopes) VALUES ($1, $2, $3, $4, $5, $6)`,
        [newId(), tenantId, hash, prefix, last4, ['ota:write', 'telemetry:write']],
      );
    });
    packages = new Packages({
      compatibilityChanged: recountRollouts,
      database: test.database,
      // Packages are made as the operator makes them.
      writer: undefined as never,
      paging: new Paging(Buffer.alloc(32)),
      logger: createLogger('silent'),
      artifacts: testIntake(),
    });
    processes = await TestProcesses.create(test.url);
    servers = [await processes.start({}), await processes.start({})];
  });
  after(async () => {
    await packages.stop();
    await processes.kill();
    await processes.remove();
    await test.drop();
  });

  /** Makes a package that waits for its artifact, and returns what uploads it to a process. */
  const waiting = async (name: string, sizeBytes: number) => {
    const artifact = randomBytes(sizeBytes);
    const sha256 = createHash('sha256').update(artifact).digest('hex');
    const meta = create(ObjectMetaSchema, { tenantId, namespace: tenantId, name });
    const spec = { type: 'Firmware', version: '1.0.0', artifact: { uri: 'upload://', sha256, sizeBytes } } as const;
    const { id } = await packages.apply(meta, spec);
    return (process: number) => send(process, 'PUT', `/api/v1/ota/packages/${id}/artifact`, artifact);
  };
  const send = async (process: number, method: string, path: string, body: Buffer<ArrayBuffer> | string) => {
    const type = typeof body === 'string' ? 'application/json' : 'application/octet-stream';
    const response = await fetch(`http://127.0.0.1:${servers[process]!.ports.restPort}${path}`, {
      ...{ method, body, headers: { 'x-api-key': apiKey, 'content-type': type } },
    });
    return { status: response.status, body: await response.json() } as Outcome;
  };
  const sendPoints = (process: number, request: number) => {
    const points = Array.from({ length: pointsPerRequest }, (_, index) => ({
      device_id: deviceId,
      timestamp: new Date(1_790_000_000_000 + (request * pointsPerRequest + index) * 1000).toISOString(),
      string_values: { note: 'x'.repeat(400) },
    }));
    return send(process, 'POST', '/api/v1/telemetry', JSON.stringify({ points }));
  };
  const artifactsTake = async () => {
    const { rows } = await test.database.system((tx) =>
      tx.query<{ bytes: number }>('SELECT coalesce(sum(size_bytes), 0)::float8 AS bytes FROM artifacts'),
    );
    return rows[0]!.bytes;
  };

  it('limits artifacts exactly, and points count towards the usage but not towards the quota', async () => {
    const uploads = await Promise.all(Array.from({ length: 6 }, (_, n) => waiting(`artifact-${n}`, artifactBytes)));
    const [uploaded, sent] = await Promise.all([
      Promise.all(uploads.map((upload, n) => upload(n % 2))),
      Promise.all(Array.from({ length: 10 }, (_, n) => sendPoints(n % 2, n))),
    ]);
    expect(uploaded.map(({ status }) => status).sort()).to.deep.equal([200, 200, 200, 429, 429, 429]);
    for (const { status, body } of uploaded) {
      if (status !== 429) continue;
      expect(body.message).to.match(/quota of storage_bytes is used up: its artifacts take \d+ of 350000 bytes/);
    }
    expect(await artifactsTake()).to.equal(3 * artifactBytes);
    for (const outcome of sent) expect(outcome).to.deep.include({ status: 200 });
    const usage = await test.database.tenant(tenantId, (tx) => readTenantUsage(tx, tenantId));
    expect(usage.pointsToday).to.equal(10 * pointsPerRequest);
    expect(usage.storedBytes, 'points of both processes').to.be.above(quota);
    // The last byte of the quota can be used, and no more, through either process.
    const [rest, more] = [await waiting('rest', quota - 3 * artifactBytes), await waiting('more', 1)];
    expect(await rest(1)).to.include({ status: 200 });
    for (const process of [0, 1]) expect(await more(process)).to.include({ status: 429 });
    expect(await artifactsTake()).to.equal(quota);
  });
});
