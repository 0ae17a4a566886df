// Opaque cursor paging, the same for every list (AIP-158).
import { createCipheriv, createDecipheriv, createHmac, hkdfSync, timingSafeEqual } from 'node:crypto';
import { LargeReads } from '../concurrency/large-reads.ts';
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

/** Bytes of the HMAC with which a token begins. */
const macBytes = 16;

/**
 * Creates and opens page tokens. A token is bound to its tenant, list and filters by an HMAC, and tells its reader nothing: a cursor may
 * be what a caller must not see, such as the hash of a point of which an entity view shows a part.
 */
export class Paging {
  /** Turns of large pages. */
  readonly turns = new LargeReads();
  private readonly key: Buffer;
  private readonly cipherKey: Buffer;

  constructor(key: Buffer) {
    this.key = key;
    this.cipherKey = Buffer.from(hkdfSync('sha256', key, '', 'kellet cursors', 32));
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
    const mac = bytes.subarray(0, macBytes);
    // Decoding skips what is not base64: only the token itself is valid, not a longer text that begins with it.
    const isOurs = bytes.length > macBytes && bytes.toString('base64url') === request.pageToken;
    const cursor = isOurs ? this.decrypt(mac, bytes.subarray(macBytes)) : Buffer.alloc(0);
    if (!isOurs || !timingSafeEqual(mac, this.mac(cursor, scope))) {
      throw invalidArgument('page_token is not valid for this list and these filters');
    }
    return { size, after: JSON.parse(cursor.toString()) as Cursor };
  }

  /** Makes a page in a turn if it has more rows than one of the default size: many small rows take long, too. */
  inTurn<T>(tenantId: string, { size }: Page<unknown>, make: () => Promise<T>): Promise<T> {
    return this.turns.run(tenantId, size, defaultPageSize, make);
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
    const mac = this.mac(cursor, scope);
    return { rows: kept, nextPageToken: Buffer.concat([mac, this.encrypt(mac, cursor)]).toString('base64url') };
  }

  // The HMAC is the initial counter, as in RFC 5297: it differs for each cursor and scope, and needs no room of its own.

  private encrypt(mac: Buffer, cursor: Buffer): Buffer {
    const cipher = createCipheriv('aes-256-ctr', this.cipherKey, mac);
    return Buffer.concat([cipher.update(cursor), cipher.final()]);
  }

  private decrypt(mac: Buffer, encrypted: Buffer): Buffer {
    const decipher = createDecipheriv('aes-256-ctr', this.cipherKey, mac);
    return Buffer.concat([decipher.update(encrypted), decipher.final()]);
  }

  private mac(cursor: Buffer, scope: readonly unknown[]): Buffer {
    return createHmac('sha256', this.key)
      .update(JSON.stringify(scope))
      .update('\0')
      .update(cursor)
      .digest()
      .subarray(0, macBytes);
  }
}
