// A purge that is killed again and again, with artifacts and cold files in S3, beside a tenant that stays.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import path from 'node:path';
import { createInterface } from 'node:readline';
import { expect } from 'chai';
import { openStore } from '../platform/object-store/open-store.ts';
import { createTestDatabase, type TestDatabase } from '../platform/testing/test-database.ts';
import { TestS3 } from '../platform/testing/test-s3.ts';
import { tenantTables } from './tenant-tables.ts';
import { fillTenant } from './testing/test-rows.ts';

const program = path.join(import.meta.dirname, 'testing/purge-process.ts');
const storeUrl = 's3://objects/artifacts';
const coldUrl = 's3://objects/cold';

describe('a purge that is killed', function () {
  this.timeout(180_000);
  let test: TestDatabase;
  let s3: TestS3;
  before(async () => {
    test = await createTestDatabase();
    s3 = await TestS3.start('objects');
  });
  after(async () => {
    await s3?.stop();
    await test?.drop();
  });

  const query = async (text: string, values: unknown[] = []) =>
    (await test.database.system((tx) => tx.query<Record<string, unknown>>(text, values))).rows;
  const objects = async (tenantId: string): Promise<string[]> => [
    ...(await openStore(storeUrl, s3.settings).list(tenantId, '')),
    ...(await openStore(coldUrl, s3.settings).list(`tenant_id=${tenantId}`, '')),
  ];

  /** Runs a purge and kills it after so many transactions. Returns whether it was done before. */
  const purge = async (transactions: number): Promise<boolean> => {
    const { endpoint, region, accessKey, secretKey } = s3.settings;
    const settings = {
      ...{ KELLET_ARTIFACT_STORE: storeUrl, KELLET_COLD_URL: coldUrl },
      ...{ KELLET_S3_ENDPOINT: endpoint, KELLET_S3_REGION: region },
      ...{ KELLET_S3_ACCESS_KEY: accessKey, KELLET_S3_SECRET_KEY: secretKey },
    };
    const child = spawn(process.execPath, [program, test.url, 'vanishing', JSON.stringify(settings)], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    let count = 0;
    createInterface({ input: child.stdout }).on('line', () => {
      count += 1;
      if (count === transactions) child.kill('SIGKILL');
    });
    const [code] = (await once(child, 'exit')) as [number | null];
    if (code !== null && code !== 0) throw new Error(`the purge has failed: ${code}`);
    return code === 0;
  };

  it('continues until no row and no object is left, and touches nothing else', async () => {
    for (const tenantId of ['vanishing', 'remaining']) {
      await fillTenant(test.database, tenantId);
      await query(
        `INSERT INTO devices (tenant_id, device_id, name, hardware_id)
         SELECT $1, gen_random_uuid(), 'd', $1 || n FROM generate_series(1, 9000) AS n`,
        [tenantId],
      );
      for (const name of ['0190a000-0000-7000-8000-000000000000/0', '0190a000-0000-7000-8000-000000000001/2097152'])
        await openStore(storeUrl, s3.settings).put(`${tenantId}/${name}`, Buffer.alloc(1000, 7));
      const cold = `tenant_id=${tenantId}/date=2026-01-01/live.parquet`;
      await openStore(coldUrl, s3.settings).put(cold, Buffer.alloc(1000, 7));
      await query(
        `INSERT INTO artifacts (tenant_id, sha256, size_bytes, store, prefix) VALUES ($1, sha256('x'), 2000, $2, $1 || '/a')`,
        [tenantId, storeUrl],
      );
    }
    expect(await objects('vanishing')).to.have.length(3);
    await query('UPDATE tenants SET deleted_at = now(), purge_at = now() WHERE tenant_id = $1', ['vanishing']);
    let kills = 0;
    // The number grows, so that it ends even if each purge began anew.
    while (!(await purge(1 + kills * 20))) kills += 1;
    expect(kills).to.be.at.least(2);

    const places: string[] = [];
    for (const table of (await test.database.system((tx) => tenantTables(tx))).all) {
      const rows = await query(`SELECT FROM ONLY ${table} t WHERE t::text LIKE '%vanishing%' LIMIT 1`);
      if (rows.length > 0) places.push(table);
    }
    // Its row, and the platform's own record of the purge.
    expect(places).to.have.members(['tenants', 'audit_pending']);
    expect(await objects('vanishing')).to.deep.equal([]);
    expect(await objects('remaining')).to.have.length(3);
    const left = await query(`SELECT count(*)::int4 AS count FROM devices WHERE tenant_id = 'remaining'`);
    expect(left[0]!['count']).to.be.at.least(9000);
  });
});
