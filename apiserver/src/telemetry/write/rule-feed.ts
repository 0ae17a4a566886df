// The points that a flush hands to the rules engine, in its own transaction: those of devices for which a rule may apply.
import { constants, zstdCompressSync } from 'node:zlib';
import type { Database } from '../../platform/database/database.ts';
import { toNanoseconds } from '../points/timestamp.ts';
import type { AcceptedPoint } from '../points/validate.ts';

/** A row of rule_points. */
export interface RuleFeedRow {
  readonly tenantId: string;
  /** JSON [["device_id", "nanoseconds", {payload}], …], compressed with zstd. */
  readonly points: Buffer;
}

/** What a flush writes for the rules engine. */
export interface RuleFeedPart {
  /** The revisions of the tenants' rules on which `rows` is based; the database refuses others (KL004). */
  readonly revisions: ReadonlyMap<string, bigint>;
  readonly rows: readonly RuleFeedRow[];
}

interface TenantRules {
  readonly revision: bigint;
  /** Profiles with enabled rules; `*` for rules of every profile. */
  readonly profiles: ReadonlySet<string>;
}

/** Bound the memory of an evaluation; a single point may exceed the second. */
const maxPointsPerRow = 500;
const maxCharactersPerRow = 512 * 1024;

/**
 * Uncompressed, the rows took a third of the throughput of ingest; compressed, nothing measurable: less to parse, fewer
 * TOAST chunks, less write-ahead log. The points of a flush are alike, so the fastest level does.
 */
const compression = { params: { [constants.ZSTD_c_compressionLevel]: 1 } };

/** Knows which tenants' points rules are to see. Never stale: the database refuses a flush based on other rules. */
export class RuleFeed {
  private readonly database: Database;
  private tenants = new Map<string, TenantRules>();

  constructor(database: Database) {
    this.database = database;
  }

  /** Forgets everything, after rules have changed. */
  forget(): void {
    this.tenants = new Map();
  }

  /** Returns what a flush of these points writes. */
  async partOf(points: readonly AcceptedPoint[]): Promise<RuleFeedPart> {
    const byTenant = Map.groupBy(points, ({ tenantId }) => tenantId);
    const unknown = [...byTenant.keys()].filter((tenantId) => !this.tenants.has(tenantId));
    if (unknown.length > 0) await this.load(unknown);
    const revisions = new Map<string, bigint>();
    const rows: RuleFeedRow[] = [];
    for (const [tenantId, ofTenant] of byTenant) {
      const { revision, profiles } = this.tenants.get(tenantId)!;
      revisions.set(tenantId, revision);
      if (profiles.size > 0) rows.push(...rowsOf(tenantId, ofTenant, profiles));
    }
    return { revisions, rows };
  }

  private async load(tenantIds: readonly string[]): Promise<void> {
    const { rows } = await this.database.systemRead((tx) =>
      tx.query<{ tenant_id: string; revision: bigint; profiles: string[] }>(
        `SELECT tenant_id, revision,
           ARRAY(SELECT DISTINCT coalesce(profile_id::text, '*') FROM rules
                 WHERE rules.tenant_id = r.tenant_id AND enabled AND deleted_at IS NULL) AS profiles
         FROM rule_revisions r WHERE tenant_id = ANY($1)`,
        [tenantIds],
      ),
    );
    for (const tenantId of tenantIds) this.tenants.set(tenantId, { revision: 0n, profiles: new Set() });
    for (const row of rows) {
      this.tenants.set(row.tenant_id, { revision: row.revision, profiles: new Set(row.profiles) });
    }
  }
}

function rowsOf(tenantId: string, points: readonly AcceptedPoint[], profiles: ReadonlySet<string>): RuleFeedRow[] {
  // Rules see what devices measure. The result of an update between two measurements would be the `previous` of the second.
  const sent = points.filter(({ resultId, isOwn }) => resultId === undefined && !isOwn);
  const wanted = profiles.has('*') ? sent : sent.filter(({ device }) => profiles.has(device.profileId));
  const texts = wanted.map(({ device, time, payload }) => `["${device.deviceId}","${toNanoseconds(time)}",${payload}]`);
  const rows: RuleFeedRow[] = [];
  let start = 0;
  let characters = 0;
  for (let end = 0; end < texts.length; end += 1) {
    characters += texts[end]!.length;
    const isFull = end + 1 - start >= maxPointsPerRow || characters >= maxCharactersPerRow;
    if (!isFull && end + 1 < texts.length) continue;
    const text = `[${texts.slice(start, end + 1).join(',')}]`;
    rows.push({ tenantId, points: zstdCompressSync(Buffer.from(text), compression) });
    start = end + 1;
    characters = 0;
  }
  return rows;
}
