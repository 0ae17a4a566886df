// Rate counter in Redis or Valkey, for installations that keep request counting off PostgreSQL. Uses one server (or the
// front of a replicated pair); if it loses data, limits are inexact for one minute.
import { type CommandParser, createClient, defineScript } from '@redis/client';
import type { Logger } from '../../platform/observability/logger.ts';
import { CoalescingRateCounter } from './rate-counter.ts';
import type { Counted } from './rate-window.ts';

/** Returns the key of a tenant's window. Minutes are counted from 1970 by the server's clock. */
const rateLimitKey = (tenantId: string, windowMinute: number): string => `ratelimit:${tenantId}:${windowMinute}`;

// Counts and sets the expiry atomically. The minute is the server's: if the gateway expects another one, nothing is
// counted and the script returns the current one. The key outlives its window, so that a late reader does not find a
// counter restarted from zero.
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

// If the server has lost the window, it keeps what it has counted since.
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

/** A minute may end between two attempts; if it happens more often, the server's clock jumps. */
const maximumAttempts = 3;

const openClient = (url: string, logger: Logger) => {
  const client = createClient({
    url,
    // Requests must not wait for an unavailable server.
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
  // Rejects only if the client is destroyed before it connects.
  client.connect().catch(() => undefined);
  return client;
};

/** Counts with one pipelined script call per tenant, on one self-healing connection. */
export class RedisRateCounter extends CoalescingRateCounter {
  private readonly url: string;
  private readonly logger: Logger;
  private client: ReturnType<typeof openClient>;
  /** The server's minute as last reported; initially a guess. */
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

  /** An unresponsive connection may be dead without notice: a new one is opened. */
  protected onTimeout(): void {
    this.client.destroy();
    this.client = openClient(this.url, this.logger);
  }

  close(): void {
    this.client.destroy();
  }
}
