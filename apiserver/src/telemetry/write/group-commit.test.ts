import { chmodSync, chownSync, mkdirSync, statSync } from 'node:fs';
import { join } from 'node:path';
import type { AnchorMode } from '@kellet/verify';
import { expect } from 'chai';
import pg from 'pg';
import { systemClock } from '../../platform/clock.ts';
import type { KelletError } from '../../platform/errors.ts';
import { createLogger } from '../../platform/observability/logger.ts';
import { createMetrics, type Registry } from '../../platform/observability/metrics.ts';
import { eventually } from '../../platform/testing/eventually.ts';
import { createTestDatabase, type TestDatabase } from '../../platform/testing/test-database.ts';
import { SmallDisk } from '../../platform/testing/test-small-disk.ts';
import type { AcceptedPoint } from '../points/validate.ts';
import { fsck } from '../testing/fsck.ts';
import { testPoint } from '../testing/test-devices.ts';
import { TelemetryWriter, writerDefaults, type WriterOptions } from './group-commit.ts';
import type { IdempotencyRow } from './idempotency-keys.ts';
import { closeWriter, takeOverDeadWriters } from './writer-closing.ts';

const logger = createLogger(process.env['KELLET_TEST_LOG_LEVEL'] ?? 'fatal');
const start = 1_790_000_000;

