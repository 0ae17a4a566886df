// Defines checks of stored data. Each reads one piece in a snapshot of its own, so that writers are not blocked.
import type { ArtifactReader } from '../device-link/ota/artifacts/artifact-reader.ts';
import type { Database, Transaction } from '../platform/database/database.ts';
import type { ColdFiles } from '../telemetry/cold/cold-files.ts';

/** Something that does not hold for stored data. */
export interface Finding {
  readonly kind: Kind;
  /** Id of what is damaged. */
  readonly id: string;
  /** Empty for what belongs to no tenant. */
  readonly tenantId: string;
  readonly message: string;
}

/** What is damaged. */
export type Kind =
  | 'artifact'
  | 'audit_event'
  | 'batch'
  | 'coin'
  | 'cold_file'
  | 'device_count'
  | 'header'
  | 'kept_sum'
  | 'latest_values'
  | 'leaf_index'
  | 'package'
  | 'point'
  | 'profile_count'
  | 'proof'
  | 'segment'
  | 'transaction';

/** What is counted. */
export const counted = [
  ...(['segments', 'points', 'leaf_index_entries', 'latest_values', 'cold_files', 'cold_points'] as const),
  ...(['batches', 'leaves', 'proofs', 'transactions', 'coins', 'headers'] as const),
  ...(['audit_events', 'audit_anchors'] as const),
  ...(['artifacts', 'artifact_bytes', 'packages', 'device_counts', 'profile_counts', 'kept_sums'] as const),
];

/** Numbers of what was checked. */
export type Counts = Readonly<Partial<Record<(typeof counted)[number], number>>>;

/** The result of checking a piece. */
export interface Outcome {
  readonly checked: Counts;
  readonly findings: readonly Finding[];
}

/** Checks one piece. May be called again, to tell damage from a change that was under way. */
export type Check = () => Promise<Outcome>;

/** What checks read from. */
export interface CheckParts {
  readonly database: Database;
  readonly files: ColdFiles;
  readonly artifacts: ArtifactReader;
  /** Only this tenant's data is read. */
  readonly tenantId: string | undefined;
  /** KELLET_BATCH_SECONDS of the installation. */
  readonly batchSeconds: number;
}

/** The outcome if there was nothing to check. */
export const nothing: Outcome = { checked: {}, findings: [] };

/** Most findings of one piece; a piece with so many is damaged as a whole. */
const mostFindings = 1000;

/** Collects findings, up to a limit. */
export class Findings {
  readonly all: Finding[] = [];

  add(kind: Kind, id: string, tenantId: string, message: string): void {
    if (this.all.length < mostFindings) this.all.push({ kind, id, tenantId, message });
  }
}

/** Runs reads in one snapshot that can change nothing. */
export const snapshot = <T>(database: Database, work: (tx: Transaction) => Promise<T>): Promise<T> =>
  database.maintenance(async (tx) => {
    await tx.query('SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY');
    return work(tx);
  });

/** The position of a point among the leaves of its batch. */
export interface Place {
  readonly tenantId: string;
  readonly batchId: string;
  readonly leafIndex: number;
  readonly dataHash: Uint8Array;
}

/** Returns what is wrong with the positions of points; undefined for each that is right. */
export async function checkPlaces(tx: Transaction, places: readonly Place[]): Promise<(string | undefined)[]> {
  const { rows } = await tx.query<{ tenant_id: string | null; leaf: Buffer | null; is_open: boolean | null }>(
    // Only the leaf itself is read: leaf vectors may be large, and are stored uncompressed.
    `SELECT b.tenant_id, b.status = 'open' AS is_open, substring(b.leaves FROM given.leaf * 32 + 1 FOR 32) AS leaf
     FROM unnest($1::uuid[], $2::int4[]) WITH ORDINALITY AS given (batch, leaf, place)
     LEFT JOIN anchor_batches b ON b.batch_id = given.batch ORDER BY place`,
    [places.map(({ batchId }) => batchId), places.map(({ leafIndex }) => leafIndex)],
  );
  return rows.map(({ tenant_id: tenantId, leaf, is_open: isOpen }, index) => {
    const place = places[index]!;
    if (tenantId === null) return `its batch ${place.batchId} does not exist`;
    if (tenantId !== place.tenantId) return `its batch ${place.batchId} belongs to another tenant`;
    if (isOpen || leaf?.equals(place.dataHash)) return undefined;
    return `leaf ${place.leafIndex} of batch ${place.batchId} has another hash`;
  });
}
