// SQL of assets. Every function works inside the caller's transaction.
import { assetTreesLock, holdLock } from '../../platform/database/advisory-locks.ts';
import type { Transaction } from '../../platform/database/database.ts';
import { keptLimit } from '../../platform/database/number-limits.ts';
import { notFound } from '../../platform/errors.ts';
import { jsonBytes, type Room, type SizedRow, sizedRows } from '../../platform/statements/sized-rows.ts';
import { visibleTo } from '../../platform/visibility.ts';
import { maximumLevels } from './asset-placement.ts';

/** A row of the table assets; absent ids are null. */
export interface AssetRow {
  asset_id: string;
  name: string;
  type: string;
  parent_asset_id: string | null;
  customer_id: string | null;
  tags: Record<string, string>;
  /** Levels below it. */
  height: number;
  created_at: Date;
  updated_at: Date;
}

/** Assets of one tenant. */
export const assetLimit = keptLimit('assets', 100_000, 'assets');

const columns = 'asset_id, name, type, parent_asset_id, customer_id, tags, height, created_at, updated_at';

/** The columns as users of the customer in a parameter see them: without the id of a parent that is not the customer's. */
const columnsSeenBy = (
  customer: string,
): string => `asset_id, name, type, customer_id, tags, height, created_at, updated_at,
  CASE WHEN ${customer}::uuid IS NULL THEN parent_asset_id ELSE (
    SELECT p.asset_id FROM assets p
    WHERE p.tenant_id = assets.tenant_id AND p.asset_id = assets.parent_asset_id AND p.customer_id = ${customer}
  ) END AS parent_asset_id`;

/** Holds all trees of the tenant until the transaction ends, so that two moves cannot make a cycle together. */
export const lockTrees = (tx: Transaction, tenantId: string): Promise<void> => holdLock(tx, assetTreesLock(tenantId));

/** A new asset. The caller has checked its references. */
export interface NewAsset {
  readonly assetId: string;
  readonly name: string;
  readonly type: string;
  readonly parentAssetId: string | null;
  readonly customerId: string | null;
  readonly tags: Readonly<Record<string, string>>;
}

/** Creates an asset. */
export async function insertAsset(tx: Transaction, tenantId: string, asset: NewAsset): Promise<AssetRow> {
  const { rows } = await tx.query<AssetRow>(
    `INSERT INTO assets (tenant_id, asset_id, name, type, parent_asset_id, customer_id, tags)
     VALUES ($1, $2, $3, $4, $5, $6, $7) RETURNING ${columns}`,
    [
      ...[tenantId, asset.assetId, asset.name, asset.type, asset.parentAssetId, asset.customerId],
      JSON.stringify(asset.tags),
    ],
  );
  return rows[0]!;
}

/** Returns an asset that users of `customer` see (null: all users), or undefined. */
export async function findAsset(
  tx: Transaction,
  tenantId: string,
  assetId: string,
  customer: string | null,
  lock: '' | 'FOR UPDATE' | 'FOR KEY SHARE' = '',
): Promise<AssetRow | undefined> {
  const { rows } = await tx.query<AssetRow>(
    `SELECT ${columnsSeenBy('$3')} FROM assets WHERE tenant_id = $1 AND asset_id = $2 AND ${visibleTo('$3')} ${lock}`,
    [tenantId, assetId, customer],
  );
  return rows[0];
}

/** Returns an asset and those that contain it, innermost first; empty if the tenant has no such asset. */
export async function pathOf(tx: Transaction, tenantId: string, assetId: string): Promise<string[]> {
  const { rows } = await tx.query<{ asset_id: string }>(
    `WITH RECURSIVE path AS (
       SELECT asset_id, parent_asset_id, 1 AS step FROM assets WHERE tenant_id = $1 AND asset_id = $2
       UNION ALL
       SELECT a.asset_id, a.parent_asset_id, p.step + 1 FROM path p
       JOIN assets a ON a.tenant_id = $1 AND a.asset_id = p.parent_asset_id WHERE p.step < $3
     ) SELECT asset_id FROM path ORDER BY step`,
    [tenantId, assetId, maximumLevels],
  );
  return rows.map((row) => row.asset_id);
}

/** Corrects the heights of assets, innermost first, after what is directly inside the first one has changed. */
export async function correctHeights(tx: Transaction, tenantId: string, path: readonly string[]): Promise<void> {
  for (const assetId of path) {
    const { rowCount } = await tx.query(
      `UPDATE assets SET height = below.height FROM (
         SELECT coalesce(max(height) + 1, 0) AS height FROM assets WHERE tenant_id = $1 AND parent_asset_id = $2) below
       WHERE tenant_id = $1 AND asset_id = $2 AND assets.height <> below.height`,
      [tenantId, assetId],
    );
    if (rowCount === 0) return;
  }
}

/** What a list of assets is limited to. */
export interface AssetFilters {
  readonly customerId: string | undefined;
  readonly parentAssetId: string | undefined;
}

/** Returns assets after one, in order of their ids. */
export async function listAssets(
  tx: Transaction,
  tenantId: string,
  filters: AssetFilters,
  customer: string | null,
  after: string | undefined,
  room: Room,
): Promise<(AssetRow & SizedRow)[]> {
  const conditions = [
    ['customer_id =', filters.customerId],
    ['parent_asset_id =', filters.parentAssetId],
    ['asset_id >', after],
  ].filter(([, value]) => value !== undefined);
  const { rows } = await tx.query<AssetRow & SizedRow>(
    sizedRows(
      `SELECT ${columnsSeenBy('$4')}, ${jsonBytes('tags')} AS row_bytes FROM assets
       WHERE tenant_id = $1 ${conditions.map(([condition], index) => `AND ${condition} $${index + 5}`).join(' ')}`,
      'asset_id',
      2,
    ),
    [tenantId, room.limit, room.bytes, customer, ...conditions.map(([, value]) => value)],
  );
  return rows;
}

/** Changes columns of an asset, which exists and is locked. */
export async function changeAsset(
  tx: Transaction,
  tenantId: string,
  assetId: string,
  changes: ReadonlyMap<string, unknown>,
): Promise<AssetRow> {
  const sets = [...changes.keys()].map((column, index) => `${column} = $${index + 3}`);
  const { rows } = await tx.query<AssetRow>(
    `UPDATE assets SET ${[...sets, 'updated_at = now()'].join(', ')}
     WHERE tenant_id = $1 AND asset_id = $2 RETURNING ${columns}`,
    [tenantId, assetId, ...changes.values()],
  );
  return rows[0]!;
}

/** Reports whether other assets are directly inside one. */
export async function hasChildren(tx: Transaction, tenantId: string, assetId: string): Promise<boolean> {
  const { rowCount } = await tx.query('SELECT FROM assets WHERE tenant_id = $1 AND parent_asset_id = $2 LIMIT 1', [
    tenantId,
    assetId,
  ]);
  return rowCount !== 0;
}

/** Deletes an asset and the entity views of it. Throws NOT_FOUND. */
export async function deleteAsset(tx: Transaction, tenantId: string, assetId: string): Promise<void> {
  const { rowCount } = await tx.query('DELETE FROM assets WHERE tenant_id = $1 AND asset_id = $2', [tenantId, assetId]);
  if (rowCount === 0) throw notFound('asset');
}
