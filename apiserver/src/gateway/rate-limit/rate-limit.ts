// Rate limiting: which limit applies to a call, and the response headers.
import { type Access, Access_RateLimit } from '@kellet/proto/es/kellet/v1/options_pb';
import { LRUCache } from 'lru-cache';
import { addressBlock } from '../../platform/addresses/address-block.ts';
import type { Clock } from '../../platform/clock.ts';
import type { Logger } from '../../platform/observability/logger.ts';
import { type Counter, counter, type Registry } from '../../platform/observability/metrics.ts';
import type { Caller } from '../../platform/rpc.ts';
import { TokenBuckets } from '../../platform/token-bucket.ts';
import type { RateCounter } from './rate-counter.ts';
import { RateLimitExceeded } from './rate-limit-exceeded.ts';
import type { Hit } from './rate-window.ts';

/** Requests per minute of tenants without their own limit. */
const defaultRateLimit = 1000;

/** A caller, and the limits of its tenant. */
export interface Identity {
  readonly caller: Caller;
  /** The tenant's requests per minute; 0 means the default. */
  readonly rateLimitPerMinute: number;
}

/** State of a tenant's window after a request, as shown in the headers. */
export interface WindowState {
  readonly limit: number;
  readonly remaining: number;
  /** Unix second, a multiple of 60. */
  readonly resetAt: number;
  /** 0 means admitted. */
  readonly retryAfterSeconds: number;
}

/** Evaluates a counted request against a limit. */
export function judge(hit: Hit, limit: number): WindowState {
  const isAdmitted = hit.ordinal <= limit;
  return {
    limit,
    remaining: Math.max(0, limit - hit.ordinal),
    resetAt: hit.resetAt,
    retryAfterSeconds: isAdmitted ? 0 : Math.max(1, Math.ceil(hit.resetAt - hit.now)),
  };
}

/** Returns the X-RateLimit headers, in lower case so that they are valid gRPC metadata. */
export function rateLimitHeaders(state: WindowState): [string, string][] {
  return [
    ['x-ratelimit-limit', String(state.limit)],
    ['x-ratelimit-remaining', String(state.remaining)],
    ['x-ratelimit-reset', String(state.resetAt)],
  ];
}

/** Limits of calls outside the tenant's window. */
export interface Throttles {
  /** Calls without a credential, per address. */
  readonly address: { perSecond: number; burst: number };
  /** Update traffic and command polling, per device. */
  readonly device: { perSecond: number; burst: number };
}

const defaultThrottles: Throttles = {
  address: { perSecond: 100, burst: 1000 },
  device: { perSecond: 100, burst: 500 },
};

interface Exhausted {
  readonly limit: number;
  readonly resetAt: number;
  /** By this machine's clock, in milliseconds. */
  readonly until: number;
}

/** Time during which a failed counter is bypassed, so that no request waits for it. */
const restMilliseconds = 1000;

/** Applies the limits. */
export class RateLimiter {
  private readonly counter: RateCounter;
  private readonly clock: Clock;
  private readonly logger: Logger;
  private readonly addresses: TokenBuckets;
  private readonly devices: TokenBuckets;
  private readonly exhausted = new LRUCache<string, Exhausted>({ max: 10_000 });
  private readonly local = new LRUCache<string, { minute: number; hits: number }>({ max: 10_000 });
  private isFailing = false;
  /** Time before which the shared counter is bypassed, in milliseconds of the clock. */
  private restUntil = 0;
  private readonly rejections: Counter;
  private readonly failures: Counter;

  constructor(
    rateCounter: RateCounter,
    clock: Clock,
    logger: Logger,
    metrics: Registry,
    throttles: Throttles = defaultThrottles,
  ) {
    this.counter = rateCounter;
    this.clock = clock;
    this.logger = logger;
    this.addresses = new TokenBuckets(clock, throttles.address);
    this.devices = new TokenBuckets(clock, throttles.device);
    this.rejections = counter(metrics, 'svc_gateway_rate_limited_total', 'Requests rejected by the rate limit.', [
      'tenant',
    ]);
    this.failures = counter(
      metrics,
      'kellet_gateway_rate_counter_failures_total',
      'Requests that were limited only by this process, because the shared counter was unavailable.',
    );
  }

  /** Limits a call without a credential. Throws RESOURCE_EXHAUSTED if its address (IPv6: /64) has made too many. */
  throttleAddress(address: string): void {
    const wait = this.addresses.take(addressBlock(address));
    if (wait > 0) throw new RateLimitExceeded(wait);
  }

  /**
   * Counts a call of an authenticated caller. Returns the state of the tenant's window for the headers, whose
   * `retryAfterSeconds` is positive if the call is to be rejected, or undefined if the call is not counted there.
   * Throws when a device's own limit is exceeded.
   */
  async count(access: Access, identity: Identity): Promise<WindowState | undefined> {
    if (access.rateLimit === Access_RateLimit.PER_DEVICE && identity.caller.kind === 'device') {
      const wait = this.devices.take(`${identity.caller.tenantId}/${identity.caller.deviceId}`);
      if (wait > 0) throw new RateLimitExceeded(wait);
      return undefined;
    }
    return this.countWindow(identity);
  }

  /** Counts a request in the caller's tenant window, and its rejection. */
  async countWindow(identity: Identity): Promise<WindowState> {
    const { tenantId } = identity.caller;
    const limit = identity.rateLimitPerMinute || defaultRateLimit;
    const now = this.clock.now();
    let state = this.exhaustedState(tenantId, limit, now);
    if (!state) {
      const hit = await this.hit(tenantId, limit, now);
      state = judge(hit, limit);
      if (state.remaining === 0) {
        this.exhausted.set(tenantId, { limit, resetAt: hit.resetAt, until: now + (hit.resetAt - hit.now) * 1000 });
      }
    }
    if (state.retryAfterSeconds > 0) this.rejections.inc({ tenant: tenantId });
    return state;
  }

  /** Returns the state of a window known to be exhausted, without querying the counter. */
  private exhaustedState(tenantId: string, limit: number, now: number): WindowState | undefined {
    const exhausted = this.exhausted.get(tenantId);
    if (!exhausted || exhausted.limit !== limit) return undefined;
    const milliseconds = exhausted.until - now;
    // More than a minute: this machine's clock was set back.
    if (milliseconds <= 0 || milliseconds > 60_000) return undefined;
    return { limit, remaining: 0, resetAt: exhausted.resetAt, retryAfterSeconds: Math.ceil(milliseconds / 1000) };
  }

  /** Counts with the shared counter, or locally while that fails. */
  private async hit(tenantId: string, limit: number, now: number): Promise<Hit> {
    if (now >= this.restUntil || this.restUntil - now > restMilliseconds) {
      try {
        const hit = await this.counter.hit(tenantId, limit);
        if (this.isFailing) this.logger.info('the rate counter is available again');
        this.isFailing = false;
        return hit;
      } catch (error) {
        if (!this.isFailing) {
          this.logger.warn({ err: error }, 'the rate counter is unavailable; limiting only in this process');
        }
        this.isFailing = true;
        this.restUntil = this.clock.now() + restMilliseconds;
      }
    }
    this.failures.inc();
    return this.hitLocally(tenantId, now);
  }

  private hitLocally(tenantId: string, now: number): Hit {
    const minute = Math.floor(now / 60_000);
    const window = this.local.get(tenantId);
    const hits = window?.minute === minute ? window.hits + 1 : 1;
    this.local.set(tenantId, { minute, hits });
    return { ordinal: hits, resetAt: (minute + 1) * 60, now: now / 1000 };
  }
}
