// The handlers of `assets`: trees of things that devices belong to.
import type { MessageInitShape } from '@bufbuild/protobuf';
import { timestampFromDate } from '@bufbuild/protobuf/wkt';
import type { AssetSchema, DeviceRegistryService } from '@kellet/proto/es/kellet/v1/device_registry_pb';
import type { Transaction } from '../../platform/database/database.ts';
import { checkRoom } from '../../platform/database/number-limits.ts';
import { retriedTransactions } from '../../platform/database/retry-conflicts.ts';
import { failedPrecondition, notFound } from '../../platform/errors.ts';
import { isId, newId } from '../../platform/ids.ts';
import { idField, textField, textMapField, updatedFields } from '../../platform/requests/fields.ts';
import type { Implementation } from '../../platform/rpc.ts';
import { listSized } from '../../platform/statements/sized-rows.ts';
import { customerOf } from '../../platform/visibility.ts';
import { placementProblem } from './asset-placement.ts';
import {
  assetLimit,
  type AssetRow,
  changeAsset,
  correctHeights,
  deleteAsset,
  findAsset,
  hasChildren,
  insertAsset,
  listAssets,
  lockTrees,
  pathOf,
} from './assets.ts';
import { checkCustomer, customerFilter } from './customers.ts';
import type { EntityParts } from './entity-parts.ts';

/** Assets of a page that waits for no turn: tags take up to 64 KiB. */
const smallPage = 20;

const updatable = ['name', 'type', 'parent_asset_id', 'customer_id', 'tags'] as const;

const nameField = (name: string): string => textField('name', name, { minimum: 1, maximum: 256 });
const typeField = (type: string): string => textField('type', type, { maximum: 128 });

/** The handlers. */
export function assetHandlers(parts: EntityParts): Implementation<typeof DeviceRegistryService> {
  const { database, paging } = parts;
  const transaction = retriedTransactions(database);

  return {
    createAsset: async (request, { tenantId }) => {
      const name = nameField(request.name);
      const type = typeField(request.type);
      textMapField('tags', request.tags);
      const asset = {
        ...{ assetId: newId(), name, type, tags: request.tags },
        parentAssetId: request.parentAssetId.toLowerCase() || null,
        customerId: request.customerId || null,
      };
      return toAsset(
        await transaction(tenantId, async (tx) => {
          await checkRoom(tx, [tenantId], assetLimit);
          await checkCustomer(tx, tenantId, request.customerId);
          if (asset.parentAssetId === null) return insertAsset(tx, tenantId, asset);
          await lockTrees(tx, tenantId);
          const path = await checkPlacement(tx, tenantId, { assetId: asset.assetId, height: 0 }, asset.parentAssetId);
          const row = await insertAsset(tx, tenantId, asset);
          await correctHeights(tx, tenantId, path);
          return row;
        }),
      );
    },

    getAsset: async (request, { tenantId, caller }) => {
      const assetId = idField('asset', request.assetId);
      return toAsset(
        found(await database.read(tenantId, (tx) => findAsset(tx, tenantId, assetId, customerOf(caller)))),
      );
    },

    listAssets: async (request, { tenantId, caller }) => {
      const customer = customerOf(caller);
      const parentAssetId =
        request.parentAssetId === '' ? undefined : idField('parent_asset_id', request.parentAssetId);
      const customerId = customerFilter(request.customerId, customer);
      const { items, nextPageToken } = await listSized({ database, paging }, request, {
        scope: [tenantId, 'assets', customerId, parentAssetId],
        smallPage,
        cursorOf: (row: AssetRow) => row.asset_id,
        check: async (tx) => {
          const [, parent] = await Promise.all([
            customer === null && checkCustomer(tx, tenantId, request.customerId, ''),
            parentAssetId !== undefined && findAsset(tx, tenantId, parentAssetId, customer),
          ]);
          if (parent === undefined) throw notFound('parent_asset_id');
        },
        read: (tx, after, room) => listAssets(tx, tenantId, { customerId, parentAssetId }, customer, after, room),
        toItem: toAsset,
      });
      return { assets: items, nextPageToken };
    },

    updateAsset: async (request, { tenantId }) => {
      const assetId = idField('asset', request.assetId);
      const fields = updatedFields(request.updateMask, updatable);
      const parentAssetId = request.parentAssetId?.toLowerCase() || null;
      const changes = new Map<string, unknown>();
      if (fields.has('name')) changes.set('name', nameField(request.name ?? ''));
      if (fields.has('type')) changes.set('type', typeField(request.type ?? ''));
      if (fields.has('parent_asset_id')) changes.set('parent_asset_id', parentAssetId);
      if (fields.has('customer_id')) changes.set('customer_id', request.customerId || null);
      if (fields.has('tags')) {
        textMapField('tags', request.tags);
        changes.set('tags', JSON.stringify(request.tags));
      }
      return toAsset(
        await transaction(tenantId, async (tx) => {
          if (fields.has('customer_id')) await checkCustomer(tx, tenantId, request.customerId ?? '');
          if (fields.has('parent_asset_id')) await lockTrees(tx, tenantId);
          const before = found(await findAsset(tx, tenantId, assetId, null, 'FOR UPDATE'));
          if (changes.size === 0) return before;
          const isMoved = fields.has('parent_asset_id') && parentAssetId !== before.parent_asset_id;
          const path =
            isMoved && parentAssetId !== null
              ? await checkPlacement(tx, tenantId, { assetId, height: before.height }, parentAssetId)
              : [];
          const row = await changeAsset(tx, tenantId, assetId, changes);
          if (isMoved) {
            if (before.parent_asset_id !== null) {
              await correctHeights(tx, tenantId, await pathOf(tx, tenantId, before.parent_asset_id));
            }
            await correctHeights(tx, tenantId, path);
          }
          return row;
        }),
      );
    },

    deleteAsset: async (request, { tenantId }) => {
      const assetId = idField('asset', request.assetId);
      await transaction(tenantId, async (tx) => {
        await lockTrees(tx, tenantId);
        const [, ...path] = await pathOf(tx, tenantId, assetId);
        if (await hasChildren(tx, tenantId, assetId)) {
          throw failedPrecondition('the asset contains other assets: move or delete them first');
        }
        await deleteAsset(tx, tenantId, assetId);
        await correctHeights(tx, tenantId, path);
      });
      return {};
    },
  };
}

/** Returns the path of the parent. Throws NOT_FOUND if there is none, FAILED_PRECONDITION if the asset may not be there. */
async function checkPlacement(
  tx: Transaction,
  tenantId: string,
  { assetId, height }: { readonly assetId: string; readonly height: number },
  parentAssetId: string,
): Promise<string[]> {
  const path = isId(parentAssetId) ? await pathOf(tx, tenantId, parentAssetId) : [];
  if (path.length === 0) throw notFound('parent_asset_id');
  const problem = placementProblem(assetId, height, path);
  if (problem !== undefined) throw failedPrecondition(problem);
  return path;
}

function found(row: AssetRow | undefined): AssetRow {
  if (!row) throw notFound('asset');
  return row;
}

function toAsset(row: AssetRow): MessageInitShape<typeof AssetSchema> {
  return {
    assetId: row.asset_id,
    name: row.name,
    type: row.type,
    parentAssetId: row.parent_asset_id ?? '',
    customerId: row.customer_id ?? '',
    tags: row.tags,
    createdAt: timestampFromDate(row.created_at),
    updatedAt: timestampFromDate(row.updated_at),
  };
}
