// Events of devchain's state, as stored in the journal. The state results from applying them in order, so applying must
// not depend on time or randomness. `at` is RFC 3339; bytes are hex.
import type { Pool, TransactionStatus } from './status.ts';

/** The first entry of a journal. */
export interface Created {
  readonly type: 'created';
  readonly at: string;
  /** Secret key of the miner, which owns the coinbases. */
  readonly miner_key: string;
}

/** A transaction became known, with the status that the network assigned. */
export interface Submitted {
  readonly type: 'submitted';
  readonly at: string;
  readonly raw: string;
  readonly status: TransactionStatus;
  readonly pool: Pool;
  readonly extra_info: string;
  readonly competing: readonly string[];
}

/** A known transaction changed status or pool, other than by a block. */
export interface Moved {
  readonly type: 'moved';
  readonly at: string;
  readonly txid: string;
  readonly status: TransactionStatus;
  readonly pool: Pool;
  readonly extra_info: string;
  readonly competing: readonly string[];
}

/** A block became the tip. */
export interface Connected {
  readonly type: 'connected';
  readonly at: string;
  readonly header: string;
  readonly coinbase: string;
  /** The other transactions, parents first; each was submitted before. */
  readonly txids: readonly string[];
}

/** The tip became stale; the block before it is the tip again. */
export interface Disconnected {
  readonly type: 'disconnected';
  readonly at: string;
}

/** A client subscribed to callbacks about a transaction. */
export interface Subscribed {
  readonly type: 'subscribed';
  readonly txid: string;
  readonly url: string;
  readonly token: string;
  readonly batch: boolean;
  readonly full: boolean;
}

/** Callbacks were delivered, superseded or given up. */
export interface Settled {
  readonly type: 'settled';
  readonly ids: readonly number[];
}

export type DevchainEvent = Created | Submitted | Moved | Connected | Disconnected | Subscribed | Settled;
