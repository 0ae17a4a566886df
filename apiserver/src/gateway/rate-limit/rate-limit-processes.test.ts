// The window under load from several gateway processes and thousands of requests. KELLET_SOAK=1 continues across the
// end of a minute.
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { Agent, get } from 'node:http';
import path from 'node:path';
import { expect } from 'chai';
import { createTestDatabase, type TestDatabase } from '../../platform/testing/test-database.ts';
import { TestRedis } from '../testing/test-redis.ts';

const limit = 700;
const perGateway = 800;
const isSoak = process.env['KELLET_SOAK'] === '1';

interface Reply {
  readonly status: number;
  readonly reset: string;
  readonly remaining: number;
}

describe('three gateway processes under load', () => {
  let testDatabase: TestDatabase;
  let redis: TestRedis | undefined;
  const children: ChildProcess[] = [];
  const agent = new Agent({ keepAlive: true, maxSockets: 30 });

  before(async () => {
    testDatabase = await createTestDatabase();
  });
  afterEach(async () => {
    for (const child of children.splice(0)) {
      child.kill();
      if (child.exitCode === null && child.signalCode === null) await once(child, 'exit');
    }
  });
  after(async () => {
    agent.destroy();
    await redis?.kill();
    await testDatabase.drop();
  });

  const startGateways = (environment: Record<string, string>) =>
    Promise.all(
      [1, 2, 3].map(async () => {
        const child = fork(path.join(import.meta.dirname, '../testing/gateway-process.ts'), {
          env: {
            ...process.env,
            KELLET_TEST_SHARED_DATABASE_URL: testDatabase.url,
            KELLET_TEST_RATE_LIMIT: String(limit),
            ...environment,
          },
        });
        children.push(child);
        const [rest] = (await once(child, 'message')) as [string];
        return rest;
      }),
    );
  const ask = (rest: string): Promise<Reply> =>
    new Promise((resolve, reject) => {
      get(`${rest}/api/v1/devices/d1`, { agent, headers: { authorization: 'Bearer limited' } }, (response) => {
        response.resume();
        response.on('end', () =>
          resolve({
            status: response.statusCode!,
            reset: String(response.headers['x-ratelimit-reset']),
            remaining: Number(response.headers['x-ratelimit-remaining']),
          }),
        );
      }).on('error', reject);
    });

  /** Sends requests until all gateways reject them, across the end of a minute if requested. */
  const attack = async (rest: string): Promise<Reply[]> => {
    const replies: Reply[] = [];
    const hasEnough = () =>
      replies.length >= perGateway && (!isSoak || new Set(replies.map(({ reset }) => reset)).size > 1);
    const asker = async () => {
      while (!hasEnough()) replies.push(await ask(rest));
    };
    await Promise.all(Array.from({ length: 20 }, asker));
    return replies;
  };

  for (const [store, environment] of [
    ['PostgreSQL', async () => ({})],
    ['Redis', async () => ({ KELLET_TEST_REDIS_URL: (redis = await TestRedis.start()).url })],
  ] as const) {
    it(`admit exactly the limit in each window, counted in ${store}`, async function () {
      this.timeout(isSoak ? 180_000 : 60_000);
      const gateways = await startGateways(await environment());
      const replies = (await Promise.all(gateways.map(attack))).flat();
      for (const reset of new Set(replies.map((reply) => reply.reset))) {
        const window = replies.filter((reply) => reply.reset === reset);
        const admitted = window.filter(({ status }) => status === 200);
        expect(window.every(({ status }) => status === 200 || status === 429)).to.equal(true);
        expect(admitted.length, `of ${window.length} in the window`).to.equal(Math.min(limit, window.length));
        // Each admitted request got a unique number.
        expect(new Set(admitted.map(({ remaining }) => remaining)).size).to.equal(admitted.length);
        expect(Number(reset) % 60).to.equal(0);
      }
      expect(replies.length).to.be.at.least(3 * perGateway);
    });
  }
});
