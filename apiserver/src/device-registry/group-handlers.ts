// The handlers of `device-groups`: groups and their members.
import { timestampFromDate } from '@bufbuild/protobuf/wkt';
import type { MessageInitShape } from '@bufbuild/protobuf';
import type { DeviceGroupSchema, DeviceRegistryService } from '@kellet/proto/es/kellet/v1/device_registry_pb';
import type { Transaction } from '../platform/database/database.ts';
import { retryConflicts } from '../platform/database/retry-conflicts.ts';
import { alreadyExists, failedPrecondition, invalidArgument, notFound, sqlState } from '../platform/errors.ts';
import { idField, textField, updatedFields } from '../platform/fields.ts';
import { isId, newId } from '../platform/ids.ts';
import type { Implementation } from '../platform/rpc.ts';
import { announceGroup } from './group-members.ts';
import type { RegistryParts } from './registry-parts.ts';

interface GroupRow {
  group_id: string;
  name: string;
  description: string;
  device_count: number;
  created_at: Date;
  updated_at: Date;
}

const groupColumns = `group_id, name, description, created_at, updated_at,
  (SELECT count(*)::int4 FROM device_group_members m WHERE m.tenant_id = g.tenant_id AND m.group_id = g.group_id)
    AS device_count`;

/** The handlers. */
export function groupHandlers(parts: RegistryParts): Implementation<typeof DeviceRegistryService> {
  const { database, paging, groupUsage } = parts;
  const transaction = <T>(tenantId: string, work: (tx: Transaction) => Promise<T>): Promise<T> =>
    retryConflicts(() => database.tenant(tenantId, work));

  return {
    createDeviceGroup: async (request, { tenantId }) => {
      const name = textField('name', request.name, { minimum: 1, maximum: 128 });
      const description = textField('description', request.description, { maximum: 1024 });
      const row = await database.tenant(tenantId, async (tx) => {
        const { rows } = await tx.query<GroupRow>(
          `INSERT INTO device_groups AS g (tenant_id, group_id, name, description) VALUES ($1, $2, $3, $4)
           ON CONFLICT (tenant_id, name) DO NOTHING RETURNING ${groupColumns}`,
          [tenantId, newId(), name, description],
        );
        return rows[0];
      });
      if (!row) throw alreadyExists(`a device group named ${JSON.stringify(name)} already exists`);
      return toGroup(row);
    },

    getDeviceGroup: async (request, { tenantId }) => {
      const groupId = idField('device group', request.groupId);
      return toGroup(await database.read(tenantId, (tx) => findGroup(tx, tenantId, groupId)));
    },

    listDeviceGroups: async (request, { tenantId }) => {
      const scope = [tenantId, 'device-groups'];
      const page = paging.open<string>(request, scope);
      const { rows } = await database.read(tenantId, (tx) =>
        tx.query<GroupRow>(
          `SELECT ${groupColumns} FROM device_groups g WHERE tenant_id = $1 AND ($2::uuid IS NULL OR group_id > $2)
           ORDER BY group_id LIMIT $3`,
          [tenantId, page.after ?? null, page.size + 1],
        ),
      );
      const closed = paging.close(rows, page, scope, (row) => row.group_id);
      return { deviceGroups: closed.rows.map(toGroup), nextPageToken: closed.nextPageToken };
    },

    updateDeviceGroup: async (request, { tenantId }) => {
      const groupId = idField('device group', request.groupId);
      const fields = updatedFields(request.updateMask, ['name', 'description'] as const);
      const name = fields.has('name') ? textField('name', request.name ?? '', { minimum: 1, maximum: 128 }) : null;
      const description = fields.has('description')
        ? textField('description', request.description ?? '', { maximum: 1024 })
        : null;
      return toGroup(
        await database.tenant(tenantId, async (tx) => {
          const group = await findGroup(tx, tenantId, groupId);
          return fields.size === 0 ? group : changeGroup(tx, tenantId, groupId, name, description);
        }),
      );
    },

    deleteDeviceGroup: async (request, { tenantId }) => {
      const groupId = idField('device group', request.groupId);
      await transaction(tenantId, async (tx) => {
        // Locked before its use is judged: a template that is being applied holds its groups.
        const { rowCount } = await tx.query(
          'SELECT FROM device_groups WHERE tenant_id = $1 AND group_id = $2 FOR UPDATE',
          [tenantId, groupId],
        );
        if (rowCount === 0) throw notFound('device group');
        const use = await groupUsage(tx, tenantId, groupId);
        if (use !== undefined) throw failedPrecondition(`the device group is used by ${use}`);
        await tx.query(`DELETE FROM device_groups WHERE tenant_id = $1 AND group_id = $2 RETURNING ${announceGroup}`, [
          tenantId,
          groupId,
        ]);
      });
      return {};
    },

    addDevicesToGroup: async (request, { tenantId }) => {
      const groupId = idField('device group', request.groupId);
      const deviceIds = [...new Set(request.deviceIds.map((id) => id.toLowerCase()))];
      if (deviceIds.length === 0) throw invalidArgument('device_ids must name at least one device');
      if (deviceIds.length > 1000) throw invalidArgument('device_ids must name at most 1000 devices');
      const malformed = deviceIds.find((id) => !isId(id));
      if (malformed !== undefined) throw notFound(`device_ids: ${JSON.stringify(malformed)}`);
      return toGroup(
        await transaction(tenantId, async (tx) => {
          await findGroup(tx, tenantId, groupId);
          const { rows } = await tx.query<{ device_id: string }>(
            `SELECT device_id FROM devices WHERE tenant_id = $1 AND device_id = ANY($2::uuid[]) AND deleted_at IS NULL
             ORDER BY device_id FOR KEY SHARE`,
            [tenantId, deviceIds],
          );
          const known = new Set(rows.map((row) => row.device_id));
          const unknown = deviceIds.find((id) => !known.has(id));
          if (unknown !== undefined) throw notFound(`device_ids: ${JSON.stringify(unknown)}`);
          await tx.query(
            `INSERT INTO device_group_members (tenant_id, group_id, device_id) SELECT $1, $2, unnest($3::uuid[])
             ON CONFLICT DO NOTHING RETURNING ${announceGroup}`,
            [tenantId, groupId, deviceIds],
          );
          return findGroup(tx, tenantId, groupId);
        }),
      );
    },

    removeDeviceFromGroup: async (request, { tenantId }) => {
      const groupId = idField('device group', request.groupId);
      const deviceId = idField('device', request.deviceId);
      await database.tenant(tenantId, async (tx) => {
        await findGroup(tx, tenantId, groupId);
        const { rowCount } = await tx.query(
          `DELETE FROM device_group_members WHERE tenant_id = $1 AND group_id = $2 AND device_id = $3
           RETURNING ${announceGroup}`,
          [tenantId, groupId, deviceId],
        );
        if (rowCount === 0) throw notFound('device');
      });
      return {};
    },
  };
}

