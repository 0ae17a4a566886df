// Opaque cursor paging, the same for every list (AIP-158).
import { createHmac, timingSafeEqual } from 'node:crypto';
import { LargeReads } from '../concurrency/large-reads.ts';
import type { Database, Transaction } from '../database/database.ts';
import { readSized, type Room, type SizedRow } from '../database/sized-rows.ts';
import { invalidArgument } from '../errors.ts';

const defaultPageSize = 50;
const maximumPageSize = 500;

/** A validated list request. */
export interface Page<Cursor> {
  /** Number of rows to return; a store fetches one more to detect a next page. */
  readonly size: number;
  /** Position at which the last page ended; undefined for the first. */
  readonly after: Cursor | undefined;
}

/** A list of a tenant whose rows may be large. */
export interface SizedList<Row, Cursor, Item> {
  /** See `open`. */
  readonly scope: readonly [tenantId: string, ...filters: unknown[]];
  /** Pages of more rows take turns. */
  readonly smallPage: number;
  readonly cursorOf: (row: Row) => Cursor;
  /** Throws if a filter refers to something that does not exist. */
  readonly check?: (tx: Transaction) => Promise<unknown>;
  /** Reads as many rows as there is room for. */
  readonly read: (tx: Transaction, after: Cursor | undefined, room: Room) => Promise<readonly (Row & SizedRow)[]>;
  readonly toItem: (row: Row) => Item;
}

/** Creates and opens page tokens. A token is bound to its tenant, list and filters by an HMAC. */
export class Paging {
  /** Turns of large pages. */
  readonly turns = new LargeReads();
  private readonly key: Buffer;

  constructor(key: Buffer) {
    this.key = key;
  }

  /**
   * Validates a list request. `scope` is the tenant, the list and its filters, in this order; a token of another scope
   * is INVALID_ARGUMENT. A size of 0 means the default (50), a size above the maximum is capped, and a negative one is
   * INVALID_ARGUMENT.
   */
  open<Cursor>(
    request: { pageSize: number; pageToken: string },
    scope: readonly unknown[],
    limits: { defaultSize?: number; maximumSize?: number } = {},
  ): Page<Cursor> {
    if (request.pageSize < 0) throw invalidArgument('page_size must not be negative');
    const maximum = limits.maximumSize ?? maximumPageSize;
    const size = Math.min(request.pageSize === 0 ? (limits.defaultSize ?? defaultPageSize) : request.pageSize, maximum);
    if (request.pageToken === '') return { size, after: undefined };
    const bytes = Buffer.from(request.pageToken, 'base64url');
    const cursor = bytes.subarray(16);
    // Decoding skips what is not base64: only the token itself is valid, not a longer text that begins with it.
    const isOurs = bytes.length > 16 && bytes.toString('base64url') === request.pageToken;
    if (!isOurs || !timingSafeEqual(bytes.subarray(0, 16), this.mac(cursor, scope))) {
      throw invalidArgument('page_token is not valid for this list and these filters');
    }
    return { size, after: JSON.parse(cursor.toString()) as Cursor };
  }

  /**
   * Trims the rows that a store fetched (at most size + 1) to the page and creates the token of the next one: "" at the
   * end, also after an exactly full last page. `isCut`: the store stopped before the page was full.
   */
  close<Row, Cursor>(
    rows: readonly Row[],
    page: Page<Cursor>,
    scope: readonly unknown[],
    cursorOf: (row: Row) => Cursor,
    isCut = false,
  ): { rows: Row[]; nextPageToken: string } {
    const kept = rows.slice(0, page.size);
    const last = kept.at(-1);
    if ((rows.length <= page.size && !isCut) || last === undefined) return { rows: kept, nextPageToken: '' };
    const cursor = Buffer.from(JSON.stringify(cursorOf(last)));
    return { rows: kept, nextPageToken: Buffer.concat([this.mac(cursor, scope), cursor]).toString('base64url') };
  }

  /** Returns a page of a list whose rows may be large, which ends early where they are. Takes a turn if the page may be large. */
  async list<Row, Cursor, Item>(
    database: Database,
    request: { pageSize: number; pageToken: string },
    { scope, smallPage, cursorOf, check, read, toItem }: SizedList<Row, Cursor, Item>,
  ): Promise<{ items: Item[]; nextPageToken: string }> {
    const [tenantId] = scope;
    const page = this.open<Cursor>(request, scope);
    return this.turns.run(tenantId, page.size, smallPage, async () => {
      const { rows, isCut } = await database.read(tenantId, async (tx) => {
        await check?.(tx);
        return readSized(page, cursorOf, (after, room) => read(tx, after, room));
      });
      const closed = this.close(rows, page, scope, cursorOf, isCut);
      return { items: closed.rows.map((row) => toItem(row)), nextPageToken: closed.nextPageToken };
    });
  }

  private mac(cursor: Buffer, scope: readonly unknown[]): Buffer {
    return createHmac('sha256', this.key)
      .update(JSON.stringify(scope))
      .update('\0')
      .update(cursor)
      .digest()
      .subarray(0, 16);
  }
}
