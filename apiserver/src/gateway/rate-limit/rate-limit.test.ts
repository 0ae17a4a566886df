import { create, getOption } from '@bufbuild/protobuf';
import { access as accessOption, Access_RateLimit, AccessSchema } from '@kellet/proto/es/kellet/v1/options_pb';
import { OtaService } from '@kellet/proto/es/kellet/v1/ota_pb';
import { expect } from 'chai';
import { sleep, systemClock } from '../../platform/clock.ts';
import { createLogger } from '../../platform/observability/logger.ts';
import { createMetrics } from '../../platform/observability/metrics.ts';
import { type Caller, publicCaller } from '../../platform/rpc.ts';
import { createTestDatabase, type TestDatabase } from '../../platform/testing/test-database.ts';
import { TokenBuckets } from '../../platform/token-bucket.ts';
import { PostgresRateCounter } from './postgres-rate-counter.ts';
import type { RateCounter } from './rate-counter.ts';
import { type Identity, judge, RateLimiter } from './rate-limit.ts';
import { RateLimitExceeded } from './rate-limit-exceeded.ts';

const logger = createLogger('silent');

describe('judging a counted request', () => {
  for (const [ordinal, limit, remaining, retryAfterSeconds] of [
    [1, 1000, 999, 0],
    [999, 1000, 1, 0],
    [1000, 1000, 0, 0],
    [1001, 1000, 0, 20],
    [5000, 1000, 0, 20],
    [1, 1, 0, 0],
    [2, 1, 0, 20],
  ] as const) {
    it(`number ${ordinal} of ${limit}`, () => {
      expect(judge({ ordinal, resetAt: 1200, now: 1180.4 }, limit)).to.deep.equal({
        limit,
        remaining,
        resetAt: 1200,
        retryAfterSeconds,
      });
    });
  }

  it('never suggests a retry after zero seconds', () => {
    expect(judge({ ordinal: 2, resetAt: 1200, now: 1199.999 }, 1).retryAfterSeconds).to.equal(1);
  });
});

describe('token buckets', () => {
  it('allow a burst, then the rate', () => {
    let now = 0;
    const buckets = new TokenBuckets({ now: () => now }, { perSecond: 2, burst: 3 });
    expect([1, 2, 3, 4].map(() => buckets.take('a'))).to.deep.equal([0, 0, 0, 1]);
    expect(buckets.take('b')).to.equal(0);
    now = 499;
    expect(buckets.take('a')).to.equal(1);
    now = 1001;
    expect([1, 2, 3].map(() => buckets.take('a'))).to.deep.equal([0, 0, 1]);
    now = 3_600_000;
    expect([1, 2, 3, 4].map(() => buckets.take('a'))).to.deep.equal([0, 0, 0, 1]);
  });

  it('report how long to wait when a token takes long', () => {
    const buckets = new TokenBuckets({ now: () => 0 }, { perSecond: 0.1, burst: 1 });
    expect([buckets.take('a'), buckets.take('a')]).to.deep.equal([0, 10]);
  });

  it('do not run backwards with the clock', () => {
    let now = 10_000;
    const buckets = new TokenBuckets({ now: () => now }, { perSecond: 1, burst: 1 });
    buckets.take('a');
    now = 0;
    expect(buckets.take('a')).to.equal(1);
  });
});

