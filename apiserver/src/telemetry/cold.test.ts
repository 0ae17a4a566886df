// Tests cold storage in a folder and in S3: cold points are read like hot ones, and files are as docs/cold-storage.md
// describes them.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, readdir, readFile, rm, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { create, type MessageInitShape } from '@bufbuild/protobuf';
import { timestampFromDate } from '@bufbuild/protobuf/wkt';
import { DuckDBInstance } from '@duckdb/node-api';
import type { TelemetryPointSchema } from '@kellet/proto/es/kellet/v1/common_pb';
import {
  GetHistoryRequest_Aggregation,
  GetHistoryRequest_Order,
  GetHistoryRequestSchema,
  GetLatestRequestSchema,
  IngestRequestSchema,
  TelemetryService,
} from '@kellet/proto/es/kellet/v1/telemetry_pb';
import { dataHash } from '@kellet/verify';
import { expect } from 'chai';
import { insertTenant } from '../auth/testing/test-fixtures.ts';
import { s3SettingsOf } from '../config/config.ts';
import { Broker } from '../platform/events/broker.ts';
import { MissingObjectError, type ObjectStore } from '../platform/object-store/object-store.ts';
import { openStore } from '../platform/object-store/open-store.ts';
import { createLogger } from '../platform/observability/logger.ts';
import { internalContext, publicCaller, ServiceRegistry } from '../platform/rpc.ts';
import { eventually } from '../platform/testing/eventually.ts';
import { createTestDatabase, type TestDatabase } from '../platform/testing/test-database.ts';
import { TestS3 } from '../platform/testing/test-s3.ts';
import { SmallDisk } from '../platform/testing/test-small-disk.ts';
import { TcpProxy } from '../platform/testing/test-tcp-proxy.ts';
import { retentionStarts } from '../policies/tenant-reader.ts';
import { runColdCommand } from './cold/cold-command.ts';
import { ColdFiles } from './cold/cold-files.ts';
import { type ColdWorkParts, doColdWork, removeTenantFiles } from './cold/cold-work.ts';
import type { Step } from './cold/file-writer.ts';
import { pageSlots, readTurns } from './cold/slow-read.ts';
import { readBuckets, readPoints } from './read/history.ts';
import { segmentsBetween } from './read/hot-points.ts';
import { createTelemetry, type TelemetryModule } from './service.ts';
import { testDevice, testDeviceId, TestDevices, testLiveness } from './testing/test-devices.ts';
import { testPlatform } from './testing/test-platform.ts';
import { recordedLeaves } from './write/open-batch-leaves.ts';
import { dropColdTables, expireNextSegment } from './write/segments.ts';

type PointInit = MessageInitShape<typeof TelemetryPointSchema>;

const methods = TelemetryService.method;
const deviceId = testDeviceId(1);
const dayMilliseconds = 86_400_000;
/** Some days ago, at midnight. */
const base = Math.floor(Date.now() / dayMilliseconds - 5) * dayMilliseconds;
const caller = { ...publicCaller, kind: 'service', tenantId: 'acme', credentialHash: 'a'.repeat(64) } as const;
const context = () => internalContext(caller);

