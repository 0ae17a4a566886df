// PostgreSQL's host vanishes: packets are dropped, not rejected. Everything that uses the database notices, and
// recovers once the host is back.
import { expect } from 'chai';
import pg from 'pg';
import { Health } from '../../../gateway/http/health.ts';
import { testPoint } from '../../../telemetry/testing/test-devices.ts';
import { TelemetryWriter, writerDefaults } from '../../../telemetry/write/group-commit.ts';
import { takeOverDeadWriters } from '../../../telemetry/write/writer-closing.ts';
import { systemClock } from '../../clock.ts';
import { KelletError } from '../../errors.ts';
import { Broker } from '../../events/broker.ts';
import { enqueue, OutboxRelay } from '../../events/outbox.ts';
import { createLogger } from '../../observability/logger.ts';
import { createMetrics } from '../../observability/metrics.ts';
import { eventually } from '../../testing/eventually.ts';
import { createTestDatabase, type TestDatabase } from '../../testing/test-database.ts';
import { type Silence, TcpProxy } from '../../testing/test-tcp-proxy.ts';
import { Database, type Transaction } from '../database.ts';
import { migrate } from '../migrate.ts';

const logger = createLogger(process.env['KELLET_TEST_LOG_LEVEL'] ?? 'silent');
const bounds = { statementMilliseconds: 500, loopMilliseconds: 500, heartbeatMilliseconds: 300 };
/** The client waits two seconds longer than the server's timeout before it abandons a connection. */
const deadline = bounds.statementMilliseconds + 2000;

const outcome = async (call: Promise<unknown>): Promise<string> => {
  try {
    await call;
    return 'OK';
  } catch (error) {
    return error instanceof KelletError ? error.code : String(error);
  }
};

