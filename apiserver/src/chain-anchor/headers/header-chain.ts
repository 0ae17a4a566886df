// The chain of headers from the independent source, stored in the database. Proofs are checked against it.
import { setImmediate } from 'node:timers/promises';
import { checkHeaderChain, type HeaderAtHeight, parseHeader, toDisplayHex } from '@kellet/verify';
import { headersLock, tryLock } from '../../platform/database/advisory-locks.ts';
import type { Database, Transaction } from '../../platform/database/database.ts';
import type { Logger } from '../../platform/observability/logger.ts';
import type { HeaderSource } from './header-source.ts';
import { type BranchHeader, difficultyWindow, type HeaderRules, judgeBranch } from './reorganisation.ts';

/** Headers per request to the source. */
const pageHeaders = 2000;

/** How far back the search for a fork point starts; it widens until the chains meet. */
const firstWindow = 12;

/** How far below the tip the chain starts, so that later headers can be compared with these. */
const beginningDepth = 2 * difficultyWindow;

/** Maximum number of headers fetched in one pass; the next pass continues from there. */
const maxHeaders = 100_000;

/** Reorganisations of more headers are rare, and may cost more. */
const usualDepth = 20;

/** A stored header. */
export interface StoredHeader {
  readonly height: number;
  /** Display hex. */
  readonly blockHash: string;
  readonly raw: Uint8Array;
}

/** Returns the height of the stored tip, or undefined before the first header. */
export async function storedTip(tx: Transaction): Promise<number | undefined> {
  const { rows } = await tx.query<{ height: number | null }>('SELECT max(height) AS height FROM block_headers');
  return rows[0]?.height ?? undefined;
}

/** Returns at most `count` stored headers starting at a height. */
export async function storedHeaders(tx: Transaction, from: number, count: number): Promise<StoredHeader[]> {
  const { rows } = await tx.query<{ height: number; block_hash: string; header: Buffer }>(
    'SELECT height, block_hash, header FROM block_headers WHERE height >= $1 ORDER BY height LIMIT $2',
    [from, count],
  );
  return rows.map((row) => ({ height: row.height, blockHash: row.block_hash, raw: row.header }));
}

/** Returns the hashes of the stored blocks at these heights. */
export async function storedBlockHashes(tx: Transaction, heights: readonly number[]): Promise<Map<number, string>> {
  const { rows } = await tx.query<{ height: number; block_hash: string }>(
    'SELECT height, block_hash FROM block_headers WHERE height = ANY($1)',
    [heights],
  );
  return new Map(rows.map((row) => [row.height, row.block_hash]));
}

type CheckedHeaders = ReturnType<typeof checkHeaderChain>['headers'];

/** Follows a header source. */
export class HeaderChain {
  private readonly database: Database;
  private readonly source: HeaderSource;
  private readonly rules: HeaderRules;
  private readonly logger: Logger;
  private readonly manyReplaced: (tx: Transaction, from: number) => Promise<void>;
  private queue: Promise<unknown> = Promise.resolve();
  private refusal = '';

  /** `manyReplaced` is called in the transaction that replaces many headers, with the height of the first. */
  constructor(
    database: Database,
    source: HeaderSource,
    rules: HeaderRules,
    logger: Logger,
    manyReplaced: (tx: Transaction, from: number) => Promise<void> = () => Promise.resolve(),
  ) {
    this.database = database;
    this.source = source;
    this.rules = rules;
    this.logger = logger;
    this.manyReplaced = manyReplaced;
  }

  /** Whether the source last offered a branch that needs operator approval. */
  get isBranchRefused(): boolean {
    return this.refusal !== '';
  }

  /**
   * Brings the stored chain up to the source's tip, checking every header's link and proof of work. A branch replaces
   * stored headers only if it has more work and the network's rules allow it (`judgeBranch`); a refused branch is
   * logged and changes nothing. Does nothing while another process is doing it.
   * Throws if the source cannot be read or serves an invalid chain.
   */
  follow(): Promise<void> {
    return this.alone(async (tx) => {
      if (await tryLock(tx, headersLock)) await this.followLocked(tx);
    });
  }

  /**
   * Runs one change of the stored chain at a time in this process, so that a slow source holds one connection and not
   * all of them.
   */
  private alone<T>(work: (tx: Transaction) => Promise<T>): Promise<T> {
    const result = this.queue.then(() => this.database.system(work));
    this.queue = result.catch(() => undefined);
    return result;
  }

  private async followLocked(tx: Transaction): Promise<void> {
    const tip = await this.source.tip();
    const { rows } = await tx.query<{ lowest: number | null; highest: number | null }>(
      'SELECT min(height) AS lowest, max(height) AS highest FROM block_headers',
    );
    const { lowest, highest } = rows[0]!;
    if (lowest === null || highest === null) {
      return this.consider(tx, await this.fetchRange(Math.max(0, tip.height - beginningDepth), tip.height));
    }
    const [atTip] = await storedHeaders(tx, tip.height, 1);
    if (atTip?.height === tip.height && atTip.blockHash === tip.hash) return this.note('');
    for (let window = firstWindow; ; window *= 8) {
      const from = Math.max(lowest, Math.min(highest, tip.height) - window + 1);
      const headers = await this.fetchRange(from, Math.min(tip.height, from + maxHeaders - 1));
      const isLinked = from === lowest || (await this.isLinked(tx, headers[0]));
      if (isLinked) return this.consider(tx, headers);
    }
  }

