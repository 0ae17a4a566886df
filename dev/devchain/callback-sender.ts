// Sends callbacks in rounds as ARC does: a 5xx (or any status but 2xx) is retried for about 20 s, a refused connection
// is given up at once. Signed with X-ARC-Signature if a secret is set: the real processor does not sign and needs a
// small relay in front for that.
import { createHmac } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { type CallbackQueue, type Delivery, type PendingCallback, planDeliveries } from './callback-queue.ts';
import type { Faults } from './faults.ts';

const RETRY_MILLISECONDS = 2000;
const GIVE_UP_MILLISECONDS = 20_000;
const RESPONSE_TIMEOUT_MILLISECONDS = 5000;

/** Dependencies of the sender. */
export interface CallbackSenderOptions {
  readonly queue: CallbackQueue;
  readonly faults: () => Readonly<Faults>;
  readonly secret: string | undefined;
  readonly intervalMilliseconds: number;
  /** Returns the BUMP (hex) of a transaction in a block, stale or not. */
  readonly merklePath: (blockHash: string, txid: string) => string;
  /** Called with the ids of callbacks that need no more sending. */
  readonly settle: (ids: readonly number[]) => void;
  readonly log: (message: string) => void;
}

/** Returns X-ARC-Signature for a body: `sha256=` and the HMAC-SHA256 in hex. */
function arcSignature(secret: string, body: string): string {
  return `sha256=${createHmac('sha256', secret).update(body).digest('hex')}`;
}

/** The JSON of one callback, in ARC's field order. */
function callbackBody(callback: PendingCallback, merklePath: string): Record<string, unknown> {
  return {
    timestamp: callback.at,
    ...(callback.competing.length > 0 ? { competingTxs: callback.competing } : {}),
    txid: callback.txid,
    txStatus: callback.status,
    extraInfo: callback.extraInfo,
    merklePath,
    blockHash: callback.blockHash,
    blockHeight: callback.blockHeight,
  };
}

/** When a callback was first and last tried, in milliseconds. */
interface Attempts {
  readonly first: number;
  readonly last: number;
}

type Outcome = 'delivered' | 'try again' | 'give up';

/** Runs rounds from `start` to `stop`. One round at a time, so the statuses of a transaction arrive in order. */
export class CallbackSender {
  private readonly options: CallbackSenderOptions;
  private readonly attempts = new Map<number, Attempts>();
  private readonly stopping = new AbortController();
  private running: Promise<void> | undefined;

  constructor(options: CallbackSenderOptions) {
    this.options = options;
  }

  start(): void {
    this.running ??= this.run();
  }

  /** Ends after the running round, whose requests are aborted; undelivered callbacks are sent after the next start. */
  async stop(): Promise<void> {
    this.stopping.abort();
    await this.running;
  }

  private async run(): Promise<void> {
    const { signal } = this.stopping;
    while (!signal.aborted) {
      if (this.options.faults().unavailable_ms === 0) await this.round();
      await sleep(this.options.intervalMilliseconds, undefined, { signal }).catch(() => undefined);
    }
  }

  private async round(): Promise<void> {
    const now = Date.now();
    const delay = this.options.faults().delay_callbacks_ms;
    const due = this.options.queue.pending.filter((callback) => now >= Date.parse(callback.at) + delay);
    const deliveries = planDeliveries(due, ({ id }) => now >= (this.attempts.get(id)?.last ?? 0) + RETRY_MILLISECONDS);
    await Promise.all(deliveries.map((delivery) => this.deliver(delivery)));
  }

  private async deliver(delivery: Delivery): Promise<void> {
    const { drop_callbacks, duplicate_callbacks } = this.options.faults();
    const outcome = drop_callbacks ? 'give up' : await this.post(delivery, 1 + duplicate_callbacks);
    if (this.stopping.signal.aborted && outcome !== 'delivered') return;
    const settled = [...delivery.superseded];
    for (const { id, txid, status } of delivery.callbacks) {
      const first = this.attempts.get(id)?.first ?? Date.now();
      if (outcome === 'try again' && Date.now() - first < GIVE_UP_MILLISECONDS) {
        this.attempts.set(id, { first, last: Date.now() });
        continue;
      }
      if (outcome !== 'delivered') this.options.log(`callback ${status} of ${txid} to ${delivery.url} given up`);
      this.attempts.delete(id);
      settled.push(id);
    }
    if (settled.length > 0) this.options.settle(settled);
  }

  private async post(delivery: Delivery, copies: number): Promise<Outcome> {
    const callbacks = delivery.callbacks.map((callback) =>
      callbackBody(
        callback,
        callback.blockHash === '' ? '' : this.options.merklePath(callback.blockHash, callback.txid),
      ),
    );
    const body = JSON.stringify(delivery.batch ? { count: callbacks.length, callbacks } : callbacks[0]);
    const headers: Record<string, string> = { 'content-type': 'application/json; charset=UTF-8' };
    if (delivery.token !== '') headers.authorization = `Bearer ${delivery.token}`;
    if (this.options.secret !== undefined) headers['x-arc-signature'] = arcSignature(this.options.secret, body);
    for (let copy = 0; copy < copies; copy++) {
      const signal = AbortSignal.any([this.stopping.signal, AbortSignal.timeout(RESPONSE_TIMEOUT_MILLISECONDS)]);
      try {
        const response = await fetch(delivery.url, { method: 'POST', headers, body, signal });
        await response.body?.cancel();
        if (!response.ok) return 'try again';
      } catch {
        return 'give up';
      }
    }
    return 'delivered';
  }
}