describe('TelemetryWriter', () => {
  let test: TestDatabase;
  let writers: TelemetryWriter[];
  let committed: AcceptedPoint[];

  beforeEach(async () => {
    test = await createTestDatabase();
    writers = [];
    committed = [];
  });
  afterEach(async () => {
    await Promise.all(writers.map((writer) => writer.stop()));
    await test.drop();
  });

  function startWriter(
    options: Partial<WriterOptions> = {},
    metrics = createMetrics(),
    clock = systemClock,
  ): TelemetryWriter {
    const writer = new TelemetryWriter(
      { database: test.database, logger, clock, metrics },
      { ...writerDefaults, batchPoints: 10, batchSeconds: 3600, ...options },
      (points) => committed.push(...points),
    );
    writer.start();
    writers.push(writer);
    return writer;
  }
  const stop = async (writer: TelemetryWriter) => {
    writers = writers.filter((other) => other !== writer);
    await writer.stop();
  };
  const query = async <T extends object>(text: string) => (await test.database.system((tx) => tx.query<T>(text))).rows;
  const points = (count: number, mode: AnchorMode = 'merkle', device = 1, first = 0) =>
    Array.from({ length: count }, (_, index) => testPoint('acme', device, start + first + index, first + index, mode));
  const expectSound = async () => {
    const report = await fsck(test.database);
    expect(report.problems).to.deep.equal([]);
    return report;
  };

  it('commits points with their places, sealing full batches at once and the rest when it stops', async () => {
    const writer = startWriter();
    await Promise.all([writer.append(points(13)), writer.append(points(12, 'merkle', 2))]);
    expect(await query('SELECT status, count FROM anchor_batches ORDER BY created_at, batch_id')).to.have.length(3);
    const full = await query<{ count: number }>(`SELECT count FROM anchor_batches WHERE status = 'sealed'`);
    expect(full.map((batch) => batch.count)).to.deep.equal([10, 10]);
    expect(committed).to.have.length(25);
    await stop(writer);
    const report = await expectSound();
    expect(report).to.include({ rows: 25, batches: 3, sealedBatches: 3 });
  });

  it('seals a batch when it is due, without further points', async () => {
    const writer = startWriter({ batchSeconds: 1 });
    await writer.append(points(3));
    const sealed = () => query(`SELECT FROM anchor_batches WHERE status = 'sealed' AND count = 3`);
    for (let wait = 0; wait < 60 && (await sealed()).length === 0; wait += 1) {
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
    expect(await sealed()).to.have.length(1);
  });

  it('seals a batch that was opened by a clock that is set back', async () => {
    let ahead = 2 * 3_600_000;
    const writer = startWriter({ batchSeconds: 60 }, createMetrics(), { now: () => Date.now() + ahead });
    await writer.append(points(3));
    const sealed = () => query(`SELECT FROM anchor_batches WHERE status = 'sealed' AND count = 3`);
    // The writer looks at the clock four times a second.
    await new Promise((resolve) => setTimeout(resolve, 600));
    expect(await sealed()).to.deep.equal([]);
    ahead = 0;
    await eventually(async () => (await sealed()).length === 1, 10_000);
    await writer.append(points(1, 'merkle', 1, 3));
    expect(committed).to.have.length(4);
  });

  it('keeps the batches of a tenant open for as long as its settings say, and those of others not', async () => {
    const settings = new Map([['acme', { batchSeconds: 600, anchorsPerDay: 0 }]]);
    const writer = startWriter({ batchPoints: 100, batchSeconds: 1, batchSettings: settings });
    await writer.append(points(3));
    await writer.append([testPoint('other', 9, start, 1)]);
    const sealed = () => query<{ tenant_id: string }>(`SELECT tenant_id FROM anchor_batches WHERE status = 'sealed'`);
    await eventually(async () => (await sealed()).length > 0);
    await writer.append(points(3, 'merkle', 1, 3));
    expect(await sealed()).to.deep.equal([{ tenant_id: 'other' }]);
    // A shorter time applies to the next batch.
    settings.delete('acme');
    writer.seal();
    await eventually(async () => (await sealed()).length === 2);
    await writer.append(points(1, 'merkle', 1, 6));
    await eventually(async () => (await sealed()).length === 3);
    const counts = await query(`SELECT count FROM anchor_batches WHERE tenant_id = 'acme' ORDER BY created_at`);
    expect(counts).to.deep.equal([{ count: 6 }, { count: 1 }]);
  });

  it('stores equal hashes once within a batch but keeps every row', async () => {
    const writer = startWriter();
    const [point] = points(1);
    await writer.append([point!, point!]);
    await writer.append([point!]);
    await stop(writer);
    const report = await expectSound();
    expect(report).to.include({ rows: 3, sealedBatches: 1 });
    expect(await query('SELECT count FROM anchor_batches')).to.deep.equal([{ count: 1 }]);
  });

  it('puts every per_event point in its own batch', async () => {
    const writer = startWriter();
    await writer.append(points(4, 'per_event'));
    const batches = await query<object>(`SELECT count, status, merkle_root = leaves AS same FROM anchor_batches`);
    expect(batches).to.deep.equal(Array(4).fill({ count: 1, status: 'sealed', same: true }));
    await expectSound();
  });

  it('never mixes tenants or modes in a batch', async () => {
    const writer = startWriter({ batchPoints: 1000 });
    const foreign = Array.from({ length: 5 }, (_, n) => testPoint('other', 9, start + n, n));
    await Promise.all([writer.append(points(5)), writer.append(foreign), writer.append(points(5, 'chain', 3))]);
    await stop(writer);
    await expectSound();
    expect(await query('SELECT tenant_id, anchor_mode FROM anchor_batches ORDER BY 1, 2')).to.deep.equal([
      { tenant_id: 'acme', anchor_mode: 'chain' },
      { tenant_id: 'acme', anchor_mode: 'merkle' },
      { tenant_id: 'other', anchor_mode: 'merkle' },
    ]);
  });

  it('builds one chain per device across batches, flushes and writers', async () => {
    const writer = startWriter({ batchPoints: 7 });
    await writer.append([...points(80, 'chain', 1), ...points(5, 'chain', 2)]);
    await writer.append([...points(3, 'chain', 2, 100), ...points(3, 'chain', 1, 100)]);
    const second = startWriter({ batchPoints: 100 });
    await second.append(points(70, 'chain', 1, 200));
    // The first writer built on a head that the second has moved.
    await writer.append(points(4, 'chain', 1, 300));
    await Promise.all([writer.append(points(9, 'chain', 1, 400)), second.append(points(9, 'chain', 1, 500))]);
    await stop(writer);
    await stop(second);
    await expectSound();
    const lengths = await query<{ length: bigint }>('SELECT length FROM device_chain ORDER BY device_id');
    expect(lengths.map((row) => row.length)).to.deep.equal([175n, 8n]);
    const segments = await query<{ leaf_count: number }>(
      `SELECT (segment ->> 'leaf_count')::int4 AS leaf_count FROM anchor_batches, jsonb_array_elements(segments) AS segment`,
    );
    expect(Math.max(...segments.map((segment) => segment.leaf_count))).to.equal(64);
  });

  it('starts a new segment when one is full and closes all when it stops', async () => {
    const writer = startWriter({ segmentRows: 20 });
    for (let first = 0; first < 60; first += 12) await writer.append(points(12, 'merkle', 1, first));
    await stop(writer);
    const segments = await query<object>(
      'SELECT state, rows, greatest_time - least_time AS span FROM telemetry_segments ORDER BY segment_id',
    );
    const second = 1_000_000_000n;
    expect(segments).to.deep.equal([
      { state: 'sealed', rows: 24n, span: 23n * second },
      { state: 'sealed', rows: 24n, span: 23n * second },
      { state: 'sealed', rows: 12n, span: 11n * second },
    ]);
    expect((await expectSound()).rows).to.equal(60);
  });

  it('isolates a row that the database rejects and stores all others', async () => {
    await query(`ALTER TABLE telemetry_points ADD CHECK (payload NOT LIKE '%:13}%')`);
    const writer = startWriter();
    const results = await Promise.all([
      writer.append(points(9, 'merkle', 1, 100)),
      writer.append(points(20, 'merkle', 2)),
      writer.append(points(9, 'merkle', 3, 100)),
    ]);
    expect(results.map((result) => result.refused)).to.deep.equal([[], [13], []]);
    await stop(writer);
    expect((await expectSound()).rows).to.equal(37);
    expect(committed).to.have.length(37);
  });

  describe('given Idempotency-Keys that are in use', () => {
    const row = (idempotencyKey: string): IdempotencyRow => ({
      ...{ tenantId: 'acme', holder: 'a'.repeat(64), idempotencyKey },
      ...{ requestHash: '', response: '{}' },
    });
    const failures = async (metrics: Registry): Promise<number> => {
      const { values } = (await metrics.getSingleMetric('kellet_telemetry_flush_failures_total')!.get()) as {
        values: { value: number; labels: { cause?: string } }[];
      };
      return values.find(({ labels }) => labels.cause === 'data')!.value;
    };
    const isTaken = (result: PromiseSettledResult<unknown>): boolean =>
      result.status === 'rejected' && (result.reason as KelletError).code === 'ALREADY_EXISTS';

    it('refuses their requests after one flush, and stores those that shared it', async () => {
      const writer = startWriter();
      await Promise.all(Array.from({ length: 64 }, (_, n) => writer.append([], row(`key-${n}`))));
      const metrics = createMetrics();
      const other = startWriter({}, metrics);
      const results = await Promise.allSettled([
        other.append(points(5)),
        ...Array.from({ length: 64 }, (_, n) => other.append(points(1, 'merkle', 2, n), row(`key-${n}`))),
        other.append(points(1, 'merkle', 3), row('another')),
        other.append(points(5, 'merkle', 4)),
      ]);
      expect(results.map(isTaken)).to.deep.equal([false, ...Array<boolean>(64).fill(true), false, false]);
      expect(await failures(metrics)).to.equal(1);
      expect(committed).to.have.length(11);
      expect((await expectSound()).rows).to.equal(11);
    });

    it('stores the first of two requests of a flush that have the same', async () => {
      const writer = startWriter();
      const results = await Promise.allSettled([
        writer.append(points(1), row('twice')),
        writer.append(points(1, 'merkle', 2), row('twice')),
        writer.append(points(1, 'merkle', 3)),
      ]);
      expect(results.map(isTaken)).to.deep.equal([false, true, false]);
      expect((await expectSound()).rows).to.equal(2);
    });
  });

  describe('while a tenant sends as much as it can', () => {
    const other = (n: number) => [testPoint('other', 7, start + n, n)];

    it('stores the points of others with its next ones', async () => {
      const writer = startWriter({ batchPoints: 10_000 });
      const first = Array.from({ length: 40 }, (_, n) => points(2000, 'merkle', 1, n * 2000));
      const all = Promise.all(first.map((some) => writer.append(some)));
      await writer.append(other(1));
      expect(committed.length, 'points stored by then').to.be.lessThan(40_000);
      await all;
    });

    it('refuses what exceeds its share of what may wait, and takes the points of others', async () => {
      const writer = startWriter({ maxWaitingBytes: 1_000_000 });
      const refusal = (count: number) =>
        writer.append(points(count)).then(
          () => undefined,
          ({ code }: KelletError) => code,
        );
      const [most, more, others] = await Promise.all([refusal(1300), refusal(200), writer.append(other(1))]);
      expect([most, more, others.refused]).to.deep.equal([undefined, 'UNAVAILABLE', []]);
      expect(await refusal(1300), 'what is stored does not wait').to.equal(undefined);
    });
  });

  it('keeps few heads of chains, however many devices have one, and extends each from where it ends', async () => {
    const writer = startWriter({ mostHeads: 20 });
    for (let round = 0; round < 4; round += 1) {
      const devices = Array.from({ length: 60 }, (_, device) => points(2, 'chain', device + 1, round * 2));
      await Promise.all(devices.map((ofDevice) => writer.append(ofDevice)));
      for (const ofDevice of devices.slice(0, 15)) await writer.append(ofDevice.map((point) => ({ ...point })));
      // Those of the last flushes besides.
      expect(writer['identity']!.batches['open'].heads.size).to.be.at.most(20 + 60);
    }
    for (let device = 100; device < 150; device += 1) await writer.append(points(1, 'chain', device));
    expect(writer['identity']!.batches['open'].heads.size).to.be.at.most(21);
    await stop(writer);
    await expectSound();
    const lengths = await query<{ length: bigint }>('SELECT length FROM device_chain');
    expect(lengths.filter(({ length }) => length >= 8n)).to.have.length(60);
  });

  it('stores the points of others while another writer extends a chain of a tenant all the time', async () => {
    const writer = startWriter({ holdMilliseconds: 3000 });
    await writer.append(points(1, 'chain'));
    const client = new pg.Client({ connectionString: test.url });
    await client.connect();
    // As a writer with two flushes in flight does: the next one takes the row as soon as one is committed.
    const extending = client
      .query(
        `DO $$ BEGIN FOR n IN 1..1000 LOOP
           UPDATE device_chain SET head = sha256(n::text::bytea); PERFORM pg_sleep(0.02); COMMIT;
         END LOOP; END $$`,
      )
      .catch(() => undefined);
    try {
      const waits: number[] = [];
      const chained: Promise<unknown>[] = [];
      for (let n = 0; n < 10; n += 1) {
        chained.push(writer.append(points(1, 'chain', 1, n + 1)).catch(() => undefined));
        const begun = performance.now();
        await writer.append([testPoint('other', 7, start + n, n)]);
        waits.push(performance.now() - begun);
      }
      expect(Math.max(...waits)).to.be.lessThan(2000);
      await Promise.all(chained);
    } finally {
      client.on('error', () => undefined);
      await query(`SELECT pg_terminate_backend(${(client as unknown as { processID: number }).processID})`);
      await extending;
      await client.end();
    }
  });

  it('survives the loss of its connection at any moment without losing or duplicating a point', async () => {
    const writer = startWriter({ holdMilliseconds: 15_000 });
    const kill = () =>
      query(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity
             WHERE application_name = 'kellet-telemetry-writer' AND datname = current_database()`);
    let running = true;
    const killing = (async () => {
      for (let count = 0; running; count += 1) {
        await new Promise((resolve) => setTimeout(resolve, 50 + (count % 7) * 23));
        await kill();
      }
    })();
    let sent = 0;
    const deadline = Date.now() + 3000;
    await Promise.all(
      Array.from({ length: 8 }, async (_, client) => {
        for (let round = 0; Date.now() < deadline; round += 1) {
          await writer.append(points(5, client % 2 === 0 ? 'merkle' : 'chain', client, round * 5));
          sent += 5;
        }
      }),
    );
    running = false;
    await killing;
    await stop(writer);
    const report = await expectSound();
    expect(report.rows).to.equal(sent);
    expect(committed).to.have.length(sent);
    const identities = await query<{ n: bigint }>('SELECT count(*) AS n FROM telemetry_writers');
    expect(Number(identities[0]!.n)).to.be.greaterThan(5);
  });

  describe('while the database is unavailable', () => {
    async function setAway(away: boolean): Promise<void> {
      const name = new URL(test.url).pathname.slice(1);
      const server = new pg.Client({ connectionString: process.env['KELLET_TEST_DATABASE_URL'] });
      await server.connect();
      await server.query(`ALTER DATABASE ${name} ALLOW_CONNECTIONS ${!away}`);
      if (away) await server.query('SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1', [name]);
      await server.end();
    }

    it('holds requests and stores them once it is back', async () => {
      const writer = startWriter({ holdMilliseconds: 15_000 });
      await writer.append(points(3));
      await setAway(true);
      let answered = false;
      const held = writer.append(points(3, 'merkle', 1, 10)).finally(() => (answered = true));
      await new Promise((resolve) => setTimeout(resolve, 500));
      expect(answered).to.equal(false);
      await setAway(false);
      await held;
      await stop(writer);
      expect((await expectSound()).rows).to.equal(6);
    });

    it('responds UNAVAILABLE if it stays unavailable and does not store refused points later', async () => {
      const writer = startWriter({ holdMilliseconds: 400 });
      await writer.append(points(3));
      await setAway(true);
      const refused = await writer.append(points(3, 'merkle', 1, 10)).catch((error: unknown) => error);
      expect(refused).to.have.property('code', 'UNAVAILABLE');
      await setAway(false);
      for (let attempt = 0; attempt < 20; attempt += 1) {
        const stored = await writer.append(points(3, 'merkle', 1, 20)).then(
          () => true,
          () => false,
        );
        if (stored) break;
      }
      await stop(writer);
      expect((await expectSound()).rows).to.equal(6);
    });
  });

  it('responds UNAVAILABLE while the disk of the database is full, and loses nothing that it acknowledged', async function () {
    const disk = SmallDisk.mount(4096);
    if (!disk) return this.skip();
    const server = new pg.Client({ connectionString: process.env['KELLET_TEST_DATABASE_URL'] });
    await server.connect();
    const name = new URL(test.url).pathname.slice(1);
    const space = `small_${name}`;
    try {
      const { rows } = await server.query<{ data_directory: string }>('SHOW data_directory');
      const { uid, gid } = statSync(rows[0]!.data_directory);
      const folder = join(disk.folder, 'tables');
      mkdirSync(folder);
      chownSync(folder, uid, gid);
      chmodSync(disk.folder, 0o755);
      await server.query(`CREATE TABLESPACE ${space} LOCATION '${folder}'`);
      await server.query(`GRANT CREATE ON TABLESPACE ${space} TO PUBLIC`);
      await server.query(`ALTER DATABASE ${name} SET default_tablespace = ${space}`);
      await server.query('SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1', [name]);
      const metrics = createMetrics();
      const writer = startWriter({ holdMilliseconds: 1000 }, metrics);
      const failed = async () => {
        const { values } = await metrics.getSingleMetric('kellet_telemetry_flush_failures_total')!.get();
        return values.find(({ labels }) => labels['cause'] === 'disk_full')?.value ?? 0;
      };
      await eventually(() =>
        writer.append(points(3)).then(
          () => true,
          () => false,
        ),
      );
      const stored = (await fsck(test.database)).rows;
      expect(await failed()).to.equal(0);
      disk.fill();
      let acknowledged = 0;
      let refusal: unknown;
      for (let n = 0; n < 200 && refusal === undefined; n += 1) {
        await writer.append(points(100, 'merkle', 1, 1000 + n * 100)).then(
          () => (acknowledged += 100),
          (error: unknown) => (refusal = error),
        );
      }
      expect(refusal).to.have.property('code', 'UNAVAILABLE');
      expect(() => writer.check()).to.throw('points cannot be stored');
      expect(await failed()).to.be.above(0);
      disk.free();
      await eventually(() =>
        writer.append(points(3, 'merkle', 2)).then(
          () => true,
          () => false,
        ),
      );
      writer.check();
      const before = await failed();
      await writer.append(points(3, 'merkle', 3));
      expect(await failed()).to.equal(before);
      await stop(writer);
      expect((await expectSound()).rows).to.be.at.least(stored + acknowledged + 3);
    } finally {
      await Promise.all(writers.splice(0).map((writer) => writer.stop()));
      await test.drop();
      await server.query(`DROP TABLESPACE IF EXISTS ${space}`).finally(() => server.end());
      disk.unmount();
      test = await createTestDatabase();
    }
  });

  it('stops in time while the database rejects every flush, and what was stored is sealed later', async () => {
    const writer = startWriter({ holdMilliseconds: 300 });
    await writer.append(points(3));
    await query('ALTER TABLE anchor_batches RENAME TO anchor_batches_away');
    const refused = await writer.append(points(20, 'merkle', 2)).then(
      () => 'stored',
      (error: { code?: string }) => error.code,
    );
    expect(refused).to.equal('UNAVAILABLE');
    const started = Date.now();
    await stop(writer);
    expect(Date.now() - started).to.be.lessThan(5000);
    await query('ALTER TABLE anchor_batches_away RENAME TO anchor_batches');
    for (let wait = 0; wait < 40 && (await takeOverDeadWriters(test.database, logger)) === 0; wait += 1) {
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
    expect(await expectSound()).to.include({ rows: 3, sealedBatches: 1 });
  });

  it('rejects flushes of a writer that was taken over and places the points again', async () => {
    const writer = startWriter();
    await writer.append(points(3));
    await query('UPDATE telemetry_writers SET epoch = epoch + 1');
    await writer.append(points(3, 'merkle', 1, 10));
    await stop(writer);
    expect((await expectSound()).rows).to.equal(6);
    expect(await query('SELECT FROM telemetry_writers')).to.have.length(2);
  });

  it('opens no segment for a writer that was taken over', async () => {
    const writer = startWriter({ segmentRows: 3 });
    await writer.append(points(3));
    const [first] = await query<{ writer_id: string }>('SELECT writer_id FROM telemetry_writers');
    // Its connection still lives, as when the network hid it for a while.
    await test.database.system((tx) => closeWriter(tx, first!.writer_id));
    await writer.append(points(3, 'merkle', 1, 10));
    await stop(writer);
    expect((await expectSound()).rows).to.equal(6);
    expect(await query(`SELECT FROM telemetry_segments WHERE state = 'open'`)).to.have.length(0);
    const segments = await query<{ writer_id: string }>('SELECT writer_id FROM telemetry_segments ORDER BY segment_id');
    expect(segments.map(({ writer_id: id }) => id === first!.writer_id)).to.deep.equal([true, false]);
  });

  it('leaves a live writer alone', async () => {
    const writer = startWriter();
    await writer.append(points(3));
    expect(await takeOverDeadWriters(test.database, logger)).to.equal(0);
    await writer.append(points(3, 'merkle', 1, 10));
    expect(await query('SELECT FROM telemetry_writers')).to.have.length(1);
  });
});
