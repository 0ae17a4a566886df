import { expect } from 'chai';
import { insertTenant } from '../../auth/testing/test-fixtures.ts';
import { createTestDatabase, type TestDatabase } from '../../platform/testing/test-database.ts';
import { SilentDevices } from './silent-devices.ts';

describe('silent devices', () => {
  let test: TestDatabase;

  before(async () => {
    test = await createTestDatabase();
    await insertTenant(test.database, 'acme');
    await insertTenant(test.database, 'globex');
  });
  after(() => test.drop());

  /** Inserts devices of which every second one is silent, and returns the ids of those. */
  const insert = async (tenantId: string, count: number): Promise<string[]> => {
    const { rows } = await test.database.system((tx) =>
      tx.query<{ device_id: string; silent: boolean }>(
        `INSERT INTO devices (tenant_id, device_id, name, hardware_id, status, offline_at)
         SELECT $1, gen_random_uuid(), 'd', 'h' || n, 'online', now() + (CASE n % 2 WHEN 0 THEN -1 ELSE 1 END) * interval '1 hour'
         FROM generate_series(1, $2::int4) AS n
         RETURNING device_id, offline_at < now() AS silent`,
        [tenantId, count],
      ),
    );
    return rows.filter(({ silent }) => silent).map((row) => row.device_id);
  };

  it('are found page by page, and again after the last page', async () => {
    const silent = [...(await insert('acme', 50)), ...(await insert('globex', 30))];
    const sweep = new SilentDevices(16, 5);
    const step = () => test.database.system((tx) => sweep.takeOffline(tx));
    const found: string[] = [];
    let pages = 0;
    while (pages < 5) {
      const { devices, isEnd } = await step();
      expect(devices.length).to.be.at.most(5);
      found.push(...devices.map((device) => device.device_id));
      if (isEnd) pages += 1;
    }
    expect(found).to.have.members(silent);
    await test.database.system((tx) =>
      tx.query(`UPDATE devices SET status = 'online' WHERE device_id = $1`, [silent[0]]),
    );
    const again: string[] = [];
    for (let count = 0; count < 6; count += 1) again.push(...(await step()).devices.map((device) => device.device_id));
    expect(again).to.deep.equal([silent[0]]);
  });
});
