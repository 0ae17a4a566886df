// Callbacks of the transaction processor: verified by signature, stored and acknowledged, then published.
import { createHmac, timingSafeEqual } from 'node:crypto';
import { sleep } from '../../platform/clock.ts';
import type { Database } from '../../platform/database/database.ts';
import { invalidArgument, unauthenticated } from '../../platform/errors.ts';
import { type Broker, isTooLarge } from '../../platform/events/broker.ts';
import { callbackSubject } from '../../platform/events/subjects.ts';
import { newId } from '../../platform/ids.ts';
import type { Logger } from '../../platform/observability/logger.ts';
import { type Counter, counter, type Registry } from '../../platform/observability/metrics.ts';

/** Reports whether `X-ARC-Signature: sha256=<hex>` is the HMAC-SHA256 of the raw body, in constant time. */
export function isSignatureValid(header: string | undefined, body: Uint8Array, secret: string): boolean {
  const hex = /^sha256=([0-9a-f]{64})$/i.exec(header ?? '')?.[1];
  const expected = createHmac('sha256', secret).update(body).digest();
  // Compares something even without a well-formed header, so that timing reveals nothing.
  const given = hex ? Buffer.from(hex, 'hex') : Buffer.alloc(expected.length);
  return timingSafeEqual(given, expected) && hex !== undefined;
}

/** Truncates a payload for logging and redacts anything long enough to be a secret or a transaction. */
export function redactPayload(body: Uint8Array): string {
  return Buffer.from(body.subarray(0, 256))
    .toString('latin1')
    .replaceAll(/[\w+/=-]{16,}/g, '[redacted]')
    .replaceAll(/[^\x20-\x7e]/g, '.');
}

/** Options of Callbacks. */
export interface CallbackOptions {
  readonly secret: string;
  /** Allowed only on the local network outside production; the configuration rejects it otherwise. */
  readonly skipValidation: boolean;
}

/** Accepts callbacks and delivers each of them to the broker. */
export class Callbacks {
  private readonly database: Database;
  private readonly broker: Broker;
  private readonly logger: Logger;
  private readonly options: CallbackOptions;
  private readonly rejections: Counter;
  private readonly closing = new AbortController();
  private wake: () => void = () => undefined;
  private isRelaying: Promise<void> = Promise.resolve();

  constructor(database: Database, broker: Broker, logger: Logger, metrics: Registry, options: CallbackOptions) {
    this.database = database;
    this.broker = broker;
    this.logger = logger;
    this.options = options;
    this.rejections = counter(
      metrics,
      'kellet_gateway_callbacks_rejected_total',
      'Rejected callbacks of the transaction processor.',
      ['reason'],
    );
  }

  /** Counts a rejected callback. */
  reject(reason: 'invalid_signature' | 'malformed' | 'unreadable' | 'too_large'): void {
    this.rejections.inc({ reason });
  }

  /**
   * Accepts one callback; resolves when it is stored. Throws UNAUTHENTICATED for an invalid signature, INVALID_ARGUMENT
   * for a body that is not a JSON object or array, and UNAVAILABLE if it cannot be stored (the processor then retries).
   */
  async receive(signature: string | undefined, body: Uint8Array): Promise<void> {
    if (!this.options.skipValidation && !isSignatureValid(signature, body, this.options.secret)) {
      this.reject('invalid_signature');
      throw unauthenticated('the signature is missing or wrong');
    }
    if (!isJsonContainer(body)) {
      this.reject('malformed');
      this.logger.warn({ payload: redactPayload(body), bytes: body.length }, 'malformed callback');
      throw invalidArgument('the body is not a JSON object');
    }
    await this.database.system((tx) =>
      tx.query('INSERT INTO arc_callbacks (callback_id, body) VALUES ($1, $2)', [newId(), body]),
    );
    this.wake();
  }

  /** Starts publishing, beginning with callbacks left over from an earlier process. */
  start(): void {
    this.isRelaying = this.relayLoop();
  }

  /** Stops publishing; unpublished callbacks remain stored. */
  async stop(): Promise<void> {
    this.closing.abort();
    this.wake();
    await this.isRelaying;
  }

  private async relayLoop(): Promise<void> {
    const { signal } = this.closing;
    for (let delay = 100; !signal.aborted;) {
      const woken = new Promise<void>((resolve) => (this.wake = resolve));
      const count = await this.relayOnce().catch((error: unknown) => {
        this.logger.debug({ err: error }, 'callbacks are waiting for the broker or the database');
        return -1;
      });
      if (count > 0) {
        delay = 100;
      } else if (count === 0) {
        // Woken by the next callback in this process; those left over by another gateway are found within five seconds.
        delay = 100;
        await Promise.race([woken, sleep(5000, signal)]);
      } else {
        await sleep(delay, signal);
        delay = Math.min(delay * 2, 5000);
      }
    }
  }

  /** Publishes a few callbacks in order of arrival and returns how many are done. */
  private relayOnce(): Promise<number> {
    return this.database.system(async (tx) => {
      const { rows } = await tx.query<{ callback_id: string; body: Buffer }>(
        `SELECT callback_id, body FROM arc_callbacks WHERE published_at IS NULL
         ORDER BY position LIMIT 100 FOR UPDATE SKIP LOCKED`,
      );
      const published: string[] = [];
      let failure: Error | undefined;
      for (const row of rows) {
        try {
          await this.broker.publish(callbackSubject, row.body, row.callback_id);
          published.push(row.callback_id);
        } catch (error) {
          if (!isTooLarge(error)) {
            failure = error as Error;
            break;
          }
          // It will never fit and must not block later ones.
          this.reject('too_large');
          this.logger.error(
            { bytes: row.body.length },
            'callback dropped: it exceeds the maximum message size of the broker',
          );
          published.push(row.callback_id);
        }
      }
      if (published.length === 0 && failure) throw failure;
      await tx.query('UPDATE arc_callbacks SET published_at = now() WHERE callback_id = ANY($1)', [published]);
      await tx.query(
        `DELETE FROM arc_callbacks WHERE callback_id = ANY (ARRAY (
           SELECT callback_id FROM arc_callbacks WHERE published_at < now() - interval '7 days'
           ORDER BY published_at LIMIT 1000))`,
      );
      return published.length;
    });
  }
}

function isJsonContainer(body: Uint8Array): boolean {
  try {
    const value: unknown = JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(body));
    return typeof value === 'object' && value !== null;
  } catch {
    return false;
  }
}
