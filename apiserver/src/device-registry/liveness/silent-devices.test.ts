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
    const sweep = new SilentDevices(1);
    /** Goes through so many pages and returns the devices that were found, and the most in a page. */
    const passPages = async (pages: number) => {
      const found: string[] = [];
      let most = 0;
      for (let page = 0; page < pages; page += 1) {
        const before = found.length;
        for (let isEnd = false; !isEnd;) {
          const step = await test.database.system((tx) => sweep.takeOffline(tx, 5));
          expect(step.devices.length).to.be.at.most(5);
          found.push(...step.devices.map((device) => device.device_id));
          ({ isEnd } = step);
        }
        most = Math.max(most, found.length - before);
      }
      return { found, most };
    };
    const blocks = async () =>
      (
        await test.database.system((tx) =>
          tx.query<{ blocks: number }>(`SELECT (pg_relation_size('devices') / 8192)::int4 AS blocks`),
        )
      ).rows[0]!.blocks;
    const first = await passPages(await blocks());
    expect(first.found).to.have.members(silent);
    // Not all in one page.
    expect(first.most).to.be.within(5, silent.length - 1);
    await test.database.system((tx) =>
      tx.query(`UPDATE devices SET status = 'online' WHERE device_id = $1`, [silent[0]]),
    );
    expect((await passPages(2 * (await blocks()))).found).to.deep.equal([silent[0]]);
  });

  it('are found in other pages before one is done that is left, and there in the next pass', async () => {
    await insertTenant(test.database, 'initech');
    const silent = await insert('initech', 300);
    const { rows } = await test.database.system((tx) =>
      tx.query<{ device_id: string; block: number }>(
        'SELECT device_id, (ctid::text::point)[0]::int4 AS block FROM devices',
      ),
    );
    const blockOf = new Map(rows.map((row) => [row.device_id, row.block]));
    const sweep = new SilentDevices(1);
    /** Returns the next that are found, in a page that has more. */
    const next = async () => {
      for (;;) {
        const { devices, isEnd } = await test.database.system((tx) => sweep.takeOffline(tx, 3));
        if (!isEnd) return devices.map((device) => device.device_id);
      }
    };
    const found = await next();
    sweep.leavePage();
    const others = await next();
    expect(blockOf.get(others[0]!)).to.be.greaterThan(blockOf.get(found[0]!)!);
    found.push(...others);
    for (let step = 0; step < 300 && found.length < silent.length; step += 1) {
      const { devices } = await test.database.system((tx) => sweep.takeOffline(tx, 3));
      found.push(...devices.map((device) => device.device_id));
    }
    expect(found).to.have.members(silent);
  });
});
