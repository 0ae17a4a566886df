// How many connections to PostgreSQL a process needs, under load of every kind.
import { expect } from 'chai';
import pg from 'pg';
import type { Rest } from '../../dev/clients/rest.ts';
import { stack } from '../../dev/stack/testing/test-stack.ts';
import { admin, makeDevice } from '../testing/fixtures.ts';

/** The default of KELLET_DATABASE_CONNECTIONS. */
const mostConnections = 12;

describe('the connections of a process', function () {
  this.timeout(90_000);
  let observer: pg.Client;
  let rest: Rest;

  before(async () => {
    observer = new pg.Client({ connectionString: stack().info.databaseUrl, application_name: 'observer' });
    await observer.connect();
    rest = await admin();
  });
  after(() => observer.end());

  /** Returns the numbers of connections of Kellet by name. */
  async function connections(): Promise<ReadonlyMap<string, number>> {
    const { rows } = await observer.query<{ name: string; count: number }>(
      `SELECT application_name AS name, count(*)::int4 AS count FROM pg_stat_activity
       WHERE datname = current_database() AND application_name LIKE 'kellet-%' GROUP BY 1`,
    );
    return new Map(rows.map(({ name, count }) => [name, count]));
  }

  it('are at most twelve, and one of them listens', async () => {
    const device = await makeDevice(rest);
    const point = { timestamp: new Date().toISOString(), numeric_values: { level: 1 }, string_values: {} };
    const read = (path: string) => () => rest.send('GET', path);
    const calls: readonly (() => Promise<unknown>)[] = [
      () => device.send([point]),
      read(`/api/v1/telemetry/${device.deviceId}`),
      read('/api/v1/devices?page_size=100'),
      read('/api/v1/tenant'),
      read('/api/v1/ota/rollouts'),
      read('/api/v1/anchors'),
      read('/api/v1/audit-events'),
      () => rest.send('POST', '/api/v1/device-groups', { body: { name: 'under load' } }),
    ];
    let isBusy = true;
    const load = Array.from({ length: 64 }, async (_, caller) => {
      for (let n = 0; isBusy || n < 5; n += 1) await calls[(caller + n) % calls.length]!().catch(() => undefined);
    });
    let most = 0;
    try {
      for (let sample = 0; sample < 40; sample += 1) {
        const found = await connections();
        const sum = [...found.values()].reduce((total, count) => total + count, 0);
        expect(sum, JSON.stringify([...found])).to.be.at.most(mostConnections);
        expect(found.get('kellet-listener'), 'connections that listen').to.equal(1);
        most = Math.max(most, sum);
        await new Promise((resolve) => setTimeout(resolve, 50));
      }
    } finally {
      isBusy = false;
      await Promise.all(load);
    }
    // The load was one: the pool was used.
    expect(most).to.be.greaterThan(4);
  });
});
