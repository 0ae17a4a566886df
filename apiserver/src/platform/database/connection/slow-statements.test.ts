// Tests slow statements on a real PostgreSQL: what the log and the metric record, and what they omit.
import { DeviceRegistryService } from '@kellet/proto/es/kellet/v1/device_registry_pb';
import { expect } from 'chai';
import { startTestGateway } from '../../../gateway/testing/test-gateway.ts';
import { createLogger } from '../../observability/logger.ts';
import { createMetrics } from '../../observability/metrics.ts';
import { createTestDatabase, type TestDatabase } from '../../testing/test-database.ts';
import { Database } from '../database.ts';
import { SlowStatements } from './slow-statements.ts';

const value = 'a-value-nobody-sees';
const slow = `SELECT pg_sleep(0.12),\n   $1::text`;

describe('slow statements', () => {
  let test: TestDatabase;
  before(async () => {
    test = await createTestDatabase();
  });
  after(() => test.drop());

  /** Returns a database that treats statements of at least that many milliseconds as slow. */
  const watched = (milliseconds: number, statementMilliseconds?: number) => {
    const lines: string[] = [];
    const logger = createLogger('info', {}, { write: (line) => void lines.push(line) });
    const metrics = createMetrics();
    const slowStatements = new SlowStatements(milliseconds, logger, metrics);
    return {
      database: new Database(test.url, logger, { slowStatements, statementMilliseconds }),
      lines: () => lines.map((line) => JSON.parse(line) as Record<string, unknown>),
      counted: async () => {
        const { values } = await metrics.getSingleMetric('kellet_database_slow_statement_seconds')!.get();
        return values.find((one) => (one as { metricName?: string }).metricName?.endsWith('_count'))?.value ?? 0;
      },
    };
  };

  it('are logged and counted, in reads and transactions, without the values of their parameters', async () => {
    const { database, lines, counted } = watched(100);
    await database.read('acme', (tx) => Promise.all([tx.query(slow, [value]), tx.query('SELECT 1')]));
    await database.tenant('acme', async (tx) => {
      await tx.query('SELECT 2');
      await tx.query(slow, [value]);
    });
    await database.system((tx) => tx.query(`SELECT pg_sleep(0.12), '${'long'.repeat(200)}'`));
    await database.close();
    const [read, transaction, long] = lines();
    expect(read).to.deep.include({ level: 'warn', msg: 'slow database statements', failed: false });
    expect(read).to.deep.include({ statements: ['SELECT pg_sleep(0.12), $1::text', 'SELECT 1'], count: 2 });
    expect(read!['milliseconds']).to.be.within(120, 5000);
    expect(transaction).to.deep.include({ statements: ['SELECT pg_sleep(0.12), $1::text'], count: 1 });
    expect((long!['statements'] as string[])[0]).to.have.length(501);
    expect(JSON.stringify(lines())).not.to.contain(value);
    expect(lines()).to.have.length(3);
    expect(await counted()).to.equal(3);
  });

  it('include those that fail or are abandoned', async () => {
    const { database, lines } = watched(100, 300);
    await database.read('acme', (tx) => tx.query('SELECT pg_sleep(5)')).catch(() => undefined);
    await database
      .read('acme', (tx) => tx.query(`SELECT 1 / length(left(pg_sleep(0.12)::text, 0))`))
      .catch(() => undefined);
    await database.close();
    expect(lines().map(({ failed }) => failed)).to.deep.equal([true, true]);
  });

  it('are not reported below the threshold, nor at all with 0', async () => {
    for (const milliseconds of [5000, 0]) {
      const { database, lines, counted } = watched(milliseconds);
      await database.read('acme', (tx) => tx.query(slow, [value]));
      await database.close();
      expect(lines()).to.deep.equal([]);
      expect(await counted()).to.equal(0);
    }
  });

  for (const split of [false, true]) {
    it(`name the request that they are part of${split ? ', also in another process' : ''}`, async () => {
      const { database, lines } = watched(100);
      const gateway = await startTestGateway(
        (registry) =>
          registry.register(DeviceRegistryService, {
            getDevice: async ({ deviceId }) => {
              await database.read('acme', (tx) => tx.query(slow, [value]));
              return { deviceId };
            },
          }),
        { split, testDatabase: test },
      );
      try {
        const headers = { authorization: 'Bearer viewer', 'x-request-id': 'slow-one' };
        const response = await fetch(`${gateway.rest}/api/v1/devices/d1`, { headers });
        expect(response.status).to.equal(200);
        expect(lines()).to.have.length(1);
        expect(lines()[0]).to.include({ request_id: 'slow-one' });
        expect(lines()[0]!['trace_id']).to.match(/^[0-9a-f]{32}$/);
      } finally {
        await gateway.stop();
        await database.close();
      }
    });
  }
});
