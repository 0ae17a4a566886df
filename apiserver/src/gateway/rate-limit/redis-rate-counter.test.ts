import { create } from '@bufbuild/protobuf';
import { AccessSchema } from '@kellet/proto/es/kellet/v1/options_pb';
import { createClient } from '@redis/client';
import { expect } from 'chai';
import { systemClock } from '../../platform/clock.ts';
import { createLogger } from '../../platform/observability/logger.ts';
import { createMetrics } from '../../platform/observability/metrics.ts';
import { publicCaller } from '../../platform/rpc.ts';
import { TestRedis } from '../testing/test-redis.ts';
import { type Identity, RateLimiter } from './rate-limit.ts';
import { RedisRateCounter } from './redis-rate-counter.ts';

const logger = createLogger('silent');

describe('rate counter in Redis', () => {
  let redis: TestRedis;
  const counters: RedisRateCounter[] = [];
  before(async () => {
    redis = await TestRedis.start();
  });
  after(async () => {
    for (const counter of counters) counter.close();
    if (!redis) return;
    redis.proceed();
    await redis.kill();
  });

  const newCounter = () => {
    const counter = new RedisRateCounter(redis.url, logger);
    counters.push(counter);
    return counter;
  };
  const connected = async () => {
    const counter = newCounter();
    while (!(await counter.hit('warm-up', 1000).catch(() => undefined))) await new Promise((r) => setTimeout(r, 10));
    return counter;
  };
  const stayInMinute = async () => {
    const intoMinute = Date.now() % 60_000;
    if (intoMinute > 55_000) await new Promise((resolve) => setTimeout(resolve, 60_500 - intoMinute));
  };

  it('gives each request of several gateways a unique number, without gaps or repeats', async function () {
    this.timeout(40_000);
    await stayInMinute();
    const ordinals: number[] = [];
    const run = async (counter: RedisRateCounter) => {
      for (let round = 0; round < 20; round += 1) {
        const hits = await Promise.all(Array.from({ length: 50 }, () => counter.hit('acme', 1000)));
        ordinals.push(...hits.map((hit) => hit.ordinal));
      }
    };
    await Promise.all((await Promise.all([connected(), connected(), connected()])).map(run));
    expect(ordinals.sort((a, b) => a - b)).to.deep.equal(Array.from({ length: 3000 }, (_, index) => index + 1));
  });

  it('reserves requests for a high limit, and returns unused ones', async function () {
    this.timeout(40_000);
    await stayInMinute();
    const wide = 1_000_000;
    const counter = await connected();
    const asked = { requests: 0, waited: 0 };
    const run = async () => {
      for (let round = 0; round < 100; round += 1) {
        let isHere = false;
        const hit = counter.hit('wide', wide).then(() => (isHere = true));
        // Reserved requests are available in this turn of the event loop.
        await Promise.resolve();
        await Promise.resolve();
        asked.requests += 1;
        if (!isHere) asked.waited += 1;
        await hit;
        await new Promise(setImmediate);
      }
    };
    await Promise.all(Array.from({ length: 20 }, run));
    expect(asked.requests).to.equal(2000);
    expect(asked.waited).to.be.below(1000);
    const client = await createClient({ url: redis.url }).connect();
    const stored = async () => Number(await client.get((await client.keys('ratelimit:wide:*'))[0]!));
    for (let tries = 0; tries < 100 && (await stored()) !== 2000; tries += 1)
      await new Promise((r) => setTimeout(r, 10));
    expect(await stored()).to.equal(2000);
    await client.close();
  });

  it('uses exactly the documented key, and lets it expire', async () => {
    const { resetAt } = await (await connected()).hit('keyed', 1000);
    const client = await createClient({ url: redis.url }).connect();
    const key = `ratelimit:keyed:${resetAt / 60 - 1}`;
    expect(await client.keys('ratelimit:keyed:*')).to.deep.equal([key]);
    expect(await client.get(key)).to.equal('1');
    expect(await client.ttl(key)).to.be.within(100, 120);
    await client.close();
  });

  it("counts in the server's minutes, whatever this machine's clock says", async () => {
    const { now } = Date;
    Date.now = () => now() - 3_600_000;
    const counter = await connected().finally(() => (Date.now = now));
    const hit = await counter.hit('skewed', 1000);
    expect(hit.resetAt % 60).to.equal(0);
    expect(hit.resetAt - Date.now() / 1000).to.be.within(-1, 61);
    expect(hit.now - Date.now() / 1000).to.be.within(-1, 1);
  });

  it('limits locally while the server is unavailable or hangs, and recovers by itself', async function () {
    this.timeout(30_000);
    const counter = await connected();
    const metrics = createMetrics();
    const limiter = new RateLimiter(counter, systemClock, logger, metrics);
    const who = (tenantId: string): Identity => ({
      caller: { ...publicCaller, kind: 'user', tenantId },
      rateLimitPerMinute: 5,
    });
    const admitted = async (tenantId: string) => {
      let count = 0;
      for (let call = 0; call < 8; call += 1) {
        if ((await limiter.count(create(AccessSchema, {}), who(tenantId)))!.retryAfterSeconds === 0) count += 1;
      }
      return count;
    };
    const failures = async () =>
      (await metrics.getSingleMetric('kellet_gateway_rate_counter_failures_total')!.get()).values[0]?.value ?? 0;
    const isBack = async (tenantId: string) => {
      for (let attempt = 0; attempt < 200; attempt += 1) {
        const before = await failures();
        await limiter.count(create(AccessSchema, {}), { ...who(tenantId), rateLimitPerMinute: 100_000 });
        if ((await failures()) === before) return true;
        await new Promise((resolve) => setTimeout(resolve, 50));
      }
      return false;
    };
    await stayInMinute();
    expect(await admitted('first')).to.equal(5);
    expect(await failures()).to.equal(0);

    await redis.kill();
    const started = performance.now();
    expect(await admitted('second')).to.equal(5);
    expect(performance.now() - started).to.be.below(500);
    expect(await failures()).to.be.above(0);
    // The server restarts empty and without the script.
    await redis.start();
    expect(await isBack('third')).to.equal(true);

    redis.hold();
    expect(await admitted('fourth')).to.equal(5);
    redis.proceed();
    expect(await isBack('fifth')).to.equal(true);
  });
});
