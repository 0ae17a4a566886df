// Takes keys from a queue and reconciles them, several at a time, and decides what a result or a failure means.
import { randomUUID } from 'node:crypto';
import type { Clock } from './clock.ts';
import { isConflict } from './kubernetes-error.ts';
import type { Logger } from './logger.ts';
import type { Metrics, ReconcileResult } from './metrics.ts';
import { parseKey, type ObjectKey } from './resource.ts';
import { WorkQueue } from './work-queue.ts';

/** What a reconcile asks for. */
export interface Outcome {
  /** Look again after so many milliseconds. */
  requeueAfterMs?: number;
}

/** What a reconcile is given beside its key. */
export interface ReconcileContext {
  /** Names the controller, the object and this reconcile on every line. */
  logger: Logger;
  /** Aborts when the process must stop. */
  signal: AbortSignal;
}

/** Makes the world agree with one object. Must be safe to repeat at any time, also after dying anywhere inside. */
export type Reconcile = (key: ObjectKey, context: ReconcileContext) => Promise<Outcome>;

/** A failure that no retry mends; the next change of the object is the next attempt. */
export class TerminalError extends Error {
  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = 'TerminalError';
  }
}

/** What to do with a key after its reconcile. */
export type Verdict =
  | { result: 'success'; requeue: 'never' }
  | { result: 'requeue_after'; requeue: 'after'; milliseconds: number }
  | { result: 'requeue'; requeue: 'rate-limited' }
  | { result: 'error'; requeue: 'rate-limited' | 'never'; kind: 'failure' | 'terminal' | 'panic' };

/** Judges how a reconcile ended. A conflict is no error: somebody else was faster, and the cache will show what they did. */
export function judge(ending: { outcome: Outcome } | { error: unknown }): Verdict {
  if ('outcome' in ending) {
    const { requeueAfterMs } = ending.outcome;
    if (requeueAfterMs === undefined) return { result: 'success', requeue: 'never' };
    return { result: 'requeue_after', requeue: 'after', milliseconds: requeueAfterMs };
  }
  const { error } = ending;
  if (isConflict(error)) return { result: 'requeue', requeue: 'rate-limited' };
  if (error instanceof TerminalError) return { result: 'error', requeue: 'never', kind: 'terminal' };
  const panic = error instanceof TypeError || error instanceof RangeError || error instanceof ReferenceError;
  return { result: 'error', requeue: 'rate-limited', kind: panic ? 'panic' : 'failure' };
}

/** What a controller needs. */
export interface ControllerOptions {
  name: string;
  reconcile: Reconcile;
  clock: Clock;
  logger: Logger;
  metrics: Metrics;
  /** Reconciles at a time (4). */
  concurrency?: number;
}

/** Workers over a queue of keys. */
export class Controller {
  readonly name: string;
  readonly queue: WorkQueue;
  readonly #options: Required<ControllerOptions>;
  #workers: Promise<void>[] = [];

  constructor(options: ControllerOptions) {
    this.name = options.name;
    this.#options = { concurrency: 4, ...options };
    this.queue = new WorkQueue({ name: options.name, clock: options.clock, metrics: options.metrics });
    options.metrics.maxConcurrentReconciles.set({ controller: options.name }, this.#options.concurrency);
    for (const result of ['success', 'error', 'requeue', 'requeue_after'] satisfies ReconcileResult[]) {
      options.metrics.reconciles.inc({ controller: options.name, result }, 0);
    }
  }

  /** Starts the workers; they end when the signal aborts and their current work is done. */
  start(signal: AbortSignal): void {
    signal.addEventListener('abort', () => this.queue.close(), { once: true });
    if (signal.aborted) this.queue.close();
    this.#workers = Array.from({ length: this.#options.concurrency }, () => this.#work(signal));
  }

  /** Resolves when every worker has ended. */
  async stopped(): Promise<void> {
    await Promise.all(this.#workers);
  }

  async #work(signal: AbortSignal): Promise<void> {
    for (let key = await this.queue.get(); key !== undefined; key = await this.queue.get()) {
      await this.#process(key, signal);
    }
  }

  async #process(key: string, signal: AbortSignal): Promise<void> {
    const { clock, metrics, name } = this.#options;
    const { namespace, name: objectName } = parseKey(key);
    const logger = this.#options.logger.child({
      controller: name,
      ...(namespace && { namespace }),
      name: objectName,
      reconcileID: randomUUID(),
    });
    const started = clock.monotonic();
    metrics.activeWorkers.inc({ controller: name });
    let ending: { outcome: Outcome } | { error: unknown };
    try {
      ending = { outcome: await this.#options.reconcile({ namespace, name: objectName }, { logger, signal }) };
    } catch (error) {
      ending = { error };
    }
    metrics.activeWorkers.dec({ controller: name });
    metrics.reconcileSeconds.observe({ controller: name }, (clock.monotonic() - started) / 1000);
    this.#settle(key, judge(ending), 'error' in ending ? ending.error : undefined, logger);
    this.queue.done(key);
  }

  #settle(key: string, verdict: Verdict, error: unknown, logger: Logger): void {
    const { metrics, name } = this.#options;
    metrics.reconciles.inc({ controller: name, result: verdict.result });
    if (verdict.result === 'error') {
      metrics.reconcileErrors.inc({ controller: name });
      if (verdict.kind === 'terminal') metrics.terminalReconcileErrors.inc({ controller: name });
      if (verdict.kind === 'panic') metrics.reconcilePanics.inc({ controller: name });
    }
    if (verdict.requeue !== 'rate-limited') this.queue.forget(key);
    if (verdict.requeue === 'after') this.queue.addAfter(key, verdict.milliseconds);
    const retryMs = verdict.requeue === 'rate-limited' ? this.queue.addRateLimited(key) : undefined;
    if (verdict.result === 'requeue') logger.info({ retryMs }, 'the object changed meanwhile: trying again');
    else if (verdict.result === 'error') logger.error({ err: error, kind: verdict.kind, retryMs }, 'reconcile failed');
    else logger.debug({ result: verdict.result }, 'reconciled');
  }
}
