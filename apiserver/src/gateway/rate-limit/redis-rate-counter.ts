// The rate counter in Redis or Valkey, in the form that SPEC (Limits) describes: for installations that keep requests off their
// PostgreSQL. One server (or what stands before a replicated pair); what it forgets costs one minute's exactness.
import { createClient, defineScript, type CommandParser } from '@redis/client';
import type { Logger } from '../../platform/observability/logger.ts';
import type { Counted } from './counted-window.ts';
import { CoalescingRateCounter } from './rate-counter.ts';

/** The key of a tenant's window (SPEC, Limits); the minute is counted from 1970 by the server's clock. */
export const rateLimitKey = (tenantId: string, windowMinute: number): string => `ratelimit:${tenantId}:${windowMinute}`;

// Counting and expiry are one step, and the minute is the server's: a gateway that expects another one counts nothing and is
// told. The key outlives its window, so that no reader meets a counter that begins anew.
const addScript = defineScript({
  NUMBER_OF_KEYS: 1,
  SCRIPT: `
    local time = redis.call('TIME')
    local minute = math.floor(tonumber(time[1]) / 60)
    local hits = 0
    if minute == tonumber(ARGV[1]) then
      hits = redis.call('INCRBY', KEYS[1], ARGV[2])
      if hits == tonumber(ARGV[2]) then redis.call('EXPIRE', KEYS[1], 120) end
    end
    return {hits, minute, tonumber(time[1]), tonumber(time[2])}`,
  parseCommand(parser: CommandParser, tenantId: string, windowMinute: number, hits: number): void {
    parser.pushKey(rateLimitKey(tenantId, windowMinute));
    parser.push(String(windowMinute), String(hits));
  },
  transformReply: (reply: readonly number[]) => reply,
});

// A server that has forgotten the window keeps what it has counted since.
const giveBackScript = defineScript({
  NUMBER_OF_KEYS: 1,
  SCRIPT: `
    local hits = tonumber(redis.call('GET', KEYS[1]) or 0)
    if hits >= tonumber(ARGV[1]) then redis.call('DECRBY', KEYS[1], ARGV[1]) end`,
  parseCommand(parser: CommandParser, tenantId: string, windowMinute: number, hits: number): void {
    parser.pushKey(rateLimitKey(tenantId, windowMinute));
    parser.push(String(hits));
  },
  transformReply: (reply: unknown) => reply,
});

/** A minute may end between two attempts; more than once says that the server's clock jumps. */
const maximumAttempts = 3;

const openClient = (url: string, logger: Logger) => {
  const client = createClient({
    url,
    // A request must not wait for a server that is away.
    disableOfflineQueue: true,
    scripts: { addHits: addScript, giveBackHits: giveBackScript },
    socket: { connectTimeout: 1000, reconnectStrategy: (retries) => Math.min(50 * 2 ** retries, 1000) },
  });
  let isAway = false;
  client.on('error', (error: Error) => {
    if (!isAway) logger.warn({ err: error }, 'the rate counter is not connected');
    isAway = true;
  });
  client.on('ready', () => (isAway = false));
  // Rejects only when the client is destroyed before it could connect.
  client.connect().catch(() => undefined);
  return client;
};

/** Counts with one script a tenant, pipelined, on one connection that comes back by itself. */
export class RedisRateCounter extends CoalescingRateCounter {
  private readonly url: string;
  private readonly logger: Logger;
  private client: ReturnType<typeof openClient>;
  /** The server's minute as last heard; at first a guess. */
  private windowMinute = Math.floor(Date.now() / 60_000);

  /** `url`: redis[s]://[[user]:password@]host[:port][/database]. */
  constructor(url: string, logger: Logger) {
    super();
    this.url = url;
    this.logger = logger;
    this.client = openClient(url, logger);
  }

  protected add(counts: ReadonlyMap<string, number>): Promise<readonly Counted[]> {
    return Promise.all([...counts].map(([tenantId, hits]) => this.addTo(tenantId, hits)));
  }

  private async addTo(tenantId: string, added: number): Promise<Counted> {
    for (let attempt = 0; attempt < maximumAttempts; attempt += 1) {
      const expected = this.windowMinute;
      const reply = await this.client.addHits(tenantId, expected, added);
      const [hits, windowMinute, seconds, microseconds] = reply as unknown as [number, number, number, number];
      this.windowMinute = windowMinute;
      if (windowMinute === expected) return { tenantId, hits, windowMinute, now: seconds + microseconds / 1e6 };
    }
    throw new Error("the rate counter's clock jumps");
  }

  protected giveBack(tenantId: string, windowMinute: number, hits: number): Promise<unknown> {
    return this.client.giveBackHits(tenantId, windowMinute, hits);
  }

  /** A connection that does not answer may be dead without anybody being told: another one is opened. */
  protected onTimeout(): void {
    this.client.destroy();
    this.client = openClient(this.url, this.logger);
  }

  close(): void {
    this.client.destroy();
  }
}
