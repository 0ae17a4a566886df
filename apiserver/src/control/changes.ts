// Notifies the operator of resources whose observed state has changed in the data plane. Uses PostgreSQL's NOTIFY, so that
// a change in any process reaches the operator, whichever process it is connected to.
import type { Kind } from '@kellet/crds';
import { sleep } from '../platform/clock.ts';
import { controlChannel } from '../platform/database/channels.ts';
import type { Database, Transaction } from '../platform/database/database.ts';
import { unavailable } from '../platform/errors.ts';
import type { Logger } from '../platform/observability/logger.ts';

/** The key of a resource whose observed state has changed. */
export interface Change {
  readonly kind: Kind;
  readonly tenantId: string;
  /** Empty for a Tenant. */
  readonly namespace: string;
  readonly name: string;
}

/** Publishes a change of a resource's observed state when the transaction commits. */
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

/** A queue of changes in the order of their first occurrence. It holds each key once. */
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

  /** Returns all queued changes, waiting until there is one. Empty once the queue has ended. Throws the failure. */
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

/** Calls back for each change, and with undefined when changes may have been missed. */
export function followChanges(database: Database, changed: (change: Change | undefined) => void): void {
  database.listen(
    [controlChannel],
    (_channel, payload) => changed(parseChange(payload)),
    (lost) => {
      if (!lost) changed(undefined);
    },
  );
}

/** Returns the change of a notification, or undefined if it is not one of ours. */
function parseChange(payload: string): Change | undefined {
  try {
    return JSON.parse(payload) as Change;
  } catch {
    return undefined;
  }
}

/** Distributes the database's notifications to the watch streams of this process. */
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
          logger.warn({ err: error }, 'received an invalid change notification');
        }
      },
      (lost) => {
        this.live = !lost;
        // Changes may have been missed: watchers reconnect and reconcile everything.
        if (lost)
          for (const queue of this.queues) queue.fail(unavailable('changes may have been missed: start a new watch'));
      },
    );
  }

  /**
   * Yields changes until the signal aborts. The first item is undefined: no change after it is missed. Throws UNAVAILABLE
   * if the connection to the database is not established or is lost.
   */
  async *watch(signal: AbortSignal): AsyncGenerator<Change | undefined> {
    if (!this.live) throw unavailable('changes cannot be watched: the database is not connected');
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
 * Publishes frequent changes (such as those of a template with which a whole fleet claims) at most once per second and
 * resource. Best effort: the operator's next resync covers a change that is lost with the process.
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

  /** Adds a committed change. */
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
      this.logger.debug({ err: error }, 'failed to publish changes, will retry');
      for (const change of changes) this.mark(change);
    }
  }

  /** Publishes the pending changes. Further ones are ignored. */
  async close(): Promise<void> {
    this.closing.abort();
    await this.running;
  }
}