async function changeGroup(
  tx: Transaction,
  tenantId: string,
  groupId: string,
  name: string | null,
  description: string | null,
): Promise<GroupRow> {
  try {
    await tx.query(
      `UPDATE device_groups SET name = coalesce($3, name), description = coalesce($4, description), updated_at = now()
       WHERE tenant_id = $1 AND group_id = $2`,
      [tenantId, groupId, name, description],
    );
  } catch (error) {
    if (sqlState(error) !== '23505') throw error;
    throw alreadyExists(`a device group named ${JSON.stringify(name)} already exists`);
  }
  return findGroup(tx, tenantId, groupId);
}

async function findGroup(tx: Transaction, tenantId: string, groupId: string): Promise<GroupRow> {
  const { rows } = await tx.query<GroupRow>(
    `SELECT ${groupColumns} FROM device_groups g WHERE tenant_id = $1 AND group_id = $2`,
    [tenantId, groupId],
  );
  if (!rows[0]) throw notFound('device group');
  return rows[0];
}

function toGroup(row: GroupRow): MessageInitShape<typeof DeviceGroupSchema> {
  return {
    groupId: row.group_id,
    name: row.name,
    description: row.description,
    deviceCount: row.device_count,
    createdAt: timestampFromDate(row.created_at),
    updatedAt: timestampFromDate(row.updated_at),
  };
}
