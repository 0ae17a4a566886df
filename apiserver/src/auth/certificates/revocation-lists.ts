// The current list of revoked certificates of each authority, kept for a minute: a list of a large fleet takes seconds to read
// and tens of megabytes to hold, so few are kept and one is built at a time.
import { createHash } from 'node:crypto';
import { LRUCache } from 'lru-cache';
import type { Clock } from '../../platform/clock.ts';
import { FairSlots } from '../../platform/concurrency/fair-slots.ts';
import type { Database } from '../../platform/database/database.ts';
import { resourceExhausted } from '../../platform/errors.ts';
import { TokenBuckets } from '../../platform/token-bucket.ts';
import type { SigningAuthority } from './certificate-authority.ts';
import { listEnded } from './certificate-store.ts';
import { revokedEntries, signRevocationList } from './revocation-list.ts';

/** How long a list is served before the next one is built. */
const keptMilliseconds = 60_000;
/** Of the lists that are kept. */
const maximumBytes = 64 * 1024 * 1024;
const readAtOnce = 1000;
/** Lists of at least this many bytes are large: each is copied several times to be sent. */
const largeBytes = 1024 * 1024;
/** How many large lists a tenant gets at once, and per second. */
const largeLists = { burst: 16, perSecond: 1 };
/** More entries make lists of tens of megabytes, which proxies read into memory. */
const maximumEntries = 500_000;

/** A signed list. */
export interface SignedList {
  /** DER. */
  readonly der: Buffer;
  /** Entity tag of the DER, with its quotes. */
  readonly etag: string;
}

/** Whose list it is. */
interface ListOwner {
  readonly tenantId: string;
  readonly authorityId: string;
}

/** The lists of this process. */
export class RevocationLists {
  private readonly database: Database;
  private readonly clock: Clock;
  private readonly kept = new LRUCache<string, SignedList & { readonly builtAt: number }>({
    maxSize: maximumBytes,
    sizeCalculation: ({ der }) => der.length + 500,
  });
  private readonly allowance: TokenBuckets;
  private readonly builds = new Map<string, Promise<SignedList>>();
  private readonly slot = new FairSlots({
    ...{ total: 1, perOwner: 1, waitingPerOwner: 50 },
    refusal: () => resourceExhausted('too many revocation lists are being built', 1),
  });

  constructor(database: Database, clock: Clock) {
    this.database = database;
    this.clock = clock;
    this.allowance = new TokenBuckets(clock, largeLists);
  }

  /**
   * Returns the list of an authority that may still sign, at most a minute old; concurrent callers share its build. Throws
   * RESOURCE_EXHAUSTED if it would have too many entries, or is large and was asked for too often, FAILED_PRECONDITION if the
   * authority may not sign lists, and what `open` throws, which returns the authority.
   */
  async get(owner: ListOwner, open: () => Promise<SigningAuthority>): Promise<SignedList> {
    const list = await this.current(owner, open);
    const wait = list.der.length < largeBytes ? 0 : this.allowance.take(owner.tenantId);
    if (wait > 0) throw resourceExhausted('large revocation lists were asked for too often', wait);
    return list;
  }

  private async current(owner: ListOwner, open: () => Promise<SigningAuthority>): Promise<SignedList> {
    const key = `${owner.tenantId}/${owner.authorityId}`;
    const kept = this.kept.get(key);
    const age = kept ? this.clock.now() - kept.builtAt : Infinity;
    if (kept && age >= 0 && age < keptMilliseconds) return kept;
    let build = this.builds.get(key);
    if (!build) {
      build = this.buildInTurn(key, owner, open).finally(() => this.builds.delete(key));
      this.builds.set(key, build);
    }
    return build;
  }

  private buildInTurn(key: string, owner: ListOwner, open: () => Promise<SigningAuthority>): Promise<SignedList> {
    return this.slot.run(owner.tenantId, async () => {
      const authority = await open();
      const builtAt = this.clock.now();
      const der = await signRevocationList(authority, await this.entries(owner), builtAt);
      const etag = `"${createHash('sha256').update(der).digest('base64url').slice(0, 22)}"`;
      this.kept.set(key, { der, etag, builtAt });
      return { der, etag };
    });
  }

  /** Reads the entries page by page, so that no connection or transaction is held for long. */
  private async entries(owner: ListOwner): Promise<Buffer[]> {
    const entries: Buffer[] = [];
    for (let after: string | undefined; ;) {
      const rows = await this.database.read(owner.tenantId, (tx) => listEnded(tx, owner, after, readAtOnce));
      if (rows.length === 0) return entries;
      if (entries.length >= maximumEntries / readAtOnce) {
        throw resourceExhausted(`the authority has revoked more than ${maximumEntries} certificates: replace it`);
      }
      entries.push(revokedEntries(rows.map((row) => ({ serialNumber: row.serial_number, revokedAt: row.ended_at }))));
      if (rows.length < readAtOnce) return entries;
      after = rows.at(-1)!.key_id;
    }
  }
}