describe('rate limiter', () => {
  const access = create(AccessSchema, {});
  const perDevice = create(AccessSchema, { rateLimit: Access_RateLimit.PER_DEVICE });
  const identity = (tenantId: string, change: Partial<Caller> = {}, rateLimitPerMinute = 3): Identity => ({
    caller: { ...publicCaller, kind: 'user', tenantId, ...change },
    rateLimitPerMinute,
  });

  /** Counts in memory at a fixed second of the minute. */
  const memoryCounter = () => {
    const counter = { hits: 0, hit: async () => ({ ordinal: ++counter.hits, resetAt: 120, now: 90 }) };
    return counter;
  };

  it('does not query the store about an exhausted window until it ends', async () => {
    let now = 1_000_000;
    const counter = memoryCounter();
    const limiter = new RateLimiter(counter, { now: () => now }, logger, createMetrics());
    const waits: number[] = [];
    for (let call = 0; call < 6; call += 1)
      waits.push((await limiter.count(access, identity('acme')))!.retryAfterSeconds);
    expect(waits).to.deep.equal([0, 0, 0, 30, 30, 30]);
    expect(counter.hits).to.equal(3);
    now += 30_000;
    counter.hits = 0;
    expect((await limiter.count(access, identity('acme')))!.retryAfterSeconds).to.equal(0);
  });

  it('applies a limit that changes within the window', async () => {
    const limiter = new RateLimiter(memoryCounter(), { now: () => 0 }, logger, createMetrics());
    for (let call = 0; call < 4; call += 1) await limiter.count(access, identity('acme'));
    const raised = await limiter.count(access, identity('acme', {}, 10));
    expect(raised).to.include({ limit: 10, retryAfterSeconds: 0 });
  });

  it('continues locally, and logs it, when the store fails', async () => {
    const metrics = createMetrics();
    let asked = 0;
    const counter = memoryCounter();
    let isAway = true;
    const broken: RateCounter = {
      hit: () => {
        asked += 1;
        return isAway ? Promise.reject(new Error('away')) : counter.hit();
      },
    };
    let now = 30_000;
    const limiter = new RateLimiter(broken, { now: () => now }, logger, metrics);
    const states = [];
    for (let call = 0; call < 4; call += 1) states.push((await limiter.count(access, identity('acme')))!);
    expect(states.map((state) => state.retryAfterSeconds)).to.deep.equal([0, 0, 0, 30]);
    expect(await metrics.getSingleMetricAsString('kellet_gateway_rate_counter_failures_total')).to.match(/total 3/);
    // One request detected it; the others did not wait. The store is tried again a second later.
    expect(asked).to.equal(1);
    isAway = false;
    await limiter.count(access, identity('beta'));
    expect([asked, counter.hits]).to.deep.equal([1, 0]);
    now += 1000;
    await limiter.count(access, identity('beta'));
    expect([asked, counter.hits]).to.deep.equal([2, 1]);
  });

  it('counts rejections by tenant, including those of windows known to be exhausted', async () => {
    const metrics = createMetrics();
    const limiter = new RateLimiter(memoryCounter(), { now: () => 0 }, logger, metrics);
    for (let call = 0; call < 5; call += 1) await limiter.count(access, identity('acme'));
    expect(await metrics.getSingleMetricAsString('svc_gateway_rate_limited_total')).to.contain('{tenant="acme"} 2');
  });

  it('does not reject for an hour because this clock was set back by one', async () => {
    let now = 10 * 3_600_000;
    const counter = memoryCounter();
    const limiter = new RateLimiter(counter, { now: () => now }, logger, createMetrics());
    for (let call = 0; call < 4; call += 1) await limiter.count(access, identity('acme'));
    now -= 3_600_000;
    counter.hits = 0;
    expect((await limiter.count(access, identity('acme')))!.retryAfterSeconds).to.equal(0);
  });

  it('does not count calls limited per device, and limits them per device', async () => {
    const counter = memoryCounter();
    const throttles = { address: { perSecond: 1, burst: 1 }, device: { perSecond: 1, burst: 2 } };
    const limiter = new RateLimiter(counter, { now: () => 0 }, logger, createMetrics(), throttles);
    const device = (deviceId: string) => identity('acme', { kind: 'device', deviceId });
    expect(await limiter.count(perDevice, device('d1'))).to.equal(undefined);
    await limiter.count(perDevice, device('d1'));
    await limiter.count(perDevice, device('d2'));
    const refusal = await limiter.count(perDevice, device('d1')).catch((error: unknown) => error);
    expect(refusal).to.be.instanceOf(RateLimitExceeded);
    expect(counter.hits).to.equal(0);
  });

  it('admits 500 chunks of a device at once, then 100 a second, however small, and all those of others', async () => {
    let now = 0;
    const limiter = new RateLimiter(memoryCounter(), { now: () => now }, logger, createMetrics());
    const chunks = getOption(OtaService.method.getChunk, accessOption);
    /** Asks until it is refused, and returns the number of chunks before. */
    const admitted = async (deviceId: string): Promise<number> => {
      for (let count = 0; ; count += 1) {
        try {
          await limiter.count(chunks, identity('acme', { kind: 'device', deviceId }));
        } catch (error) {
          expect(error).to.be.instanceOf(RateLimitExceeded);
          return count;
        }
      }
    };
    expect(await admitted('hostile')).to.equal(500);
    now += 1000;
    expect([await admitted('hostile'), await admitted('honest')]).to.deep.equal([100, 500]);
  });
});