describe('cold storage', function () {
  this.timeout(60_000);
  let s3: TestS3;
  let broker: Broker;
  let test: TestDatabase;
  let folder: string;
  let platform: ReturnType<typeof testPlatform>;
  let telemetry: TelemetryModule;
  let registry: ServiceRegistry;
  const opened: ObjectStore[] = [];

  before(async () => {
    s3 = await TestS3.start('cold');
    broker = new Broker(process.env['KELLET_TEST_NATS_URL']!, createLogger('fatal'));
  });
  after(async () => {
    await broker.close();
    await s3.stop();
  });
  beforeEach(async () => {
    test = await createTestDatabase();
    folder = await mkdtemp(join(tmpdir(), 'kellet-cold-'));
    for (const tenantId of ['acme', 'other']) await insertTenant(test.database, tenantId);
    await start();
  });
  afterEach(async () => {
    await stop();
    for (const store of opened.splice(0)) store.close();
    await test.drop();
    await rm(folder, { recursive: true, force: true });
    await rm(join(s3.folder, 'cold/kellet'), { recursive: true, force: true });
  });

  const urlOf = (kind: 'folder' | 's3') => (kind === 's3' ? 's3://cold/kellet' : pathToFileURL(folder).href);
  const settings = (kind: 'folder' | 's3') => ({
    KELLET_COLD_URL: urlOf(kind),
    KELLET_S3_ENDPOINT: s3.settings.endpoint,
    KELLET_S3_REGION: s3.settings.region,
    KELLET_S3_ACCESS_KEY: s3.settings.accessKey,
    KELLET_S3_SECRET_KEY: s3.settings.secretKey,
    KELLET_BATCH_POINTS: '50',
    KELLET_BATCH_SECONDS: '3600',
  });
  /** Starts the service; with `idleMilliseconds`, S3 has this long to respond. */
  async function start(
    kind: 'folder' | 's3' = 'folder',
    changes: Record<string, string> = {},
    idleMilliseconds?: number,
  ) {
    const devices = new TestDevices();
    for (const n of [1, 2]) devices.add('acme', testDevice(testDeviceId(n)));
    devices.add('acme', testDevice(testDeviceId(3), { anchoringMode: 'chain' }));
    devices.add('other', testDevice(testDeviceId(4)));
    platform = testPlatform(test.database, broker, { ...settings(kind), ...changes });
    const store =
      idleMilliseconds === undefined
        ? undefined
        : openStore(urlOf(kind), { ...s3SettingsOf(platform.config), idleMilliseconds });
    if (store) opened.push(store);
    telemetry = createTelemetry(platform, devices, testLiveness(), {
      ...(store && { cold: { store, files: new ColdFiles(store, platform) } }),
      ...{ maintenanceMilliseconds: 100, coldMilliseconds: 3_600_000, writer: { segmentRows: 500 } },
    });
    registry = new ServiceRegistry();
    telemetry.register(registry);
    await telemetry.start!();
  }
  async function stop() {
    await telemetry.stop!();
    await platform.close();
  }
  const send = (points: PointInit[], tenantId = 'acme') =>
    registry.unary(methods.ingest, create(IngestRequestSchema, { points }), internalContext({ ...caller, tenantId }));
  const point = (second: number, n: number, device = 1): PointInit => ({
    deviceId: testDeviceId(device),
    timestamp: new Date(base + second * 1000).toISOString(),
    numericValues: { n, ...(n % 7 === 0 && { seven: n / 7 }) },
    ...(n % 10 === 0 && { stringValues: { text: `ü ${n}` } }),
  });
  /** Sends points of two devices, one every 20 minutes, over three days, and some of another tenant and in chain mode. */
  const count = 216;
  async function sendDays() {
    for (let first = 0; first < count; first += 72) {
      const numbers = Array.from({ length: 72 }, (_, index) => first + index);
      await send(numbers.flatMap((n) => [point(n * 1200, n), point(n * 1200, -n, 2), point(n * 1200, n, 3)]));
    }
    await send(
      Array.from({ length: 20 }, (_, n) => point(n, n, 4)),
      'other',
    );
  }
  const history = (request: MessageInitShape<typeof GetHistoryRequestSchema> = {}) =>
    registry.unary(methods.getHistory, create(GetHistoryRequestSchema, { deviceId, ...request }), context());
  /** Reads all pages. */
  async function wholeHistory(request: MessageInitShape<typeof GetHistoryRequestSchema> = {}) {
    const all: Awaited<ReturnType<typeof history>>['points'] = [];
    let pageToken = '';
    do {
      const page = await history({ pageSize: 1000, ...request, pageToken });
      all.push(...page.points);
      ({ nextPageToken: pageToken } = page);
    } while (pageToken !== '');
    return all;
  }
  const coldRun = async (...args: string[]) => {
    const lines: string[] = [];
    const { config, logger } = platform;
    const parts = { config, logger, database: test.database, write: (line: string) => lines.push(line) };
    return { code: await runColdCommand(['run', ...args], parts), output: lines.join('\n') };
  };
  const turnAll = async () => {
    const { code, output } = await coldRun('--all');
    expect(code, output).to.equal(0);
    return output;
  };
  const numberOf = async (sql: string): Promise<number> => {
    const { rows } = await test.database.system((tx) =>
      tx.query<{ n: number }>(`SELECT count(*)::int4 AS n FROM ${sql}`),
    );
    return rows[0]!.n;
  };
  const filesBelow = async (root: string): Promise<string[]> => {
    const entries = await readdir(root, { recursive: true, withFileTypes: true }).catch(() => []);
    return entries
      .filter((entry) => entry.isFile())
      .map((entry) => join(entry.parentPath, entry.name).slice(root.length + 1))
      .sort();
  };
  const ownFiles = async () => (await filesBelow(folder)).filter((name) => !name.startsWith('_'));
  const codeOf = (call: Promise<unknown>): Promise<string> =>
    call.then(
      () => 'returned',
      (error: unknown) => (error as { code: string }).code,
    );
  const workParts = (changes: Partial<ColdWorkParts> = {}): ColdWorkParts => {
    const store = changes.store ?? openStore(urlOf('folder'), s3.settings);
    opened.push(store);
    const { logger } = platform;
    const files = new ColdFiles(store, { logger, metrics: testPlatform(test.database, broker).metrics });
    return { database: test.database, logger, store, files, hotSeconds: 0, ...changes };
  };
  /** Completes segments, so that the next round of work turns them. */
  const complete = async () => {
    const { code } = await coldRun();
    expect(code).to.equal(0);
    await test.database.system((tx) => tx.query('NOTIFY kellet_seal'));
    while ((await numberOf(`telemetry_segments WHERE state IN ('open', 'sealed')`)) > 0)
      await new Promise((resolve) => setTimeout(resolve, 50));
  };
  const noSignal = new AbortController().signal;
  /** Runs the cold work as soon as no other process does: the service looks for work when it starts. */
  const work = async (parts: ColdWorkParts): Promise<void> => {
    while (!(await doColdWork(parts, noSignal))) await new Promise((resolve) => setTimeout(resolve, 50));
  };

  for (const kind of ['folder', 's3'] as const) {
    it(`reads the same from ${kind === 's3' ? 'S3' : 'a folder'} as from segments, in pages and buckets`, async () => {
      await stop();
      await start(kind);
      await sendDays();
      const requests: MessageInitShape<typeof GetHistoryRequestSchema>[] = [
        {},
        { pageSize: 7 },
        { pageSize: 7, order: GetHistoryRequest_Order.desc },
        { pageSize: 3, keys: ['seven', 'text'] },
        { pageSize: 50, deviceId: testDeviceId(3), order: GetHistoryRequest_Order.desc },
        { start: timestampFromDate(new Date(base + 1200_000)), end: timestampFromDate(new Date(base + 100_000_000)) },
        ...(['avg', 'min', 'max', 'sum', 'count', 'last'] as const).flatMap((aggregation) =>
          [GetHistoryRequest_Order.asc, GetHistoryRequest_Order.desc].map((order) => ({
            ...{ intervalSeconds: 7000, pageSize: 9, order },
            aggregation: GetHistoryRequest_Aggregation[aggregation],
          })),
        ),
        { intervalSeconds: 90_000, keys: ['n'] },
      ];
      const readAll = () => Promise.all(requests.map((request) => wholeHistory(request)));
      const before = await readAll();
      expect(before[0]).to.have.length(count);
      const latest = () => registry.unary(methods.getLatest, create(GetLatestRequestSchema, { deviceId }), context());
      const latestBefore = await latest();
      expect(await turnAll()).to.match(/^668 points turned cold/);
      expect(await numberOf('telemetry_points')).to.equal(0);
      expect(await numberOf(`telemetry_segments WHERE state <> 'cold'`)).to.equal(0);
      expect(await readAll()).to.deep.equal(before);
      expect(await latest()).to.deep.equal(latestBefore);
      // Points that come late and points sent again, hot and cold.
      await send([point(600, 1000), ...Array.from({ length: 10 }, (_, n) => point(n * 1200, n))]);
      const mixed = await readAll();
      expect(mixed[0]).to.have.length(count + 1);
      expect(mixed[1]).to.deep.equal(mixed[0]);
      expect(mixed[2]).to.deep.equal(mixed[0]!.toReversed());
      await turnAll();
      expect(await readAll()).to.deep.equal(mixed);
      expect(await turnAll()).to.match(/^0 points/);
      const names = await filesBelow(kind === 's3' ? join(s3.folder, 'cold/kellet') : folder);
      expect(names.filter((name) => name.startsWith('tenant_id=other/'))).to.have.length(1);
      for (const name of names)
        expect(name).to.match(/^tenant_id=(acme|other)\/date=\d{4}-\d\d-\d\d\/[-0-9a-f]{36}\.parquet$/);
    });
  }

  it('returns a year of a device in one paged call, whatever is cold', async () => {
    const numbers = Array.from({ length: 73 }, (_, n) => n);
    const start = base - 365 * dayMilliseconds;
    const later = numbers.map((n) => point((n * 5 * dayMilliseconds - 365 * dayMilliseconds) / 1000, n));
    await send(later.slice(0, 60));
    await turnAll();
    await send(later.slice(60));
    expect(await numberOf('telemetry_points')).to.equal(13);
    const year = { start: timestampFromDate(new Date(start)), end: timestampFromDate(new Date(base)) };
    const { points, nextPageToken } = await history({ ...year, pageSize: 1000 });
    expect(points.map((one) => one.numericValues.n)).to.deep.equal(numbers);
    expect(nextPageToken).to.equal('');
    expect(await wholeHistory({ ...year, pageSize: 10 })).to.deep.equal(points);
  });

  it('writes files that DuckDB reads, in order, and from whose columns every hash is computed', async () => {
    await sendDays();
    await turnAll();
    const instance = await DuckDBInstance.create(':memory:');
    const connection = await instance.connect();
    const files = `read_parquet('${folder}/tenant_id=*/*/*.parquet', hive_partitioning = true, hive_types_autocast = false)`;
    const described = await connection.runAndReadAll(`DESCRIBE SELECT * FROM ${files}`);
    expect(described.getRows().map(([name, type]) => `${String(name)} ${String(type)}`)).to.deep.equal([
      ...['device_id VARCHAR', 'time_ns BIGINT', 'payload VARCHAR', 'data_hash BLOB', 'batch_id VARCHAR'],
      ...['leaf_index INTEGER', 'received_ns BIGINT', 'date VARCHAR', 'tenant_id VARCHAR'],
    ]);
    const reader = await connection.runAndReadAll(
      `SELECT tenant_id, date, device_id, time_ns, payload, hex(data_hash) AS hash, received_ns, filename
       FROM read_parquet('${folder}/tenant_id=*/*/*.parquet', hive_partitioning = true, hive_types_autocast = false, filename = true)`,
    );
    const rows = reader.getRowObjects();
    expect(rows).to.have.length(668);
    const last = new Map<unknown, string>();
    for (const row of rows) {
      const time = row['time_ns'] as bigint;
      const expected = dataHash({
        tenantId: row['tenant_id'] as string,
        deviceId: row['device_id'] as string,
        timestampSeconds: Number(time / 1_000_000_000n),
        payload: row['payload'] as string,
      });
      expect((row['hash'] as string).toLowerCase()).to.equal(expected);
      expect(row['date']).to.equal(new Date(Number(time / 1_000_000n)).toISOString().slice(0, 10));
      expect(Number((row['received_ns'] as bigint) / 1_000_000n)).to.be.within(Date.now() - 60_000, Date.now() + 1000);
      const key = `${row['device_id'] as string} ${String(time).padStart(20, '0')}`;
      expect(key > (last.get(row['filename']) ?? ''), 'order').to.equal(true);
      last.set(row['filename'], key);
    }
    const codecs = await connection.runAndReadAll(
      `SELECT DISTINCT compression FROM parquet_metadata('${folder}/tenant_id=*/*/*.parquet')`,
    );
    expect(codecs.getRows()).to.deep.equal([['ZSTD']]);
    connection.closeSync();
    instance.closeSync();
  });

  it('fails the reads that need a damaged or missing file, and no others', async () => {
    await sendDays();
    await turnAll();
    const [damaged, missing, kept] = (await ownFiles()).filter((name) => name.startsWith('tenant_id=acme/'));
    const content = await readFile(join(folder, damaged!));
    const range = (day: number) => ({
      start: timestampFromDate(new Date(base + day * dayMilliseconds)),
      end: timestampFromDate(new Date(base + (day + 1) * dayMilliseconds)),
    });
    // The service has read the file before. What it keeps in memory must not hide the damage.
    expect(await wholeHistory(range(0))).to.have.length(72);
    const damage: [string, () => Promise<unknown>][] = [
      ['cut short', () => truncate(join(folder, damaged!), content.length - 100)],
      ['empty', () => truncate(join(folder, damaged!), 0)],
      ['missing', () => rm(join(folder, damaged!))],
    ];
    for (const at of [100, 2000, content.length >> 1]) {
      const changed = Buffer.from(content);
      changed[at]! ^= 0x10;
      damage.push([`changed at ${at}`, () => writeFile(join(folder, damaged!), changed)]);
    }
    for (const [what, make] of damage) {
      await make();
      await stop();
      await start();
      // A change is noticed wherever it is, also in a column that history does not return, such as received_ns.
      expect(
        await codeOf(
          wholeHistory(range(0))
            .then(() => wholeHistory({ ...range(0), deviceId: testDeviceId(2) }))
            .then(() => wholeHistory({ ...range(0), deviceId: testDeviceId(3) })),
        ),
        what,
      ).to.equal('INTERNAL');
      expect(await wholeHistory(range(1)), what).to.have.length(72);
      await writeFile(join(folder, damaged!), content);
    }
    expect(await wholeHistory(range(0))).to.have.length(72);
    await rm(join(folder, missing!));
    expect(await codeOf(wholeHistory(range(1)))).to.equal('INTERNAL');
    expect(await codeOf(wholeHistory())).to.equal('INTERNAL');
    expect(await wholeHistory(range(2)), kept).to.have.length(72);
    const metrics = await platform.metrics.metrics();
    expect(metrics).to.match(/kellet_cold_read_failures_total\{cause="missing"\} [1-9]/);
  });

  it('merges the runs of a date, and moves the old files away in the same step', async () => {
    const parts = workParts();
    for (let round = 0; round < 9; round += 1) {
      await send(Array.from({ length: 20 }, (_, index) => point(index * 9 + round, index * 9 + round)));
      await turnAll();
    }
    const whole = await wholeHistory();
    expect(whole.map(({ numericValues }) => numericValues['n'])).to.deep.equal(
      Array.from({ length: 180 }, (_, n) => n),
    );
    // The eighth has caused a merge.
    expect(await ownFiles()).to.have.length(2);
    const superseded = async () => (await filesBelow(folder)).filter((name) => name.startsWith('_superseded/'));
    expect(await superseded()).to.have.length(8);
    expect(await numberOf(`cold_files WHERE state = 'live'`)).to.equal(2);
    // A day later the rest is merged too.
    await test.database.system((tx) => tx.query('UPDATE cold_dates SET compact_at = now()'));
    await work(parts);
    expect(await ownFiles()).to.have.length(1);
    expect(await wholeHistory()).to.deep.equal(whole);
    expect(await numberOf('cold_dates')).to.equal(0);
    expect(await superseded()).to.have.length(10);
    await test.database.system((tx) =>
      tx.query(`UPDATE cold_files SET superseded_at = superseded_at - interval '59 minutes'`),
    );
    await work(parts);
    expect(await superseded()).to.have.length(10);
    await test.database.system((tx) =>
      tx.query(`UPDATE cold_files SET superseded_at = superseded_at - interval '2 minutes'`),
    );
    await work(parts);
    expect(await superseded()).to.have.length(0);
    expect(await numberOf('cold_files')).to.equal(1);
    expect(await wholeHistory()).to.deep.equal(whole);
    expect(await filesBelow(folder)).to.have.length(1);
  });

  it('drops no points whose file cannot be written or read back unchanged', async () => {
    await sendDays();
    await complete();
    const before = await wholeHistory();
    const whole = openStore(urlOf('folder'), s3.settings);
    const faulty = (changes: Partial<ObjectStore>): ObjectStore => ({
      put: (name, bytes) => whole.put(name, bytes),
      read: (name, offset, length) => whole.read(name, offset, length),
      move: (from, to) => whole.move(from, to),
      remove: (name) => whole.remove(name),
      list: (name, after) => whole.list(name, after),
      close: () => undefined,
      ...changes,
    });
    const faults: [string, Partial<ObjectStore>][] = [
      ['away', { put: () => Promise.reject(new Error('ECONNREFUSED')) }],
      ['that stores too little', { put: (name, bytes) => whole.put(name, bytes.subarray(0, bytes.length - 500)) }],
      ['that stores nothing', { put: () => Promise.resolve() }],
      ['that cannot be read', { read: (name) => Promise.reject(new MissingObjectError(name)) }],
    ];
    for (const at of [10, 1000, 2000, 3000]) {
      const read = async (name: string, offset: number, length: number) => {
        const bytes = Buffer.from(await whole.read(name, offset, length));
        if (offset <= at && at < offset + length) bytes[at - offset]! ^= 1;
        return bytes;
      };
      faults.push([`that returns another byte ${at}`, { read }]);
    }
    for (const [what, fault] of faults) {
      const parts = workParts({ store: faulty(fault) });
      expect(await codeOf(work(parts)), what).not.to.equal('returned');
      expect(await numberOf('telemetry_points'), what).to.equal(668);
      expect(await numberOf('cold_files'), what).to.equal(0);
      expect(await wholeHistory(), what).to.deep.equal(before);
    }
    // In a store that cannot move files, the points stay safe where they are.
    const stuck = workParts({ store: faulty({ move: () => Promise.reject(new Error('EIO')) }) });
    expect(await codeOf(work(stuck))).not.to.equal('returned');
    expect(await wholeHistory()).to.deep.equal(before);
    await turnAll();
    expect(await wholeHistory()).to.deep.equal(before);
    expect((await filesBelow(folder)).filter((name) => name.startsWith('_'))).to.deep.equal([]);
  });

  /** Sends a point of the device on each of so many dates, from 1970 on. */
  const sendDates = async (dates: number, n: number) => {
    for (let first = 0; first < dates; first += 1000) {
      await send(
        Array.from({ length: Math.min(1000, dates - first) }, (_, index) => ({
          ...{ deviceId, numericValues: { n } },
          timestamp: new Date((first + index) * dayMilliseconds + n * 1000).toISOString(),
        })),
      );
    }
  };

  it('writes several files at a time, and none any more once one of them has failed', async () => {
    const dates = 60;
    await sendDates(dates, 1);
    await complete();
    const before = await wholeHistory();
    expect(before).to.have.length(dates);
    const whole = openStore(urlOf('folder'), s3.settings);
    opened.push(whole);
    const steps = ['put', 'read', 'move'] as const;
    for (const failing of steps) {
      const calls = { put: 0, read: 0, move: 0 };
      let running = 0;
      let most = 0;
      const slowly = <Result>(step: (typeof steps)[number], work: () => Promise<Result>): Promise<Result> => {
        calls[step] += 1;
        const fails = step === failing && calls[step] === 20;
        running += 1;
        most = Math.max(most, running);
        // The one that fails does so while the others go on.
        return new Promise((resolve) => setTimeout(resolve, fails ? 1 : 10))
          .then(() => (fails ? Promise.reject(new Error(`EIO ${step}`)) : work()))
          .finally(() => (running -= 1));
      };
      const store = Object.assign(Object.create(whole) as ObjectStore, {
        put: (name: string, bytes: Buffer) => slowly('put', () => whole.put(name, bytes)),
        read: (name: string, offset: number, length: number) => slowly('read', () => whole.read(name, offset, length)),
        move: (from: string, to: string) => slowly('move', () => whole.move(from, to)),
      });
      const failure = await work(workParts({ store })).catch((error: unknown) => error);
      expect(failure).to.have.property('message', `EIO ${failing}`);
      expect(running, failing).to.equal(0);
      expect(most, failing).to.equal(8);
      expect(calls[failing], failing).to.be.within(20, 28);
      const isTurned = failing === 'move';
      expect(await numberOf('cold_files'), failing).to.equal(isTurned ? dates : 0);
      expect(await numberOf('telemetry_points'), failing).to.equal(isTurned ? 0 : dates);
      expect(await wholeHistory(), failing).to.deep.equal(before);
    }
    // Those that were moved are noted, although another failed.
    expect(await numberOf(`cold_files WHERE place = 'own'`)).to.be.within(19, 27);
    await turnAll();
    expect(await ownFiles()).to.have.length(dates);
    expect((await filesBelow(folder)).filter((name) => name.startsWith('_'))).to.deep.equal([]);
    expect(await wholeHistory()).to.deep.equal(before);
  });

  it('merges many dates in one attempt, and the others if a file of one is damaged', async () => {
    const dates = 30;
    for (const n of [1, 2]) {
      await sendDates(dates, n);
      await turnAll();
    }
    const before = await wholeHistory();
    expect(before).to.have.length(2 * dates);
    const due = () => test.database.system((tx) => tx.query('UPDATE cold_dates SET compact_at = now()'));
    expect(await numberOf('cold_dates')).to.equal(dates);
    const damaged = (await ownFiles()).find((name) => name.includes('date=1970-01-13/'))!;
    const content = await readFile(join(folder, damaged));
    const changed = Buffer.from(content);
    changed[changed.length >> 1]! ^= 1;
    await writeFile(join(folder, damaged), changed);
    await due();
    let attempts = 0;
    const checkpoint = (step: Step) => void (attempts += step === 'committed' ? 1 : 0);
    expect(await codeOf(work(workParts({ checkpoint })))).not.to.equal('returned');
    // The next round goes on with the other dates at once.
    await work(workParts({ checkpoint }));
    expect(await numberOf('cold_dates')).to.equal(1);
    expect(
      await numberOf(`cold_dates WHERE date = '1970-01-13' AND compact_at > now() + interval '50 minutes'`),
    ).to.equal(1);
    expect(await ownFiles()).to.have.length(dates + 1);
    await writeFile(join(folder, damaged), content);
    expect(await wholeHistory()).to.deep.equal(before);
    await due();
    await work(workParts());
    expect(await ownFiles()).to.have.length(dates);
    // Now in one attempt.
    attempts = 0;
    await sendDates(dates, 3);
    await turnAll();
    await due();
    await work(workParts({ checkpoint }));
    expect(attempts).to.equal(1);
    expect(await ownFiles()).to.have.length(dates);
    expect(await wholeHistory()).to.have.length(3 * dates);
    expect(await numberOf('cold_dates')).to.equal(0);
    expect(await numberOf('cold_attempts')).to.equal(0);
  });

  it('turns segments although reads, of whichever tenant, hold their tables all the time', async () => {
    await sendDays();
    await complete();
    const ending = new AbortController();
    // Each as long as a read may take, beginning while others have not ended.
    const read = async (): Promise<void> => {
      const found = await segmentsBetween(test.database, 0n, 2n ** 62n);
      await test.database.system(async (tx) => {
        for (const { segment_id: id } of found) await tx.query(`SELECT FROM telemetry_segment_${id} LIMIT 0`);
        await new Promise((resolve) => setTimeout(resolve, 1000));
      });
    };
    const readers = Array.from({ length: 3 }, async (_, index) => {
      await new Promise((resolve) => setTimeout(resolve, index * 300));
      // A table is dropped between the two steps of a read.
      while (!ending.signal.aborted) await read().catch(() => undefined);
    });
    try {
      await new Promise((resolve) => setTimeout(resolve, 700));
      await work(workParts());
      expect(await numberOf(`telemetry_segments WHERE state = 'indexed'`)).to.equal(0);
      expect(await wholeHistory()).to.have.length(count);
      // Nobody looks into them any more.
      await eventually(() => dropColdTables(test.database));
      expect(await numberOf('telemetry_points')).to.equal(0);
      expect(await wholeHistory()).to.have.length(count);
    } finally {
      ending.abort();
      await Promise.all(readers);
    }
  });

  it('deletes nothing of a tenant before the tables of cold segments are gone, nor keeps its process from stopping', async () => {
    await sendDays();
    await complete();
    const reader = Promise.withResolvers<undefined>();
    const isHeld = Promise.withResolvers<undefined>();
    const reading = test.database.system(async (tx) => {
      await tx.query('SELECT FROM telemetry_points LIMIT 1');
      isHeld.resolve(undefined);
      await reader.promise;
    });
    await isHeld.promise;
    await work(workParts());
    expect(await numberOf('telemetry_points')).to.be.above(0);
    const left: number[] = [];
    const remove = (signal?: AbortSignal) =>
      removeTenantFiles(workParts(), 'acme', async () => void left.push(await numberOf('telemetry_points')), {
        waiting: () => undefined,
        ...(signal && { signal }),
      });
    const stopping = remove(AbortSignal.timeout(1000)).catch((error: Error) => error.name);
    expect(await stopping).to.equal('TimeoutError');
    const removal = remove();
    setTimeout(() => reader.resolve(undefined), 1000);
    await Promise.all([removal, reading]);
    expect(left).to.deep.equal([0]);
  });

  it('turns new segments before it goes on merging dates', async () => {
    const dates = 150;
    for (const n of [1, 2]) {
      await sendDates(dates, n);
      await turnAll();
    }
    await test.database.system((tx) => tx.query('UPDATE cold_dates SET compact_at = now()'));
    const turned: number[] = [];
    let isSent = false;
    const checkpoint = async (step: Step) => {
      // In the first of two attempts.
      if (step !== 'committed' || isSent) return;
      isSent = true;
      await send([point(1, 1, 4)], 'other');
      await test.database.system((tx) => tx.query('NOTIFY kellet_seal'));
      await eventually(
        async () =>
          (await numberOf(`telemetry_segments WHERE state IN ('open', 'sealed')`)) === 0 &&
          (await numberOf(`telemetry_segments WHERE state = 'indexed' AND counted`)) === 1,
      );
    };
    await work(workParts({ checkpoint, turned: () => void numberOf('cold_dates').then((left) => turned.push(left)) }));
    expect(await numberOf('cold_dates')).to.equal(0);
    expect(await numberOf('telemetry_points')).to.equal(0);
    // With dates left to merge.
    expect(turned).to.deep.equal([dates - 100]);
  });

  /** The number of failed rounds since the service was started, once there is one. */
  const failedRounds = async () =>
    Number(/^kellet_cold_failures_total (\d+)$/m.exec(await platform.metrics.metrics())?.[1] ?? 0);

  it('keeps points hot while the disk of the folder is full, and turns them once there is room', async function () {
    const disk = SmallDisk.mount(256);
    if (!disk) return this.skip();
    try {
      await sendDays();
      await complete();
      const before = await wholeHistory();
      disk.fill();
      const url = { KELLET_COLD_URL: pathToFileURL(disk.folder).href, KELLET_HOT_HOURS: '0' };
      await stop();
      await start('folder', url);
      await eventually(async () => (await failedRounds()) > 0);
      expect(await numberOf('telemetry_points')).to.equal(668);
      expect(await numberOf('cold_files')).to.equal(0);
      expect(await wholeHistory()).to.deep.equal(before);
      disk.free();
      await turnAll();
      expect(await numberOf('telemetry_points')).to.equal(0);
      expect(await wholeHistory()).to.deep.equal(before);
      // Nothing is left of the attempts that failed.
      const files = await filesBelow(disk.folder);
      expect(files.filter((name) => !name.startsWith('tenant_id=') && name !== '_filler')).to.deep.equal([]);
    } finally {
      await stop();
      disk.unmount();
      await start();
    }
  });

  it('keeps points hot while S3 is away, refuses reads of cold ones, and recovers', async () => {
    const proxy = await TcpProxy.before(s3.settings.endpoint);
    try {
      await sendDays();
      await complete();
      const before = await wholeHistory();
      const through = {
        KELLET_S3_ENDPOINT: proxy.through(s3.settings.endpoint).replace(/\/$/, ''),
        KELLET_HOT_HOURS: '0',
      };
      proxy.cut();
      await stop();
      await start('s3', through);
      await eventually(async () => (await failedRounds()) > 0);
      expect(await numberOf('telemetry_points')).to.equal(668);
      expect(await wholeHistory()).to.deep.equal(before);
      proxy.restore();
      await turnAll();
      expect(await numberOf('telemetry_points')).to.equal(0);
      await stop();
      await start('s3', through);
      proxy.cut();
      expect(await codeOf(wholeHistory())).not.to.equal('returned');
      expect(await platform.metrics.metrics()).to.match(/kellet_cold_read_failures_total\{cause="[a-z]+"\} [1-9]/);
      // Points are taken and read meanwhile.
      await send([point(400_000, 1)]);
      const since = timestampFromDate(new Date(base + 400_000_000));
      expect(await wholeHistory({ start: since })).to.have.length(1);
      proxy.restore();
      proxy.delayMilliseconds = 20;
      expect(await wholeHistory()).to.have.length(before.length + 1);
    } finally {
      await proxy.close();
    }
  });

  it('keeps points hot while S3 accepts connections and never responds, refuses reads of cold ones in time, and recovers', async () => {
    const proxy = await TcpProxy.before(s3.settings.endpoint);
    try {
      await sendDays();
      await complete();
      const before = await wholeHistory();
      const through = {
        KELLET_S3_ENDPOINT: proxy.through(s3.settings.endpoint).replace(/\/$/, ''),
        KELLET_HOT_HOURS: '0',
      };
      proxy.silence();
      await stop();
      await start('s3', through, 200);
      await eventually(async () => (await failedRounds()) > 0);
      expect(await numberOf('telemetry_points')).to.equal(668);
      expect(await numberOf('cold_files')).to.equal(0);
      expect(await wholeHistory()).to.deep.equal(before);
      proxy.restore();
      await turnAll();
      expect(await numberOf('telemetry_points')).to.equal(0);
      await stop();
      await start('s3', through, 200);
      proxy.silence();
      const refused = await wholeHistory().catch((error: unknown) => error);
      expect(refused).to.include({ code: 'UNAVAILABLE', message: 'cold storage cannot be read at the moment' });
      expect(await platform.metrics.metrics()).to.match(/kellet_cold_read_failures_total\{cause="store"\} [1-9]/);
      // Points are taken and read meanwhile.
      await send([point(400_000, 1)]);
      const since = timestampFromDate(new Date(base + 400_000_000));
      expect(await wholeHistory({ start: since })).to.have.length(1);
      proxy.restore();
      expect(await wholeHistory()).to.have.length(before.length + 1);
    } finally {
      await proxy.close();
    }
  });

  it('keeps the leaves of open batches whose points turn cold, and waits until what follows from points is written', async () => {
    await sendDays();
    await complete();
    const before = await wholeHistory();
    // A batch that is still open has no leaves; the times say that it was opened later, by a clock that was set back.
    const { rows } = await test.database.system((tx) =>
      tx.query<{ batch_id: string; leaves: Buffer }>(
        `UPDATE anchor_batches AS b SET status = 'open', created_at = now() + interval '2 hours' FROM
           (SELECT batch_id, leaves FROM anchor_batches WHERE count > 10 LIMIT 1) AS was
         WHERE b.batch_id = was.batch_id RETURNING b.batch_id, was.leaves`,
      ),
    );
    const setTail = (since: string) =>
      test.database.system((tx) => tx.query(`UPDATE telemetry_tails SET since = ${since}`));
    await setTail('0');
    await work(workParts());
    expect(await numberOf('telemetry_points')).to.equal(668);
    await setTail('extract(epoch FROM now())::int8 * 1000 + 3600000');
    await work(workParts());
    expect(await numberOf('telemetry_points')).to.equal(0);
    expect(await wholeHistory()).to.deep.equal(before);
    const recorded = await test.database.system((tx) => recordedLeaves(tx, rows[0]!.batch_id));
    expect(Buffer.concat(recorded.map(({ hash }) => hash)).equals(rows[0]!.leaves)).to.equal(true);
  });

  it('ends a page that takes too long, and refuses a range if nothing is found in time', async () => {
    await send(Array.from({ length: 2000 }, (_, n) => point(n * 10, n)));
    await turnAll();
    const { files } = workParts();
    const source = { database: test.database, cold: files, turns: readTurns(8), pages: pageSlots() };
    const [start, end] = [BigInt(base) * 1_000_000n, BigInt(base + dayMilliseconds) * 1_000_000n];
    const range = { tenantId: 'acme', deviceId, start, end, keys: [], descending: false, limit: 5000 };
    const page = await readPoints({ ...source, readMilliseconds: 0 }, range, undefined);
    expect(page).to.include({ isCut: true });
    expect(page.rows.length).to.be.within(1, 300);
    const last = page.rows.at(-1)!;
    const after = { time: String(last.time), hash: last.dataHash.toString('hex') };
    const rest = await readPoints(source, range, after);
    expect(page.rows.length + rest.rows.length).to.equal(2000);
    const buckets = await readBuckets({ ...source, readMilliseconds: 0 }, range, 100_000_000_000n, 'count');
    expect(buckets).to.include({ isCut: true });
    for (const { numeric } of buckets.rows) expect(numeric['n']).to.equal(10);
    const none = { ...source, readMilliseconds: 0 };
    expect(await codeOf(readPoints(none, { ...range, keys: ['none'] }, undefined))).to.equal('DEADLINE_EXCEEDED');
    expect(await codeOf(readBuckets(none, range, 10n ** 18n, 'sum'))).to.equal('DEADLINE_EXCEEDED');
  });

  it('is read a few times at once by a tenant and in all, however pages end', async () => {
    await sendDays();
    await turnAll();
    const whole = openStore(urlOf('folder'), s3.settings);
    opened.push(whole);
    const gate = Promise.withResolvers<void>();
    const reading: string[] = [];
    const store = Object.assign(Object.create(whole) as ObjectStore, {
      read: async (name: string, offset: number, length: number) => {
        reading.push(name.split('/')[0]!);
        await gate.promise;
        return whole.read(name, offset, length);
      },
    });
    const { files } = workParts({ store });
    const source = { database: test.database, cold: files, turns: readTurns(8), pages: pageSlots() };
    const [start, end] = [BigInt(base) * 1_000_000n, BigInt(base + 3 * dayMilliseconds) * 1_000_000n];
    const range = { tenantId: 'acme', deviceId, start, end, keys: [], descending: false, limit: 5 };
    const pages = Array.from({ length: 8 }, () => readPoints(source, range, undefined));
    // The other four wait for pages of the tenant to end.
    await eventually(() => Promise.resolve(files.turns.waiting === 2 && source.pages.small.waiting === 4));
    const others = { ...range, tenantId: 'other', deviceId: testDeviceId(4) };
    pages.push(readPoints(source, others, undefined));
    await eventually(() => Promise.resolve(reading.includes('tenant_id=other')));
    expect(reading).to.deep.equal(['tenant_id=acme', 'tenant_id=acme', 'tenant_id=other']);
    const late = readPoints({ ...source, readMilliseconds: 0 }, range, undefined);
    expect(await codeOf(late)).to.equal('UNAVAILABLE');
    gate.resolve();
    // Each ends in the middle of a date.
    for (const page of await Promise.all(pages)) expect(page.rows).to.have.length(5);
    expect(files.turns.running).to.equal(0);
    const failing = Object.assign(Object.create(whole) as ObjectStore, {
      read: () => Promise.reject(new MissingObjectError('gone')),
    });
    const missing = workParts({ store: failing }).files;
    expect(await codeOf(readPoints({ ...source, cold: missing }, range, undefined))).to.equal('INTERNAL');
    expect(missing.turns.running).to.equal(0);
  });

  it('reads many points for a few readers at once, and serves others meanwhile', async () => {
    const text = 'x'.repeat(4000);
    for (let first = 0; first < 600; first += 200)
      await send(
        Array.from({ length: 200 }, (_, n) => ({ ...point(first + n, n), stringValues: { a: text, b: text } })),
      );
    const { files } = workParts();
    const turns = readTurns(2);
    const source = { database: test.database, cold: files, turns, pages: pageSlots() };
    const [start, end] = [BigInt(base) * 1_000_000n, BigInt(base + dayMilliseconds) * 1_000_000n];
    const range = { tenantId: 'acme', deviceId, start, end, keys: [], descending: false, limit: 5000 };
    const held = await Promise.all([1, 2].map(() => turns.acquire('acme')));
    const waiting = readBuckets(source, range, 10n ** 18n, 'count');
    expect(await codeOf(readPoints({ ...source, readMilliseconds: 50 }, range, undefined))).to.equal('UNAVAILABLE');
    const few = await readPoints(source, { ...range, limit: 100 }, undefined);
    expect(few.rows).to.have.length(100);
    expect(turns.waiting).to.equal(1);
    for (const leave of held) leave();
    let pauses = 0;
    const count = () => {
      pauses += 1;
      timer = setImmediate(count);
    };
    const page = (await waiting).rows;
    let timer = setImmediate(count);
    const { rows } = await readPoints(source, range, undefined);
    clearImmediate(timer);
    expect(rows).to.have.length.within(400, 600);
    // 4 MiB of points, with a pause for others after each eighth of a MiB.
    expect(pauses).to.be.greaterThan(20);
    expect(page.map(({ numeric }) => numeric['n'])).to.deep.equal([600]);
    expect([turns.running, turns.waiting]).to.deep.equal([0, 0]);
  });

  it('drops points past their retention, hot and cold, and keeps those of other tenants', async () => {
    const retain = (days: number) =>
      test.database.system((tx) => tx.query(`UPDATE tenants SET retention_days = $1 WHERE tenant_id = 'acme'`, [days]));
    await sendDays();
    await turnAll();
    // The same dates again, in a segment.
    await sendDays();
    await complete();
    const whole = await wholeHistory();
    expect(whole).to.have.length(count);
    const days = Math.floor((Date.now() - base) / dayMilliseconds);
    await retain(days - 1);
    const from = Date.now() - (days - 1) * dayMilliseconds;
    const isKept = ({ timestamp }: { timestamp: string }) => Date.parse(timestamp) >= from;
    // At once, before anything is deleted.
    const kept = whole.filter(isKept);
    expect(kept.length).to.be.within(1, count - 1);
    const near = (points: typeof whole) =>
      expect(points.map(({ timestamp }) => timestamp)).to.deep.equal(kept.map(({ timestamp }) => timestamp));
    near(await wholeHistory());
    near((await wholeHistory({ order: GetHistoryRequest_Order.desc })).toReversed());
    expect(await wholeHistory({ intervalSeconds: 1200 })).to.have.length(kept.length);
    await turnAll();
    near(await wholeHistory());
    const dates = (await ownFiles())
      .filter((name) => name.startsWith('tenant_id=acme/'))
      .map((name) => name.slice(20, 30));
    expect(Math.min(...dates.map((date) => Date.parse(date)))).to.be.above(from - dayMilliseconds);
    expect(await numberOf(`cold_files WHERE state = 'live' AND tenant_id = 'other'`)).to.equal(2);
    // None of it reappears.
    await retain(0);
    expect((await wholeHistory()).length).to.be.below(count);
    // Without cold storage too: rows are deleted, and empty segments dropped.
    await sendDays();
    await complete();
    await retain(1);
    const rowsOf = (tenant: string) => numberOf(`telemetry_points WHERE tenant_id = '${tenant}'`);
    expect([await rowsOf('acme'), await rowsOf('other')]).to.deep.equal([648, 20]);
    const starts = await test.database.systemRead((tx) => retentionStarts(tx));
    while (await expireNextSegment(test.database, starts));
    expect([await rowsOf('acme'), await rowsOf('other')]).to.deep.equal([0, 20]);
    expect(await numberOf(`telemetry_segments WHERE state = 'indexed'`)).to.equal(1);
    expect(await wholeHistory()).to.deep.equal([]);
  });

  it('neither loses nor duplicates points when it is killed in any step', async function () {
    this.timeout(240_000);
    const instance = await DuckDBInstance.create(':memory:');
    const connection = await instance.connect();
    /** Rows of device 1 as an outside reader of the folder finds them: all, and different ones. */
    const outside = async (): Promise<[number, number]> => {
      if ((await ownFiles()).length === 0) return [0, 0];
      const found = await connection.runAndReadAll(
        `SELECT count(*)::int4, count(DISTINCT time_ns)::int4 FROM read_parquet('${folder}/tenant_id=*/*/*.parquet')
         WHERE device_id = '${deviceId}'`,
      );
      return found.getRows()[0] as [number, number];
    };
    const runUntil = async (killAt: number): Promise<string | null> => {
      const child = spawn(process.execPath, [join(import.meta.dirname, 'testing/cold-worker.ts')], {
        env: {
          ...process.env,
          KELLET_TEST_COLD_DATABASE_URL: test.url,
          KELLET_COLD_URL: urlOf('folder'),
          KELLET_TEST_KILL_AT: String(killAt),
        },
        stdio: ['ignore', 'inherit', 'inherit'],
      });
      await once(child, 'exit');
      return child.signalCode;
    };
    let sent = 0;
    let kills = 0;
    // Each round turns points of the same three dates, whose files are written at a time, so that there is something to merge.
    for (let killAt = 1, isKilled = true; isKilled; killAt += 1) {
      await send(Array.from({ length: 20 }, (_, n) => point((n * 16 + killAt) * 700, sent + n)));
      sent += 20;
      await test.database.system((tx) => tx.query('NOTIFY kellet_seal'));
      while ((await numberOf(`telemetry_segments WHERE state IN ('open', 'sealed')`)) > 0)
        await new Promise((resolve) => setTimeout(resolve, 50));
      await test.database.system(async (tx) => {
        await tx.query('UPDATE cold_dates SET compact_at = now()');
        await tx.query(`UPDATE cold_files SET superseded_at = now() - interval '2 hours' WHERE state = 'superseded'`);
      });
      const before = await wholeHistory();
      expect(before).to.have.length(sent);
      isKilled = (await runUntil(killAt)) === 'SIGKILL';
      kills += isKilled ? 1 : 0;
      expect(await wholeHistory(), `killed at ${killAt}`).to.deep.equal(before);
      const [all, different] = await outside();
      expect(all, `killed at ${killAt}`).to.equal(different);
    }
    expect(kills).to.be.above(8);
    expect(await outside()).to.deep.equal([sent, sent]);
    expect(await numberOf('telemetry_points')).to.equal(0);
    expect(await numberOf('cold_attempts')).to.equal(0);
    expect((await filesBelow(folder)).filter((name) => name.startsWith('_staging/'))).to.deep.equal([]);
    connection.closeSync();
    instance.closeSync();
  });

  it('opens no connection while nothing is due', async () => {
    await sendDays();
    await complete();
    const { database } = test;
    const dedicated = database.dedicated.bind(database);
    let opened = 0;
    database.dedicated = (...parameters) => {
      opened += 1;
      return dedicated(...parameters);
    };
    const hot = { ...workParts(), hotSeconds: 3600 };
    await doColdWork(hot, noSignal);
    expect(opened).to.equal(0);
    await work(workParts());
    expect(opened).to.equal(1);
    await doColdWork(workParts(), noSignal);
    expect(opened).to.equal(1);
    expect(await wholeHistory()).to.have.length(count);
  });

  it('rests after each round of work until the next is due, also one that had something to do', async () => {
    await stop();
    // Left by a process that was cut short: the work of one round.
    await test.database.system((tx) => tx.query('INSERT INTO cold_attempts VALUES (gen_random_uuid())'));
    const { database } = test;
    const dedicated = database.dedicated.bind(database);
    const systemRead = database.systemRead.bind(database);
    let rounds = 0;
    let looks = 0;
    database.dedicated = (name, ...parameters) => {
      if (name === 'cold-storage') rounds += 1;
      return dedicated(name, ...parameters);
    };
    database.systemRead = (read) =>
      systemRead((tx) => {
        const query: typeof tx.query = (text, values) => {
          if (text.includes('FROM cold_attempts')) looks += 1;
          return tx.query(text, values);
        };
        return read({ query, hint: (...hints) => tx.hint(...hints) });
      });
    await start();
    await eventually(async () => rounds === 1 && (await numberOf('cold_attempts')) === 0);
    // A loop that went on at once would look hundreds of times meanwhile; the next round is due in an hour.
    await new Promise((resolve) => setTimeout(resolve, 300));
    // One look for what is due, and one within the round.
    expect({ rounds, looks }).to.deep.equal({ rounds: 1, looks: 2 });
  });

  it('lets one process work at a time', async () => {
    await sendDays();
    await complete();
    let others = 0;
    const checkpoint = async (step: Step) => {
      if (step === 'written') others += (await doColdWork(workParts(), noSignal)) ? 1 : 0;
    };
    await work(workParts({ checkpoint }));
    expect(others).to.equal(0);
    expect(await wholeHistory()).to.have.length(count);
  });
});
