// Sends events to webhooks: at least once, with retries, roughly in order. Any number of processes share the queue.
import { FairWorker } from '../platform/background/fair-worker.ts';
import { Loop } from '../platform/background/loop.ts';
import { repeatWhileFull } from '../platform/background/repeat-while-full.ts';
import type { Database } from '../platform/database/database.ts';
import type { Logger } from '../platform/observability/logger.ts';
import { counter, readGauge, type Registry } from '../platform/observability/metrics.ts';
import type { OutboundGuard } from '../platform/outbound/outbound-guard.ts';
import { maxAttempts } from './sending/retry-schedule.ts';
import { callWebhook, WebhookError } from './sending/webhook-call.ts';
import type { WebhookSecrets } from './sending/webhook-secrets.ts';
import {
  boundDeliveries,
  claimDeliveries,
  type ClaimedDelivery,
  countDeliveries,
  forgetOldDeliveries,
  maximumFinished,
  settleDelivery,
  webhooksToBound,
} from './webhook-store.ts';

/** Dependencies of the worker. */
export interface WebhookWorkerParts {
  readonly database: Database;
  readonly logger: Logger;
  readonly metrics: Registry;
  readonly guard: OutboundGuard;
  readonly secrets: WebhookSecrets;
}

const maxConcurrent = 64;
/** Kept small so that events arrive roughly in order and a slow server occupies little of the worker. */
const maxOfWebhook = 2;
const sweepMilliseconds = 30_000;
const rowsPerTransaction = 5000;

/** What runs in the background. */
export interface WebhookWorker {
  start(): void;
  /** Looks for due deliveries immediately. */
  wake(): void;
  /** Cuts off running calls, which are repeated later, and resolves when they have ended. */
  stop(): Promise<void>;
}

/** When the deliveries of a webhook were last bounded, and their bytes before that. */
interface LastBound {
  readonly bytes: number;
  /** Milliseconds of the monotonic clock. */
  readonly at: number;
}

/** Deliveries are counted again when their bytes have changed by so much, and after so long in any case. */
const changedBytes = 256 * 1024;
const recountMilliseconds = 600_000;

/** Decides whether a webhook may have more finished deliveries than are kept. Counting them reads all of them. */
export function mayExceed(
  { is_full: isFull, bytes }: { readonly is_full: boolean; readonly bytes: number },
  last: LastBound | undefined,
  now: number,
): boolean {
  if (isFull || last === undefined || bytes > maximumFinished.bytes) return true;
  return Math.abs(bytes - last.bytes) >= changedBytes || now - last.at >= recountMilliseconds;
}

/** Creates the worker. */
export function createWebhookWorker(parts: WebhookWorkerParts): WebhookWorker {
  const { database, logger, metrics, guard, secrets } = parts;
  const attempts = counter(
    metrics,
    'kellet_webhook_attempts_total',
    'Attempts to send events to webhooks, by result.',
    ['result'],
  );
  for (const [status, name, help] of [
    ['pending', 'kellet_webhook_deliveries_pending', 'Events on their way to webhooks.'],
    ['dead', 'kellet_webhook_deliveries_dead', 'Events that webhooks did not take, kept for 30 days.'],
  ] as const) {
    readGauge(parts, name, help, () => database.systemRead((tx) => countDeliveries(tx, status)));
  }

  const settle = async (claim: ClaimedDelivery, signal: AbortSignal): Promise<void> => {
    const { tenant_id: tenantId, webhook_id: webhookId, delivery_id: deliveryId } = claim;
    const ids = { tenantId, webhookId, deliveryId, attempts: claim.attempts };
    let result = { lastStatus: 0, error: '', isDead: false };
    try {
      const secret = secrets.open(tenantId, claim.secret);
      result = {
        ...result,
        lastStatus: await callWebhook({ tenantId, url: claim.url, secret, body: claim.event }, guard, signal),
      };
    } catch (error) {
      // When the process stops, the claim runs out and the event is sent again.
      if (signal.aborted) return;
      const isExpected = error instanceof WebhookError;
      const isDead = claim.attempts >= maxAttempts;
      result = {
        ...{ lastStatus: isExpected ? error.status : 0, isDead },
        error: isExpected ? error.message : 'internal error',
      };
      logger[isExpected ? 'info' : 'warn'](
        { ...(isExpected ? { reason: error.message } : { err: error }), ...ids },
        isDead ? 'gave up sending an event to a webhook' : 'an event could not be sent to a webhook',
      );
    }
    attempts.inc({ result: result.error === '' ? 'delivered' : result.isDead ? 'dead' : 'failed' });
    await database
      .tenant(tenantId, (tx) => settleDelivery(tx, claim, result))
      .catch((failure: unknown) => logger.warn({ err: failure, ...ids }, 'the result of a delivery was not stored'));
  };

  const work = new FairWorker<ClaimedDelivery>(logger, {
    ...{ name: 'webhooks', most: maxConcurrent, mostOfKey: maxOfWebhook },
    keyOf: (claim) => claim.webhook_id,
    tenantOf: (claim) => claim.tenant_id,
    claim: (limit, except, busy) =>
      database.system((tx) => claimDeliveries(tx, { limit, perWebhook: maxOfWebhook, except, busy })),
    settle,
  });
  const bounded = new Map<string, LastBound>();
  const sweep = new Loop(logger, 'sweep of deliveries', sweepMilliseconds, async (signal) => {
    const webhooks = await database.system(webhooksToBound);
    for (const webhook of webhooks) {
      if (signal.aborted) return;
      if (!mayExceed(webhook, bounded.get(webhook.webhook_id), performance.now())) continue;
      await database.system((tx) => boundDeliveries(tx, webhook));
      bounded.set(webhook.webhook_id, { bytes: webhook.bytes, at: performance.now() });
    }
    const known = new Set(webhooks.map(({ webhook_id: webhookId }) => webhookId));
    for (const webhookId of bounded.keys()) if (!known.has(webhookId)) bounded.delete(webhookId);
    await repeatWhileFull(rowsPerTransaction, signal, (limit) =>
      database.system((tx) => forgetOldDeliveries(tx, limit)),
    );
  });
  return {
    start: () => {
      work.start();
      sweep.start();
    },
    wake: () => work.wake(),
    stop: async () => {
      await Promise.all([work.stop(), sweep.stop()]);
    },
  };
}
