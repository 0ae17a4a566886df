import { expect } from 'chai';
import { systemClock } from '../../platform/clock.ts';
import type { Transaction } from '../../platform/database/database.ts';
import { createLogger } from '../../platform/observability/logger.ts';
import { countBytesRead } from '../../platform/testing/bytes-read.ts';
import { createTestDatabase, type TestDatabase } from '../../platform/testing/test-database.ts';
import { writePayload } from '../points/payload.ts';
import { testDeviceId } from '../testing/test-devices.ts';
import { seededRandom } from '../testing/test-values.ts';
import { type LatestValues, mergePoint, noLatestValues } from './latest-values.ts';
import { rowsPerTick, SnapshotStore } from './snapshot-store.ts';

const sorted = ({ time, numeric, text }: LatestValues) => ({
  time,
  numeric: [...numeric].sort(([a], [b]) => (a < b ? -1 : 1)),
  text: [...text].sort(([a], [b]) => (a < b ? -1 : 1)),
});

const logger = createLogger('silent');

describe('the store of latest values', () => {
  let test: TestDatabase;
  before(async () => (test = await createTestDatabase()));
  after(() => test.drop());

  const point = (device: number, time: bigint, numericValues: Record<string, number>) => ({
    ...{ tenantId: 'acme', deviceId: testDeviceId(device), time, numericValues, stringValues: {} },
    payload: JSON.stringify({ numeric_values: numericValues, string_values: {} }),
  });
  const written = async () => {
    const { rows } = await test.database.system((tx) =>
      tx.query<{ n: number }>('SELECT count(*)::int4 AS n FROM telemetry_latest'),
    );
    return rows[0]!.n;
  };
  const elsewhere = async () => [];
  /** The database, away until `isOver` is set. */
  const databaseAway = () => {
    const away = {
      isOver: false,
      database: Object.create(test.database, {
        system: {
          value: (work: Parameters<typeof test.database.system>[0]) =>
            away.isOver ? test.database.system(work) : Promise.reject(new Error('away')),
        },
      }) as typeof test.database,
    };
    return away;
  };

  it('keeps values in memory, writes them late, and never replaces a newer value by an older one', async () => {
    const options = { holdMilliseconds: 1500, maxBytes: 1e9 };
    const store = new SnapshotStore(test.database, logger, systemClock, options);
    store.start();
    store.accept([point(1, 20n, { a: 2 }), point(1, 10n, { a: 1, b: 1 })], 1000);
    store.accept([point(1, 15n, { c: 1 })], 2000);
    await new Promise((resolve) => setTimeout(resolve, 1100));
    expect(await written()).to.equal(0);
    expect(store.writtenBefore).to.equal(1000);
    for (let tries = 0; (await written()) === 0 && tries < 50; tries += 1) {
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
    await store.stop();
    expect(store.writtenBefore).to.equal(2001);
    expect(store.held('acme', testDeviceId(1))).to.equal(undefined);
    store.accept([point(1, 12n, { a: 9, b: 2 })], 3000);
    const latest = await store.latest('acme', testDeviceId(1), elsewhere);
    expect(Object.fromEntries([...latest!.numeric].map(([key, { value }]) => [key, value]))).to.deep.equal({
      ...{ a: 2, b: 2, c: 1 },
    });
  });

  it('stores a bounded number of bytes of a device, although each point has other keys', async () => {
    const store = new SnapshotStore(test.database, logger, systemClock);
    const device = 900_001;
    const others = (n: number) =>
      point(device, BigInt(n), Object.fromEntries(Array.from({ length: 256 }, (_, index) => [`key-${n}-${index}`, n])));
    for (let first = 0; first < 100; first += 20) {
      store.accept(
        Array.from({ length: 20 }, (_, index) => others(first + index)),
        first,
      );
      await store.writeAll();
    }
    const { rows } = await test.database.system((tx) =>
      tx.query<{ bytes: number }>('SELECT length(document::text) AS bytes FROM telemetry_latest WHERE device_id = $1', [
        testDeviceId(device),
      ]),
    );
    expect(rows[0]!.bytes).to.be.within(100_000, 1024 * 1024);
    const latest = await store.latest('acme', testDeviceId(device), elsewhere);
    expect([...latest!.numeric.keys()])
      .to.include.members(['key-99-0', 'key-90-0'])
      .and.not.include('key-0-0');
  });

  it('merges large rows a few megabytes at a time, and small ones together', async () => {
    const store = new SnapshotStore(test.database, logger, systemClock);
    const large = Array.from({ length: 12 }, (_, n) => 910_000 + n);
    const small = Array.from({ length: 50 }, (_, n) => 920_000 + n);
    const wide = (device: number, time: bigint) => {
      const values = Array.from({ length: 200 }, (_, key) => [`k${time}-${key}`, `${key}`.repeat(1000)]);
      const stringValues = Object.fromEntries(values) as Record<string, string>;
      const payload = JSON.stringify({ numeric_values: {}, string_values: stringValues });
      return { ...point(device, time, {}), stringValues, payload };
    };
    // Only what the newest point does not replace is in the document.
    for (const time of [1n, 2n]) {
      store.accept(
        [...large.map((device) => wide(device, time)), ...small.map((device) => point(device, time, { a: 1 }))],
        1,
      );
      await store.writeAll();
    }
    const read: number[] = [];
    const watched = Object.create(test.database, {
      system: {
        value: (work: (tx: Transaction) => Promise<unknown>) =>
          test.database.system((tx) =>
            work(
              Object.assign(Object.create(tx) as Transaction, {
                query: async (text: string, values?: unknown[]) => {
                  const result = await tx.query<{ document?: unknown }>(text, values);
                  if (text.startsWith('SELECT') && text.includes('FROM telemetry_latest'))
                    read.push(result.rows.filter(({ document }) => document).length);
                  return result;
                },
              }),
            ),
          ),
      },
    }) as typeof test.database;
    const second = new SnapshotStore(watched, logger, systemClock);
    second.accept(
      [...large, ...small].map((device) => point(device, 3n, { b: 2 })),
      1,
    );
    await second.writeAll();
    expect(read[0], 'small ones').to.equal(50);
    expect(
      read.slice(1).every((count) => count < 12),
      `large ones: ${read.slice(1).join()}`,
    ).to.equal(true);
    expect(read.slice(1).reduce((sum, count) => sum + count, 0)).to.equal(12);
    for (const device of [large[0]!, large[11]!]) {
      const latest = await second.latest('acme', testDeviceId(device), elsewhere);
      expect([...latest!.numeric.keys()]).to.deep.equal(['b']);
      expect(latest!.text.get('k2-7')!.value).to.equal('7'.repeat(1000));
    }
    const latest = await second.latest('acme', testDeviceId(small[9]!), elsewhere);
    expect([...latest!.numeric.keys()].sort()).to.deep.equal(['a', 'b']);
  });

  it('returns the values of each device to the readers that ask for them at once, in few statements', async () => {
    let statements = 0;
    const counted = Object.create(test.database, {
      read: {
        value: (...call: Parameters<typeof test.database.read>) => {
          statements += 1;
          return test.database.read(...call);
        },
      },
    }) as typeof test.database;
    const store = new SnapshotStore(counted, logger, systemClock);
    const devices = Array.from({ length: 100 }, (_, n) => 700_000 + n);
    // Those with an odd number never send a point.
    store.accept(
      devices.filter((device) => device % 2 === 0).map((device) => point(device, 10n, { a: device })),
      100,
    );
    await store.writeAll();
    const read = (tenantId: string) =>
      Promise.all(
        devices.map(async (device) => {
          const latest = await store.latest(tenantId, testDeviceId(device), elsewhere);
          return latest?.numeric.get('a')?.value;
        }),
      );
    expect(await read('acme')).to.deep.equal(devices.map((device) => (device % 2 === 0 ? device : undefined)));
    expect(statements).to.equal(4);
    expect(await read('other')).to.deep.equal(devices.map(() => undefined));
  });

  it('reads large values of a device for few readers at a time, each row alone', async () => {
    const device = testDeviceId(750_000);
    await test.database.system((tx) =>
      tx.query(
        `INSERT INTO telemetry_latest (tenant_id, device_id, document)
         SELECT 'acme', $1::uuid, jsonb_build_object('time', '5000', 'string', '{}'::jsonb, 'numeric',
           jsonb_object_agg('a key of the device, number ' || n, jsonb_build_array(n, n::text))) FROM generate_series(1, 5000) n`,
        [device],
      ),
    );
    const { database, greatest } = countBytesRead(test.database);
    const store = new SnapshotStore(database, logger, systemClock);
    const readers = Array.from({ length: 64 }, () => store.latest('acme', device, elsewhere));
    for (const latest of await Promise.all(readers)) expect(latest!.numeric.size).to.equal(5000);
    expect(greatest()).to.be.within(200_000, 600_000);
    expect(await store.latest('other', device, elsewhere)).to.equal(undefined);
  });

  it('asks other processes for large values for few readers at a time, until they are shown', async () => {
    const device = testDeviceId(760_000);
    const store = new SnapshotStore(test.database, logger, systemClock);
    let running = 0;
    let most = 0;
    const large = async (mostBytes?: number) => {
      if (mostBytes !== undefined) return ['large' as const];
      most = Math.max(most, (running += 1));
      await test.database.systemRead((tx) => tx.query('SELECT pg_sleep(0.01)'));
      const values = noLatestValues();
      mergePoint(values, { numericValues: { a: 1 }, stringValues: {} }, 5n);
      return [values];
    };
    const show = async (values: LatestValues) => {
      await test.database.systemRead((tx) => tx.query('SELECT pg_sleep(0.01)'));
      running -= 1;
      return values;
    };
    const readers = Array.from({ length: 20 }, () => store.latest('acme', device, large, show));
    for (const latest of await Promise.all(readers)) expect(latest!.numeric.get('a')?.value).to.equal(1);
    expect(most).to.be.within(1, 2);
  });

  it('writes at once when memory is short, and takes no more than it may hold', async () => {
    const before = await written();
    const store = new SnapshotStore(test.database, logger, systemClock, { holdMilliseconds: 1e9, maxBytes: 500_000 });
    const devices = 10_000;
    for (let device = 1; device <= devices; device += 100) {
      await store.room();
      const points = Array.from({ length: 100 }, (_, n) => point(100_000 + device + n, 10n, { a: n, b: n }));
      store.accept(points, device);
      expect(store.bytes).to.be.lessThan(600_000);
    }
    await store.stop();
    expect(store.bytes).to.equal(0);
    expect(await written()).to.equal(before + devices);
  });

  it('has room for the points of other tenants while one has filled its share', async () => {
    const away = databaseAway();
    let now = 0;
    const store = new SnapshotStore(
      away.database,
      logger,
      { now: () => now },
      { holdMilliseconds: 1e9, maxBytes: 100_000 },
    );
    for (let device = 0; device < 200; device += 1) store.accept([point(300_000 + device, 10n, { a: device })], 1);
    expect(store.bytes).to.be.within(75_000, 200_000);
    await store.roomFor('other');
    const waiting = Promise.allSettled(Array.from({ length: 100 }, () => store.roomFor('acme')));
    now = 10_000;
    await store.writeAll().catch(() => undefined);
    for (const one of await waiting) expect(one).to.have.nested.property('reason.code', 'UNAVAILABLE');
    const last = store.roomFor('acme');
    away.isOver = true;
    await store.writeAll();
    await last;
    expect(store.bytes).to.equal(0);
  });

  it('writes a few megabytes at a time', async () => {
    const store = new SnapshotStore(test.database, logger, systemClock, { holdMilliseconds: 1e9, maxBytes: 1e9 });
    const large = Object.fromEntries(Array.from({ length: 256 }, (_, index) => [`key-${index}-${'x'.repeat(100)}`, 1]));
    for (let device = 0; device < 400; device += 1) store.accept([point(400_000 + device, 10n, large)], 1);
    const sizes: number[] = [];
    const writing = store.writeAll();
    for (let isOver = false; !isOver;) {
      sizes.push(store.bytes);
      isOver = await Promise.race([writing, new Promise((resolve) => setTimeout(() => resolve(false), 1))]).then(
        Boolean,
      );
    }
    const steps = new Set(sizes);
    expect(steps.size, [...steps].join()).to.be.greaterThan(2);
    expect(store.bytes).to.equal(0);
  });

  for (const isReached of [false, true]) {
    it(`keeps in memory what cannot be written, with what arrives meanwhile${isReached ? ', which finds it without a search' : ''}`, async () => {
      const memory = { latest: undefined as unknown };
      const device = isReached ? 77 : 5;
      const sent = (time: bigint, values: Record<string, number>) => ({
        ...point(device, time, values),
        ...(isReached && { memory }),
      });
      const away = databaseAway();
      const store = new SnapshotStore(away.database, logger, systemClock);
      store.accept([sent(10n, { a: 1, b: 1 }), point(6, 10n, { a: 1 })], 100);
      const failed = store.writeAll().catch((error: Error) => error.message);
      store.accept([sent(11n, { a: 2 })], 200);
      expect(await failed).to.equal('away');
      expect(store.writtenBefore).to.equal(100);
      store.accept([sent(12n, { a: 3 })], 300);
      const { bytes } = store;
      away.isOver = true;
      await store.writeAll();
      expect(bytes).to.be.greaterThan(0);
      expect(store.bytes).to.equal(0);
      expect(memory.latest, 'what is written is not kept').to.equal(undefined);
      const latest = await store.latest('acme', testDeviceId(device), elsewhere);
      expect([...latest!.numeric].sort()).to.deep.equal([
        ['a', { value: 3, time: 12n }],
        ['b', { value: 1, time: 10n }],
      ]);
    });
  }

  it('stops when there is no time left, and keeps what is not written', async () => {
    const store = new SnapshotStore(test.database, logger, systemClock);
    store.accept([point(8, 10n, { a: 1 })], 100);
    expect(await store.writeAll(AbortSignal.abort())).to.equal(false);
    expect(store.writtenBefore).to.equal(100);
    expect(await store.stop(AbortSignal.timeout(60_000))).to.equal(true);
    expect(store.writtenBefore).to.equal(101);
  });

  it('stores what merging point by point gives, for any names, times and writers', async () => {
    const random = seededRandom(5);
    const devices = Array.from({ length: 40 }, (_, n) => 800_000 + n);
    const expected = new Map(devices.map((device) => [device, noLatestValues()]));
    const names = ['a', 'b', '10', '9', '__proto__'];
    for (let round = 0; round < 12; round += 1) {
      const store = new SnapshotStore(test.database, logger, systemClock);
      for (const device of devices) {
        for (let count = 0; count < 2; count += 1) {
          // A quarter of the devices always have the same names.
          const isRegular = device % 4 === 0;
          const own = isRegular || random() < 0.6 ? names.slice(0, 3) : names.filter(() => random() < 0.5);
          const values = (type: 'number' | 'text') =>
            Object.fromEntries(
              own.filter(() => type === 'number' || (!isRegular && random() < 0.3)).map((key) => [key, random()]),
            );
          const numericValues = values('number');
          const stringValues = Object.fromEntries(
            Object.entries(values('text')).map(([key, n]) => [key, `line\n"${n}\\`]),
          );
          const time = BigInt(round * 3 + Math.floor(random() * 9)) * 1000n + BigInt(round * 2 + count);
          const payload = writePayload({ numericValues, stringValues });
          store.accept(
            [{ tenantId: 'acme', deviceId: testDeviceId(device), time, payload, numericValues, stringValues }],
            1,
          );
          mergePoint(expected.get(device)!, { numericValues, stringValues }, time);
        }
      }
      await store.stop();
      for (const device of devices) {
        const latest = await store.latest('acme', testDeviceId(device), elsewhere);
        expect(sorted(latest!)).to.deep.equal(sorted(expected.get(device)!));
      }
    }
    const { rows } = await test.database.system((tx) =>
      tx.query<{ merged: boolean }>(
        `SELECT DISTINCT document->'numeric' <> '{}' AS merged FROM telemetry_latest WHERE device_id = ANY($1)`,
        [devices.map(testDeviceId)],
      ),
    );
    expect(rows, 'some rows hold a newest point alone, others a document too').to.have.length(2);
  });

  it('merges rows of earlier versions, which have a document only', async () => {
    const store = new SnapshotStore(test.database, logger, systemClock);
    await test.database.system((tx) =>
      tx.query('INSERT INTO telemetry_latest (tenant_id, device_id, document) VALUES ($1, $2, $3)', [
        ...['acme', testDeviceId(9)],
        '{"time": "20", "numeric": {"a": [1, "20"], "b": [2, "20"]}, "string": {}}',
      ]),
    );
    store.accept([point(9, 30n, { a: 3 })], 100);
    await store.writeAll();
    store.accept([point(9, 31n, { a: 4 })], 101);
    await store.writeAll();
    const latest = await store.latest('acme', testDeviceId(9), elsewhere);
    expect([...latest!.numeric].sort()).to.deep.equal([
      ['a', { value: 4, time: 31n }],
      ['b', { value: 2, time: 20n }],
    ]);
  });

  describe('a tick', () => {
    for (const [name, devices, arrived, rows] of [
      ['of a small fleet writes all that is due', 40, 10_000, 50],
      ['never writes more than a thirtieth of the fleet', 30_000, 1_000_000, 1000],
      ['writes a row for every sixteen points', 1_000_000, 40_000, 2500],
      ['writes all devices within ten minutes, however few points there are', 600_000, 10, 1000],
    ] as const) {
      it(name, () => expect(rowsPerTick(devices, arrived)).to.equal(rows));
    }
  });

  it('keeps the newest values of devices that several processes write for the first time at once', async () => {
    const devices = Array.from({ length: 500 }, (_, n) => 500_000 + n);
    const stores = [1n, 2n, 3n].map((time) => {
      const store = new SnapshotStore(test.database, logger, systemClock);
      store.accept(
        devices.map((device) => point(device, time, { a: Number(time), [`b${time}`]: 1 })),
        100,
      );
      return store;
    });
    await Promise.all(stores.map((store) => store.writeAll()));
    for (const device of devices) {
      const latest = await stores[0]!.latest('acme', testDeviceId(device), elsewhere);
      expect([...latest!.numeric].sort()).to.deep.equal([
        ['a', { value: 3, time: 3n }],
        ['b1', { value: 1, time: 1n }],
        ['b2', { value: 1, time: 2n }],
        ['b3', { value: 1, time: 3n }],
      ]);
    }
  });
});