  /** Reports whether a header follows the stored one before it. */
  private async isLinked(tx: Transaction, header: HeaderAtHeight | undefined): Promise<boolean> {
    if (!header) return true;
    const [before] = await storedHeaders(tx, header.height - 1, 1);
    const link = checkHeaderChain([header]).headers[0]!.header.previousHash;
    return before?.blockHash === toDisplayHex(link);
  }

  /** Judges headers from the source and stores them if they replace the stored ones. */
  private async consider(tx: Transaction, offered: readonly HeaderAtHeight[]): Promise<void> {
    if (offered.length === 0) return;
    const checked = await checkInTurns(offered);
    const stored = await storedHeaders(tx, offered[0]!.height - difficultyWindow, maxHeaders + difficultyWindow);
    const verdict = judgeBranch(
      stored.map(({ height, blockHash, raw }): BranchHeader => ({ height, blockHash, bits: parseHeader(raw).bits })),
      checked.map(({ height, hash, header }) => ({ height, blockHash: toDisplayHex(hash), bits: header.bits })),
      this.rules,
    );
    this.note(verdict.action === 'refuse' ? verdict.reason : '');
    if (verdict.action !== 'take') return;
    const kept = verdict.from - offered[0]!.height;
    const { rowCount } = await tx.query('DELETE FROM block_headers WHERE height >= $1', [verdict.from]);
    if ((rowCount ?? 0) > usualDepth) await this.manyReplaced(tx, verdict.from);
    await insertHeaders(tx, offered.slice(kept), checked.slice(kept));
  }

  /** Logs once why a branch is refused. */
  private note(refusal: string): void {
    if (refusal !== '' && refusal !== this.refusal) {
      this.logger.error({ reason: refusal }, 'the header source offers a branch that needs operator approval');
    }
    this.refusal = refusal;
  }

  /**
   * Returns the header at a height, fetching it and all headers between it and the stored ones if it is missing: those may be
   * all of the chain, so they are fetched and stored a page at a time, between which others have their turn.
   * Returns undefined if the source's chain does not reach that height.
   * Throws if the source cannot be read or contradicts the stored headers.
   */
  async header(height: number): Promise<StoredHeader | undefined> {
    const found = await this.stored(height);
    if (found) return found;
    while (await this.alone((tx) => this.fetchTowards(tx, height)));
    return this.stored(height);
  }

  /** Fetches some of the headers that are missing at a height. Returns whether there are more. */
  private async fetchTowards(tx: Transaction, height: number): Promise<boolean> {
    await tx.query('SELECT pg_advisory_xact_lock($1)', [headersLock]);
    // An earlier call in the queue may have fetched it.
    const [first] = await storedHeaders(tx, height, 1);
    if (first?.height === height) return false;
    if (first) return this.extendDown(tx, height);
    await this.followLocked(tx);
    return this.extendDown(tx, height);
  }

  /** Adds a page of headers below the lowest stored one, if they link to it. Returns whether more are missing from a height on. */
  private async extendDown(tx: Transaction, from: number): Promise<boolean> {
    const [lowest] = await storedHeaders(tx, from, 1);
    if (!lowest || lowest.height === from) return false;
    const first = Math.max(from, lowest.height - pageHeaders);
    const headers = await this.fetchRange(first, lowest.height - 1);
    if (headers.length !== lowest.height - first) return false;
    const chain = checkHeaderChain([...headers, { height: lowest.height, raw: lowest.raw }]);
    await insertHeaders(tx, headers, chain.headers.slice(0, -1));
    return first > from;
  }

  private async stored(height: number): Promise<StoredHeader | undefined> {
    const [first] = await this.database.systemRead((tx) => storedHeaders(tx, height, 1));
    return first?.height === height ? first : undefined;
  }

  private async fetchRange(from: number, to: number): Promise<HeaderAtHeight[]> {
    const headers: HeaderAtHeight[] = [];
    while (from + headers.length <= to) {
      const next = from + headers.length;
      const page = await this.source.headers(next, Math.min(pageHeaders, to - next + 1));
      if (page.length === 0) break;
      headers.push(...page);
    }
    return headers;
  }
}

/** Checks headers as `checkHeaderChain` does, a page at a time, and lets others run in between. */
async function checkInTurns(headers: readonly HeaderAtHeight[]): Promise<CheckedHeaders> {
  const checked: CheckedHeaders = [];
  for (let from = 0; from < headers.length; from += pageHeaders) {
    // Each page but the first begins with the last header of the one before, to which it must link.
    const page = checkHeaderChain(headers.slice(Math.max(0, from - 1), from + pageHeaders)).headers;
    checked.push(...page.slice(from === 0 ? 0 : 1));
    await setImmediate();
  }
  return checked;
}

async function insertHeaders(
  tx: Transaction,
  headers: readonly HeaderAtHeight[],
  checked: readonly { hash: Uint8Array }[],
): Promise<void> {
  await tx.query(
    `INSERT INTO block_headers (height, block_hash, header)
     SELECT * FROM unnest($1::int4[], $2::text[], $3::bytea[])
     ON CONFLICT (height) DO UPDATE SET block_hash = excluded.block_hash, header = excluded.header
       WHERE block_headers.block_hash <> excluded.block_hash`,
    [
      headers.map(({ height }) => height),
      checked.map(({ hash }) => toDisplayHex(hash)),
      headers.map(({ raw }) => Buffer.from(raw)),
    ],
  );
}
