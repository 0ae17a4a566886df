// Statements that may read a whole table, each with its reason.

/** A statement that may read a whole table. */
export interface PlanException {
  /** The file that issues it, or its folder, from apiserver/src. */
  readonly file: string;
  /** How the statement begins, with single spaces. */
  readonly start: string | RegExp;
  readonly reason: string;
  /** Whether the planner may as well choose an index, which must exist; such an exception may be unused. */
  readonly dependsOnStatistics?: boolean;
}

const purge = 'runs once for a tenant that is purged';
const restored = 'done once for every row by the restore of a backup';
const segment = 'a segment has about a million rows, however many segments there are';

/** All exceptions. One that no statement needs fails the check, unless that depends on statistics. */
export const exceptions: readonly PlanException[] = [
  {
    file: 'telemetry/write/segments.ts',
    start: 'SELECT segment_id, state, has_leaves FROM telemetry_segments',
    reason: restored,
  },
  {
    file: 'webhooks/webhook-store.ts',
    start: 'SELECT tenant_id, webhook_id, is_full, bytes FROM webhooks',
    reason: 'looks at each webhook every half minute, of which a tenant has at most 20; their deliveries are not read',
  },
  { file: 'device-link/ota/artifacts/artifact-store.ts', start: 'UPDATE artifacts SET store = $1', reason: restored },
  { file: 'device-link/ota/artifacts/artifact-store.ts', start: 'DELETE FROM artifact_remains', reason: restored },
  {
    file: 'telemetry/write/open-batch-leaves.ts',
    start: 'INSERT INTO open_batch_leaves (batch_id, segment_id, leaf_indexes, leaves, devices)',
    reason: `reads a complete segment once, if a batch with points in it is still open after a minute or its writer is dead; ${segment}`,
  },
  {
    file: 'telemetry/write/writer-closing.ts',
    start: 'SELECT count(*) AS rows, min(time) AS least, max(time) AS greatest,',
    reason: `counts the rows of a complete segment once; ${segment}`,
  },
  {
    file: 'telemetry/write/segments.ts',
    start: 'SELECT max(received) AS received FROM telemetry_segment_',
    reason: `runs once before a segment turns cold, to see whether a writer still holds points of its time; ${segment}`,
  },
  {
    file: 'telemetry/write/segments.ts',
    start: 'WITH deleted AS ( DELETE FROM telemetry_segment_',
    reason: `deletes the points past their retention from one segment, once a day; ${segment}`,
  },
  {
    file: 'telemetry/write/tenant-segments.ts',
    start: 'INSERT INTO telemetry_tenant_segments',
    reason: `counts the points of tenants in a complete segment once, when it is indexed; ${segment}`,
  },
  {
    file: 'telemetry/write/tenant-segments.ts',
    start: 'DELETE FROM telemetry_segment_',
    reason: `${purge}, from each segment in which it has few points, by its devices; a scan of a small segment may be cheaper`,
    dependsOnStatistics: true,
  },
  {
    file: 'tenant-data/row-purge.ts',
    start: 'SELECT FROM ONLY telemetry_segment_',
    reason: `${purge}, from each segment that is not indexed yet; ${segment}`,
  },
  {
    file: 'telemetry/read/batch-points.ts',
    start: 'SELECT batch_id, max(leaf_index) + 1 AS count FROM telemetry_segment_',
    reason: `counts the points of open batches for the bundles of a tenant, which read all of its points; ${segment}`,
  },
  {
    file: 'telemetry/leaves/packing.ts',
    start: 'WITH batch AS ( SELECT b.tenant_id, b.batch_id, b.status, b.leaves FROM anchor_batches b',
    reason: 'moves the first rows that an import or an earlier version has left, until there are none',
  },
  {
    file: 'chain-anchor/transactions/anchor-store.ts',
    start: `UPDATE chain_transactions SET state = 'mined' WHERE state = 'final'`,
    reason: 'runs once when more headers are replaced than are refused by default, which an operator has to allow',
  },
  {
    file: 'tenant-data/row-purge.ts',
    start: 'SELECT FROM ONLY artifact_remains',
    reason: `${purge}; remains of removed artifacts are deleted within days`,
  },
  {
    file: 'tenant-data/',
    start: /^(SELECT FROM|SELECT count\(\*\) AS rows FROM|DELETE FROM) (ONLY )?\w+ t (WHERE EXISTS|JOIN)/,
    reason: `once for an import or a purge; joins the rows of a tenant with what they belong to, for which a scan may be cheaper`,
    dependsOnStatistics: true,
  },
  {
    file: 'tenant-data/',
    start: /^(DELETE FROM ONLY|WITH found AS MATERIALIZED \(SELECT FROM ONLY) ota_assignments t /,
    reason: `${purge}; while the table is small, it has about as many blocks as a tenant has rows in it`,
    dependsOnStatistics: true,
  },
  {
    file: 'fsck/',
    start: '',
    reason: 'checks everything that is stored, in pages',
  },
  {
    file: 'chain-anchor/wallet/wallet-store.ts',
    start: 'SELECT count(*)::int4 AS coins, coalesce(sum(satoshis), 0)::int8 AS satoshis FROM wallet_outputs',
    reason: 'only for the command wallet balance; spent coins are forgotten with their transactions',
  },
  {
    file: 'device-link/ota/artifacts/artifact-sweep-store.ts',
    start: 'SELECT coalesce(sum(size_bytes) FILTER (WHERE NOT staged), 0)::float8 AS stored,',
    reason: 'a metric; there are about as many artifacts as packages, which tenants delete',
  },
  {
    file: 'device-link/ota/artifacts/artifact-store.ts',
    start: 'SELECT store, count(*) FILTER (WHERE NOT staged)::int4 AS artifacts,',
    reason: 'only for the command artifacts; there are about as many as packages',
  },
];