describe('when the host of PostgreSQL vanishes', function () {
  this.timeout(60_000);
  let test: TestDatabase;
  let proxy: TcpProxy;
  let database: Database;
  const stops: (() => Promise<void>)[] = [];

  beforeEach(async () => {
    test = await createTestDatabase();
    proxy = await TcpProxy.before(test.url);
    database = new Database(proxy.through(test.url), logger, bounds);
  });
  afterEach(async () => {
    proxy.restore();
    for (const stop of stops.splice(0).toReversed()) await stop();
    await database.close();
    await proxy.close();
    await test.drop();
  });

  for (const silence of ['both', 'to server', 'to client'] as Silence[]) {
    it(`ends every statement in time and works again once it is back (dropped: ${silence})`, async () => {
      await Promise.all([1, 2, 3].map(() => database.system((tx) => tx.query('SELECT 1'))));
      proxy.silence(silence);
      const started = Date.now();
      const outcomes = await Promise.all([
        outcome(database.tenant('acme', (tx) => tx.query('SELECT 1'))),
        outcome(database.read('acme', (tx) => tx.query('SELECT 1'))),
        outcome(database.system((tx) => tx.query('SELECT 1'))),
        // These need a separate connection.
        outcome(database.systemRead((tx) => tx.query('SELECT 1'))),
        outcome(database.system((tx) => tx.query('SELECT 1'))),
      ]);
      expect(outcomes).to.deep.equal(Array(5).fill('UNAVAILABLE'));
      expect(Date.now() - started).to.be.lessThan(Math.max(deadline, 5000) + 1500);
      proxy.restore();
      expect(await outcome(database.system((tx) => tx.query('SELECT 1')))).to.equal('OK');
    });
  }

  it('ends statements in flight long before their timeout when it cannot be reached at all', async () => {
    const patient = new Database(proxy.through(test.url), logger, { heartbeatMilliseconds: 500 });
    stops.push(() => patient.close());
    const states: boolean[] = [];
    patient.listen(
      ['test_channel'],
      () => undefined,
      (lost) => states.push(lost),
    );
    await eventually(() => states.includes(false));
    const running = outcome(patient.system((tx) => tx.query('SELECT pg_sleep(1)')));
    await new Promise((resolve) => setTimeout(resolve, 200));
    const started = Date.now();
    proxy.silence();
    expect(await running).to.equal('UNAVAILABLE');
    expect(Date.now() - started).to.be.lessThan(20_000);
  });

  it('does not reuse connections that may have died unnoticed along with another', async () => {
    await Promise.all([1, 2, 3, 4, 5].map(() => outcome(database.system((tx) => tx.query('SELECT pg_sleep(0.1)')))));
    proxy.silenceOpen();
    expect(await outcome(database.system((tx) => tx.query('SELECT 1')))).to.equal('UNAVAILABLE');
    const next = await Promise.all([1, 2, 3, 4, 5].map(() => outcome(database.system((tx) => tx.query('SELECT 1')))));
    expect(next).to.deep.equal(Array(5).fill('OK'));
  });

  it('ends a statement in flight on a connection that only the client still knows', async () => {
    const running = outcome(database.system((tx) => tx.query('SELECT pg_sleep(0.3)')));
    await new Promise((resolve) => setTimeout(resolve, 100));
    proxy.silenceOpen();
    const started = Date.now();
    expect(await running).to.equal('UNAVAILABLE');
    expect(Date.now() - started).to.be.lessThan(deadline + 10_000);
    expect(await outcome(database.system((tx) => tx.query('SELECT 1')))).to.equal('OK');
  });

  it('fails readiness within two seconds while it lasts, without holding a connection per check', async () => {
    const health = new Health({ postgres: () => database.ping() }, { hangTimeoutMilliseconds: 100 });
    expect((await health.readiness()).isReady).to.equal(true);
    proxy.silence();
    await new Promise((resolve) => setTimeout(resolve, 1500));
    const started = Date.now();
    while (Date.now() - started < 6000) {
      const asked = Date.now();
      const { isReady, body } = await health.readiness();
      expect(isReady).to.equal(false);
      expect(body['postgres']).to.match(/^unhealthy: ./);
      expect(Date.now() - asked).to.be.lessThan(2000);
    }
    proxy.restore();
    await eventually(async () => (await health.readiness()).isReady, 10_000);
    // The hung ones were closed, not leaked.
    await eventually(() => proxy.connections <= 3, 10_000);
  });

  it('reports to listeners that notifications may be missing, and listens again', async () => {
    const states: boolean[] = [];
    const received: string[] = [];
    database.listen(
      ['test_channel'],
      (_channel, payload) => received.push(payload),
      (lost) => states.push(lost),
    );
    await eventually(() => states.includes(false));
    for (const silenceAgain of [() => proxy.silence(), () => proxy.silenceOpen()]) {
      const before = states.length;
      silenceAgain();
      await eventually(() => states.slice(before).includes(true), 3000);
      proxy.restore();
      await eventually(() => states.at(-1) === false, 15_000);
      const payload = `after ${states.length}`;
      await test.database.system((tx) => tx.query(`SELECT pg_notify('test_channel', $1)`, [payload]));
      await eventually(() => received.includes(payload));
    }
  });

  it('does not block a listener that was just about to listen', async () => {
    const states: boolean[] = [];
    // The session is set up, then LISTEN gets no response.
    proxy.silence('to client');
    database.listen(
      ['test_channel'],
      () => undefined,
      (lost) => states.push(lost),
    );
    await new Promise((resolve) => setTimeout(resolve, 500));
    proxy.restore();
    await eventually(() => states.includes(false), 15_000);
  });

  describe('the telemetry writer', () => {
    let committed: number;
    function startWriter(): TelemetryWriter {
      committed = 0;
      const writer = new TelemetryWriter(
        { database, logger, clock: systemClock, metrics: createMetrics() },
        { ...writerDefaults, batchPoints: 10, batchSeconds: 3600, holdMilliseconds: 1000 },
        (points) => (committed += points.length),
      );
      writer.start();
      stops.push(() => writer.stop());
      return writer;
    }
    const append = (writer: TelemetryWriter, n: number) =>
      outcome(writer.append([testPoint('acme', 1, 1_790_000_000 + n, n)]));
    const isSound = (writer: TelemetryWriter): boolean => {
      try {
        writer.check();
        return true;
      } catch {
        return false;
      }
    };

    it('holds requests, responds UNAVAILABLE, is not ready, and recovers', async () => {
      const writer = startWriter();
      expect(await append(writer, 1)).to.equal('OK');
      proxy.silence();
      const started = Date.now();
      expect(await append(writer, 2)).to.equal('UNAVAILABLE');
      expect(Date.now() - started).to.be.within(900, 2500);
      await eventually(() => !isSound(writer), 2000);
      proxy.restore();
      await eventually(async () => (await append(writer, 3)) === 'OK', 20_000);
      expect(isSound(writer)).to.equal(true);
    });

    it('detects a dead connection while it has nothing to write', async () => {
      const writer = startWriter();
      expect(await append(writer, 1)).to.equal('OK');
      proxy.silenceOpen();
      // Only its own heartbeat is sent meanwhile.
      await new Promise((resolve) => setTimeout(resolve, 8000));
      expect(await append(writer, 2)).to.equal('OK');
    });

    it('abandons a flush without a response and stores its points once', async () => {
      const writer = startWriter();
      expect(await append(writer, 1)).to.equal('OK');
      proxy.silenceOpen('to client');
      expect(await append(writer, 2)).to.equal('UNAVAILABLE');
      await eventually(async () => (await append(writer, 3)) === 'OK', 25_000);
      await takeOverDeadWriters(test.database, logger);
      const { rows } = await test.database.system((tx) =>
        tx.query<{ time: bigint; count: number }>(
          'SELECT time, count(*)::int4 AS count FROM telemetry_points GROUP BY time ORDER BY time',
        ),
      );
      expect(rows.find(({ time }) => time === 1_790_000_001n * 1_000_000_000n)?.count).to.equal(1);
      expect(rows.find(({ time }) => time === 1_790_000_002n * 1_000_000_000n)?.count).to.equal(1);
    });
  });

  it('lets the outbox continue', async function () {
    this.timeout(120_000);
    // The lost connection may hold the lock of the outbox until PostgreSQL ends its idle transaction.
    const longest = 40_000;
    const broker = new Broker(process.env['KELLET_TEST_NATS_URL']!, logger);
    stops.push(() => broker.close());
    await eventually(() => broker.isConnected);
    const relay = new OutboxRelay(database, broker, logger, createMetrics());
    stops.push(() => relay.close());
    const waiting = async () => {
      const { rows } = await test.database.system((tx) =>
        tx.query<{ count: number }>('SELECT count(*)::int4 AS count FROM outbox'),
      );
      return rows[0]!.count;
    };
    const add = () =>
      test.database.system((tx) =>
        enqueue(tx, { tenantId: 'acme', subject: 'device.status.acme.a', resource: 'a', data: {} }, systemClock),
      );
    await add();
    await eventually(async () => (await waiting()) === 0);
    proxy.silence();
    await add();
    await new Promise((resolve) => setTimeout(resolve, 1500));
    expect(await waiting()).to.equal(1);
    proxy.restore();
    await eventually(async () => (await waiting()) === 0, longest);
    proxy.silenceOpen();
    await add();
    await eventually(async () => (await waiting()) === 0, longest);
  });

  it('lets a migration that waits for another process continue', async () => {
    const other = new pg.Client({ connectionString: test.url });
    await other.connect();
    stops.push(() => other.end());
    await other.query('SELECT pg_advisory_lock(6452817301)');
    const migrating = outcome(migrate(database, logger));
    await new Promise((resolve) => setTimeout(resolve, 500));
    proxy.silenceOpen();
    await other.query('SELECT pg_advisory_unlock(6452817301)');
    expect(
      await Promise.race([migrating, new Promise((resolve) => setTimeout(() => resolve('hangs'), 20_000))]),
    ).to.not.equal('hangs');
    expect(await outcome(migrate(database, logger))).to.equal('OK');
  });

  for (const [state, wait] of [
    ['listening', 500],
    ['connecting', 0],
  ] as const) {
    it(`closes in time while its listener is ${state}`, async () => {
      const short = new Database(proxy.through(test.url), logger, bounds);
      await short.system((tx) => tx.query('SELECT 1'));
      if (wait === 0) proxy.silence();
      short.listen(
        ['test_channel'],
        () => undefined,
        () => undefined,
      );
      await new Promise((resolve) => setTimeout(resolve, wait));
      proxy.silence();
      const started = Date.now();
      await short.close();
      expect(Date.now() - started).to.be.lessThan(3000);
    });
  }
});

