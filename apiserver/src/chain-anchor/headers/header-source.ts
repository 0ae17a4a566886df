// Where headers come from: ChainTracks v2, or a second source while the first one fails.
import { fetchHeaders, type HeaderAtHeight } from '@kellet/verify';
import type { Logger } from '../../platform/observability/logger.ts';
import { readText } from '../../platform/outbound/bounded-body.ts';
import { traceRequestTo } from '../../platform/outbound/outgoing-call.ts';

/** A source of headers. What it says is checked. */
export interface HeaderSource {
  /** Returns the tip; the hash in display hex. Throws if the source cannot be read. */
  tip(): Promise<{ readonly height: number; readonly hash: string }>;
  /** Returns at most `count` headers from a height on, none beyond the tip. Throws if the source cannot be read. */
  headers(from: number, count: number): Promise<HeaderAtHeight[]>;
}

/** Heights are int4 in the database. */
const highestHeight = 2 ** 31 - 1;

const responseMilliseconds = 10_000;

/** Longest response about the tip, in bytes. */
const maxTipBytes = 64 * 1024;

/** Returns a tip that a source reported. Throws if it cannot be one. */
export function checkedTip(height: unknown, hash: unknown): { height: number; hash: string } {
  if (!Number.isSafeInteger(height) || typeof hash !== 'string') throw new Error('the header source has no tip');
  if ((height as number) < 0 || (height as number) > highestHeight)
    throw new Error('the header source lacks the header of its tip');
  return { height: height as number, hash: hash.toLowerCase() };
}

/** A ChainTracks v2 service. */
export class ChainTracks implements HeaderSource {
  private readonly baseUrl: string;

  constructor(baseUrl: string) {
    this.baseUrl = baseUrl.replace(/\/+$/, '');
  }

  async tip(): Promise<{ height: number; hash: string }> {
    const url = new URL(`${this.baseUrl}/tip`);
    const result = await traceRequestTo({ method: 'GET', url, template: '/tip' }, async (setStatus) => {
      const response = await fetch(url, { signal: AbortSignal.timeout(responseMilliseconds) });
      setStatus(response.status);
      if (!response.ok) throw new Error(`the header source returned ${response.status}`);
      return JSON.parse(await readText(response, maxTipBytes)) as unknown;
    });
    const body = result as { height?: unknown; hash?: unknown; value?: { height?: unknown; hash?: unknown } };
    const { height, hash } = body.value ?? body;
    return checkedTip(height, hash);
  }

  headers(from: number, count: number): Promise<HeaderAtHeight[]> {
    return traceRequestTo({ method: 'GET', url: new URL(`${this.baseUrl}/headers`), template: '/headers' }, () =>
      fetchHeaders(this.baseUrl, from, count),
    );
  }
}

/** Reads from the first source, and from the second one while the first fails. */
export class HeadersWithFallback implements HeaderSource {
  private readonly first: HeaderSource;
  private readonly second: HeaderSource;
  private readonly logger: Logger;
  private isAway = false;

  constructor(first: HeaderSource, second: HeaderSource, logger: Logger) {
    this.first = first;
    this.second = second;
    this.logger = logger;
  }

  tip(): Promise<{ readonly height: number; readonly hash: string }> {
    return this.either((source) => source.tip());
  }

  headers(from: number, count: number): Promise<HeaderAtHeight[]> {
    return this.either((source) => source.headers(from, count));
  }

  private async either<T>(read: (source: HeaderSource) => Promise<T>): Promise<T> {
    try {
      const result = await read(this.first);
      this.isAway = false;
      return result;
    } catch (error) {
      if (!this.isAway) this.logger.warn({ err: error }, 'the header source fails; headers are read from the node');
      this.isAway = true;
      return read(this.second);
    }
  }
}
