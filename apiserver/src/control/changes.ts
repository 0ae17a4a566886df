// News for the operator: keys of resources whose observed state changed in the data plane, through PostgreSQL's NOTIFY, so
// that a change made by any process reaches the operator whichever process it watches.
import type { Kind } from '@kellet/crds';
import { sleep } from '../platform/clock.ts';
import type { Database, Transaction } from '../platform/database/database.ts';
import { controlChannel } from '../platform/database/channels.ts';
import { unavailable } from '../platform/errors.ts';
import type { Logger } from '../platform/observability/logger.ts';

/** The key of a resource whose observed state changed. */
export interface Change {
  readonly kind: Kind;
  readonly tenantId: string;
  /** Empty for a Tenant. */
  readonly namespace: string;
  readonly name: string;
}

/** Announces a change of a resource's observed state, once the transaction commits. */
export async function notifyChanged(
  tx: Transaction,
  kind: Kind,
  tenantId: string,
  namespace: string,
  name: string,
): Promise<void> {
  const change: Change = { kind, tenantId, namespace, name };
  await tx.query('SELECT pg_notify($1, $2)', [controlChannel, JSON.stringify(change)]);
}

/** Changes in order of their first occurrence; the same key is held once however often it changes. */
class ChangeQueue {
  private readonly changes = new Map<string, Change>();
  private failure: Error | undefined;
  private ended = false;
  private wake: () => void = () => undefined;

  push(change: Change): void {
    this.changes.set(`${change.kind}/${change.namespace}/${change.name}`, change);
    this.wake();
  }

  fail(error: Error): void {
    this.failure = error;
    this.wake();
  }

  end(): void {
    this.ended = true;
    this.wake();
  }

  /** The changes held; waits for one. Empty once the queue has ended. Throws the failure. */
  async take(): Promise<Change[]> {
    while (this.changes.size === 0 && !this.failure && !this.ended) {
      await new Promise<void>((resolve) => (this.wake = resolve));
    }
    if (this.failure) throw this.failure;
    const taken = [...this.changes.values()];
    this.changes.clear();
    return taken;
  }
}

/** Hands the database's notifications to the streams of this process. */
export class ChangeFeed {
  private readonly queues = new Set<ChangeQueue>();
  private live = false;

  constructor(database: Database, logger: Logger) {
    database.listen(
      [controlChannel],
      (_channel, payload) => {
        try {
          const change = JSON.parse(payload) as Change;
          for (const queue of this.queues) queue.push(change);
        } catch (error) {
          logger.warn({ err: error }, 'a notification of a change could not be read');
        }
      },
      (lost) => {
        this.live = !lost;
        // What happened meanwhile is unknown: the watchers come back and apply everything once.
        if (lost) for (const queue of this.queues) queue.fail(unavailable('changes may have been missed: watch again'));
      },
    );
  }

  /**
   * Changes from now on, until the signal aborts; the first item is undefined and says that none is missed after it.
   * Throws UNAVAILABLE when the connection to the database is lost, or was not there to begin with.
   */
  async *watch(signal: AbortSignal): AsyncGenerator<Change | undefined> {
    if (!this.live) throw unavailable('changes cannot be watched now');
    const queue = new ChangeQueue();
    const end = () => queue.end();
    signal.addEventListener('abort', end, { once: true });
    this.queues.add(queue);
    try {
      yield undefined;
      while (!signal.aborted) yield* await queue.take();
    } finally {
      signal.removeEventListener('abort', end);
      this.queues.delete(queue);
    }
  }
}

/**
 * Announces changes that come in floods (a fleet claiming with one template) at most once a second and resource. Best
 * effort: a change lost with the process is seen at the operator's next resync.
 */
export class ChangeCoalescer {
  private readonly database: Database;
  private readonly logger: Logger;
  private readonly pending = new Map<string, Change>();
  private readonly closing = new AbortController();
  private running: Promise<void> = Promise.resolve();

  constructor(database: Database, logger: Logger) {
    this.database = database;
    this.logger = logger;
  }

  /** Notes a committed change. */
  mark(change: Change): void {
    if (this.closing.signal.aborted) return;
    if (this.pending.size === 0) this.running = this.running.then(() => this.flushLater());
    this.pending.set(`${change.kind}/${change.tenantId}/${change.namespace}/${change.name}`, change);
  }

  private async flushLater(): Promise<void> {
    await sleep(1000, this.closing.signal);
    const changes = [...this.pending.values()];
    this.pending.clear();
    try {
      await this.database.system((tx) =>
        Promise.all(
          changes.map(({ kind, tenantId, namespace, name }) => notifyChanged(tx, kind, tenantId, namespace, name)),
        ),
      );
    } catch (error) {
      this.logger.debug({ err: error }, 'changes could not be announced yet');
      for (const change of changes) this.mark(change);
    }
  }

  /** Announces what is pending and takes no more. */
  async close(): Promise<void> {
    this.closing.abort();
    await this.running;
  }
}
