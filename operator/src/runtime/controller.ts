// Reconciles keys from a queue concurrently, and handles results and failures.
import { randomUUID } from 'node:crypto';
import { setImmediate } from 'node:timers/promises';
import { failureOf, type ObjectKey, parseKey } from '@kellet/kubernetes';
import type { Clock } from './clock.ts';
import type { Logger } from './logger.ts';
import type { Metrics, ReconcileResult } from './metrics.ts';
import { WorkQueue } from './work-queue.ts';

/** Result of a reconcile. */
export interface Outcome {
  /** Reconcile again after this many milliseconds. */
  requeueAfterMilliseconds?: number;
}

/** Context of a reconcile. */
export interface ReconcileContext {
  /** Includes the controller, the object and this reconcile in every line. */
  logger: Logger;
  /** Aborts at shutdown. */
  signal: AbortSignal;
}

/** Reconciles one object. Must be idempotent, also after a crash at any point. */
export type Reconcile = (key: ObjectKey, context: ReconcileContext) => Promise<Outcome>;

/** A permanent failure: it is not retried until the object changes. */
export class TerminalError extends Error {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = 'TerminalError';
  }
}

/** How to handle a key after its reconcile. */
export type Verdict =
  | { result: 'success'; requeue: 'never' }
  | { result: 'requeue_after'; requeue: 'after'; milliseconds: number }
  | { result: 'requeue'; requeue: 'rate-limited' }
  | { result: 'error'; requeue: 'rate-limited' | 'never'; kind: 'failure' | 'terminal' | 'panic' };

/**
 * Decides how to handle the end of a reconcile. A conflict is not an error: the cache will receive the other change.
 */
export function judge(ending: { outcome: Outcome } | { error: unknown }): Verdict {
  if ('outcome' in ending) {
    const { requeueAfterMilliseconds } = ending.outcome;
    if (requeueAfterMilliseconds === undefined) return { result: 'success', requeue: 'never' };
    return { result: 'requeue_after', requeue: 'after', milliseconds: requeueAfterMilliseconds };
  }
  const { error } = ending;
  if (failureOf(error) === 'conflict') return { result: 'requeue', requeue: 'rate-limited' };
  if (error instanceof TerminalError) return { result: 'error', requeue: 'never', kind: 'terminal' };
  const panic = error instanceof TypeError || error instanceof RangeError || error instanceof ReferenceError;
  return { result: 'error', requeue: 'rate-limited', kind: panic ? 'panic' : 'failure' };
}

/** Options of a controller. */
export interface ControllerOptions {
  name: string;
  reconcile: Reconcile;
  clock: Clock;
  logger: Logger;
  metrics: Metrics;
  /** Maximum number of concurrent reconciles (default 4). */
  concurrency?: number;
}

/** Workers that a namespace leaves to the others, however many resources it has and however long each takes. */
const workersOfOthers = 2;

/** A queue of keys with workers. */
export class Controller {
  readonly name: string;
  readonly queue: WorkQueue;
  private readonly options: Required<ControllerOptions>;
  private workers: Promise<void>[] = [];

  constructor(options: ControllerOptions) {
    this.name = options.name;
    this.options = { concurrency: 4, ...options };
    const { name, clock, metrics } = options;
    const perNamespace = Math.max(1, this.options.concurrency - workersOfOthers);
    this.queue = new WorkQueue({ name, clock, metrics, perNamespace });
    options.metrics.maxConcurrentReconciles.set({ controller: options.name }, this.options.concurrency);
    for (const result of ['success', 'error', 'requeue', 'requeue_after'] satisfies ReconcileResult[]) {
      options.metrics.reconciles.inc({ controller: options.name, result }, 0);
    }
  }

  /** Starts the workers. They end when the signal aborts and their current work is done. */
  start(signal: AbortSignal): void {
    signal.addEventListener('abort', () => this.queue.close(), { once: true });
    if (signal.aborted) this.queue.close();
    this.workers = Array.from({ length: this.options.concurrency }, () => this.work(signal));
  }

  /** Resolves when all workers have ended. */
  async stopped(): Promise<void> {
    await Promise.all(this.workers);
  }

  private async work(signal: AbortSignal): Promise<void> {
    for (let key = await this.queue.get(); key !== undefined; key = await this.queue.get()) {
      await this.process(key, signal);
      // Reconciles that wait for nothing would let nothing else happen until the queue is empty.
      await setImmediate();
    }
  }

  private async process(key: string, signal: AbortSignal): Promise<void> {
    const { clock, metrics, name } = this.options;
    const { namespace, name: objectName } = parseKey(key);
    const logger = this.options.logger.child({
      controller: name,
      ...(namespace && { namespace }),
      name: objectName,
      reconcileID: randomUUID(),
    });
    const started = clock.monotonic();
    metrics.activeWorkers.inc({ controller: name });
    let ending: { outcome: Outcome } | { error: unknown };
    try {
      ending = { outcome: await this.options.reconcile({ namespace, name: objectName }, { logger, signal }) };
    } catch (error) {
      ending = { error };
    }
    metrics.activeWorkers.dec({ controller: name });
    metrics.reconcileSeconds.observe({ controller: name }, (clock.monotonic() - started) / 1000);
    this.settle(key, judge(ending), 'error' in ending ? ending.error : undefined, logger);
    this.queue.done(key);
  }

  private settle(key: string, verdict: Verdict, error: unknown, logger: Logger): void {
    const { metrics, name } = this.options;
    metrics.reconciles.inc({ controller: name, result: verdict.result });
    if (verdict.result === 'error') {
      metrics.reconcileErrors.inc({ controller: name });
      if (verdict.kind === 'terminal') metrics.terminalReconcileErrors.inc({ controller: name });
      if (verdict.kind === 'panic') metrics.reconcilePanics.inc({ controller: name });
    }
    if (verdict.requeue !== 'rate-limited') this.queue.forget(key);
    if (verdict.requeue === 'after') this.queue.addAfter(key, verdict.milliseconds);
    const retryMilliseconds = verdict.requeue === 'rate-limited' ? this.queue.addRateLimited(key) : undefined;
    if (verdict.result === 'requeue')
      logger.info({ retryMilliseconds }, 'the object changed during the reconcile: retrying');
    else if (verdict.result === 'error')
      logger.error({ err: error, kind: verdict.kind, retryMilliseconds }, 'reconcile failed');
    else logger.debug({ result: verdict.result }, 'reconciled');
  }
}