describe('a statement that exceeds its timeout', function () {
  this.timeout(30_000);
  let test: TestDatabase;
  let database: Database;
  beforeEach(async () => {
    test = await createTestDatabase();
    database = new Database(test.url, logger, { ...bounds, loopMilliseconds: 800 });
  });
  afterEach(async () => {
    await database.close();
    await test.drop();
  });

  const sleeping = async () => {
    const { rows } = await test.database.system((tx) =>
      tx.query<{ count: number }>(
        `SELECT count(*)::int4 AS count FROM pg_stat_activity
         WHERE datname = current_database() AND pid <> pg_backend_pid() AND (state LIKE 'idle in%' OR state = 'active')`,
      ),
    );
    return rows[0]!.count;
  };
  const sleep = 'SELECT pg_sleep(20)';

  it('is also ended by the server, in each kind of transaction', async () => {
    const started = Date.now();
    const outcomes = await Promise.all([
      outcome(database.tenant('acme', (tx) => tx.query(sleep))),
      outcome(database.read('acme', (tx) => tx.query(sleep))),
      outcome(database.systemRead((tx) => tx.query(sleep))),
      outcome(database.system((tx) => tx.query(sleep))),
      outcome(database.tenant('acme', async (tx) => tx.query('SELECT 1').then(() => tx.query(sleep)))),
    ]);
    expect(outcomes).to.deep.equal(Array(5).fill('UNAVAILABLE'));
    expect(Date.now() - started).to.be.lessThan(10_000);
    expect(await sleeping()).to.equal(0);
    // The connections still work.
    expect(await outcome(database.tenant('acme', (tx) => tx.query('SELECT 1')))).to.equal('OK');
  });

  it('is ended when there are many at once, so that they do not pile up', async () => {
    const calls = Array.from({ length: 60 }, () => outcome(database.read('acme', (tx) => tx.query(sleep))));
    await eventually(async () => (await sleeping()) === 15);
    await Promise.all(calls);
    expect(await sleeping()).to.equal(0);
  });

  it('is ended soon after its client has gone', async () => {
    const proxy = await TcpProxy.before(test.url);
    const patient = new Database(proxy.through(test.url), logger, { statementMilliseconds: 30_000 });
    const call = outcome(patient.read('acme', (tx) => tx.query('SELECT pg_sleep(25)')));
    await eventually(async () => (await sleeping()) === 1);
    proxy.cut();
    expect(await call).to.equal('UNAVAILABLE');
    // Every two seconds the server checks that the client is still connected.
    await eventually(async () => (await sleeping()) === 0, 4000);
    await patient.close();
    await proxy.close();
  });

  it('leaves a transaction its other settings, and none to the next one on the same connection', async () => {
    const one = new Database(test.url, logger, { ...bounds, maximumConnections: 1 });
    const timeout = (tx: Transaction) =>
      tx.query<{ statement: string; idle: string }>(
        `SELECT current_setting('statement_timeout') AS statement, current_setting('idle_in_transaction_session_timeout') AS idle`,
      );
    expect((await one.maintenance(timeout)).rows).to.deep.equal([{ statement: '10min', idle: '2min' }]);
    expect((await one.tenant('acme', timeout)).rows).to.deep.equal([{ statement: '500ms', idle: '2min' }]);
    expect((await one.read('acme', timeout)).rows).to.deep.equal([{ statement: '500ms', idle: '0' }]);
    await one.close();
  });
});
