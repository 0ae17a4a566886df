// Callback subscriptions and pending callbacks, derived from the journal so that they survive a restart.
import type { Settled, Subscribed } from './events.ts';
import { statusRank, type TransactionRecord, type TransactionStatus } from './status.ts';

/** A status to report to an address. */
export interface PendingCallback {
  readonly id: number;
  readonly url: string;
  /** Sent back as bearer token; '' sends none. */
  readonly token: string;
  readonly batch: boolean;
  readonly txid: string;
  /** When the transaction got this status, RFC 3339. */
  readonly at: string;
  readonly status: TransactionStatus;
  readonly extraInfo: string;
  readonly competing: readonly string[];
  readonly blockHash: string;
  readonly blockHeight: number;
}

/** Reports whether a status is sent: final ones always, intermediate ones only to subscribers with full updates. */
export function isReported(status: TransactionStatus, full: boolean): boolean {
  return statusRank[status] >= (full ? statusRank.SEEN_IN_ORPHAN_MEMPOOL : statusRank.REJECTED);
}

/** Subscriptions and unsettled callbacks. */
export class CallbackQueue {
  private readonly subscriptions = new Map<string, Subscribed[]>();
  private readonly pendingById = new Map<number, PendingCallback>();
  private lastId = 0;

  /** Pending callbacks, oldest first. */
  get pending(): readonly PendingCallback[] {
    return [...this.pendingById.values()];
  }

  /** Reports whether this address is already subscribed to the transaction. */
  isSubscribed(txid: string, url: string): boolean {
    return this.subscriptions.get(txid)?.some((subscription) => subscription.url === url) ?? false;
  }

  apply(event: Subscribed | Settled): void {
    if (event.type === 'subscribed') {
      this.subscriptions.set(event.txid, [...(this.subscriptions.get(event.txid) ?? []), event]);
    } else {
      for (const id of event.ids) this.pendingById.delete(id);
    }
  }

  /** Queues a new status for all subscribers. */
  note(record: Readonly<TransactionRecord>, at: string): void {
    for (const { url, token, batch, full } of this.subscriptions.get(record.txid) ?? []) {
      if (!isReported(record.status, full)) continue;
      const mined = record.status === 'MINED' || record.status === 'MINED_IN_STALE_BLOCK';
      this.lastId += 1;
      this.pendingById.set(this.lastId, {
        id: this.lastId,
        url,
        token,
        batch,
        txid: record.txid,
        at,
        status: record.status,
        extraInfo: record.extraInfo,
        competing: record.status === 'MINED' ? [] : [...record.competing],
        blockHash: mined ? record.blockHash : '',
        blockHeight: mined ? record.blockHeight : 0,
      });
    }
  }
}

/** Callbacks sent in one request, and older ones that they supersede. */
export interface Delivery {
  readonly url: string;
  readonly token: string;
  /** Whether the body is the batched form. */
  readonly batch: boolean;
  readonly callbacks: readonly PendingCallback[];
  /** Ids of older statuses of the same transactions: never sent, as with the real processor. */
  readonly superseded: readonly number[];
}

/**
 * Plans one round of sending: the newest status of each transaction for each address, batched if requested.
 * `mayTry` reports whether it is time to send this one (again); until then nothing is sent for its transaction, so that
 * no older status follows a newer one.
 */
export function planDeliveries(
  due: readonly PendingCallback[],
  mayTry: (callback: PendingCallback) => boolean = () => true,
): Delivery[] {
  const byTransaction = Map.groupBy(due, (callback) => JSON.stringify([callback.url, callback.batch, callback.txid]));
  const newest = [...byTransaction.values()]
    .map((callbacks) => ({
      callback: callbacks.at(-1)!,
      superseded: callbacks.slice(0, -1).map((callback) => callback.id),
    }))
    .filter(({ callback }) => mayTry(callback));
  const byRequest = Map.groupBy(newest, ({ callback: { url, token, batch, txid } }) =>
    JSON.stringify(batch ? [url, token] : [url, token, txid]),
  );
  return [...byRequest.values()].map((items) => ({
    url: items[0]!.callback.url,
    token: items[0]!.callback.token,
    batch: items[0]!.callback.batch,
    callbacks: items.map((item) => item.callback),
    superseded: items.flatMap((item) => item.superseded),
  }));
}