describe('rate counter in PostgreSQL', () => {
  let testDatabase: TestDatabase;
  before(async () => {
    testDatabase = await createTestDatabase();
  });
  after(() => testDatabase.drop());

  /** Waits past the end of a minute if necessary, so that a test's requests share a window. */
  const stayInMinute = async () => {
    const intoMinute = Date.now() % 60_000;
    if (intoMinute > 50_000) await new Promise((resolve) => setTimeout(resolve, 60_500 - intoMinute));
  };

  it('gives each request of several gateways a unique number, without gaps or repeats', async function () {
    this.timeout(40_000);
    await stayInMinute();
    const counters = [1, 2, 3].map(() => new PostgresRateCounter(testDatabase.database, logger));
    const hits: { tenant: string; ordinal: number; resetAt: number }[] = [];
    const run = async (counter: PostgresRateCounter, tenant: string) => {
      for (let round = 0; round < 20; round += 1) {
        const counted = await Promise.all(Array.from({ length: 15 }, () => counter.hit(tenant, 1000)));
        hits.push(...counted.map((hit) => ({ tenant, ...hit })));
      }
    };
    await Promise.all(counters.flatMap((counter) => ['acme', 'beta'].map((tenant) => run(counter, tenant))));
    for (const tenant of ['acme', 'beta']) {
      const ordinals = hits.filter((hit) => hit.tenant === tenant).map((hit) => hit.ordinal);
      expect(ordinals.sort((a, b) => a - b)).to.deep.equal(Array.from({ length: 900 }, (_, index) => index + 1));
    }
    expect(new Set(hits.map((hit) => hit.resetAt)).size).to.equal(1);
    expect(hits[0]!.resetAt % 60).to.equal(0);
  });

  it("admits exactly the limit across gateways, by the database's minute", async () => {
    await stayInMinute();
    const limiters = [1, 2, 3].map(
      () =>
        new RateLimiter(
          new PostgresRateCounter(testDatabase.database, logger),
          // A gateway whose clock is an hour off counts in the same windows.
          { now: () => Date.now() - 3_600_000 },
          logger,
          createMetrics(),
        ),
    );
    const who: Identity = { caller: { ...publicCaller, kind: 'user', tenantId: 'gamma' }, rateLimitPerMinute: 100 };
    const states = await Promise.all(
      limiters.flatMap((limiter) => Array.from({ length: 80 }, () => limiter.count(create(AccessSchema, {}), who))),
    );
    expect(states.filter((state) => state!.retryAfterSeconds === 0)).to.have.length(100);
    expect(Math.abs(states[0]!.resetAt - Date.now() / 1000)).to.be.below(61);
  });

  it('admits exactly a high limit too, reserves most requests and returns unused ones', async function () {
    this.timeout(60_000);
    const { pool } = testDatabase.database;
    const limit = 40_000;
    let additions = 0;
    class Counted extends PostgresRateCounter {
      protected override add(counts: ReadonlyMap<string, number>) {
        additions += 1;
        return super.add(counts);
      }
    }
    await stayInMinute();
    const limiters = [1, 2, 3].map(
      () => new RateLimiter(new Counted(testDatabase.database, logger), systemClock, logger, createMetrics()),
    );
    const who: Identity = { caller: { ...publicCaller, kind: 'user', tenantId: 'wide' }, rateLimitPerMinute: limit };
    let admitted = 0;
    const ask = async (limiter: RateLimiter) => {
      const { retryAfterSeconds } = (await limiter.count(create(AccessSchema, {}), who))!;
      if (retryAfterSeconds === 0) admitted += 1;
      return retryAfterSeconds === 0;
    };
    const stored = async () => {
      const { rows } = await pool.query<{ hits: number }>(`SELECT hits FROM rate_windows WHERE tenant_id = 'wide'`);
      return rows[0]?.hits ?? 0;
    };
    // Sequentially, from ten workers per gateway: more than one addition counts.
    const some = async (limiter: RateLimiter) => {
      for (let request = 0; request < 200; request += 1) await ask(limiter);
    };
    await Promise.all(limiters.flatMap((limiter) => Array.from({ length: 10 }, () => some(limiter))));
    expect(admitted).to.equal(6000);
    expect(additions).to.be.below(admitted / 10);
    for (let tries = 0; tries < 100 && (await stored()) !== admitted; tries += 1) await sleep(10);
    expect(await stored()).to.equal(admitted);

    const untilRefused = async (limiter: RateLimiter) => {
      while (await ask(limiter));
    };
    await Promise.all(limiters.flatMap((limiter) => Array.from({ length: 50 }, () => untilRefused(limiter))));
    expect(admitted).to.equal(limit);
  });

  it('removes expired windows', async () => {
    const { pool } = testDatabase.database;
    await pool.query(`INSERT INTO rate_windows VALUES ('old', 1, 5)`);
    await new PostgresRateCounter(testDatabase.database, logger).hit('acme', 1000);
    for (let tries = 0; tries < 100; tries += 1) {
      if ((await pool.query(`SELECT 1 FROM rate_windows WHERE tenant_id = 'old'`)).rows.length === 0) return;
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
    expect.fail('the old window is still there');
  });

  it('rejects while the database is unreachable, and recovers', async () => {
    const counter = new PostgresRateCounter(testDatabase.database, logger);
    await testDatabase.database.pool.query('ALTER TABLE rate_windows RENAME TO away');
    const failure = await counter.hit('acme', 1000).catch((error: Error) => error.message);
    expect(failure).to.contain('rate_windows');
    await testDatabase.database.pool.query('ALTER TABLE away RENAME TO rate_windows');
    expect((await counter.hit('acme', 1000)).ordinal).to.be.above(0);
  });
});
