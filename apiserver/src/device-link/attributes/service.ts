// DeviceLinkService: the attributes of devices.
import { fromJson, type JsonObject, type MessageInitShape } from '@bufbuild/protobuf';
import { timestampFromMs, ValueSchema } from '@bufbuild/protobuf/wkt';
import {
  type AttributesSchema,
  DeviceLinkService,
  type UpdateAttributesRequest,
} from '@kellet/proto/es/kellet/v1/device_link_pb';
import type { Platform, ServiceModule } from '../../config/module.ts';
import { findDevice } from '../../device-registry/devices/devices.ts';
import type { Transaction } from '../../platform/database/database.ts';
import { notFound, permissionDenied } from '../../platform/errors.ts';
import { enqueueAll } from '../../platform/events/outbox.ts';
import { attributesSubject } from '../../platform/events/subjects.ts';
import { idField } from '../../platform/requests/fields.ts';
import type { CallContext, ServiceRegistry } from '../../platform/rpc.ts';
import { enqueueAttributesChanged } from '../commands/attributes-changed.ts';
import {
  applyUpdate,
  type AttributeDelta,
  type AttributeScope,
  attributeScopes,
  checkUpdate,
  type StoredAttributes,
} from './attribute-changes.ts';
import { type DeviceAttributes, readAttributes, writeAttributes } from './attribute-store.ts';

/** Creates the service. */
export function createAttributes({ database, clock }: Pick<Platform, 'database' | 'clock'>): ServiceModule {
  const update = async (
    tx: Transaction,
    tenantId: string,
    deviceId: string,
    updates: ReadonlyMap<AttributeScope, JsonObject>,
  ): Promise<DeviceAttributes> => {
    // The lock puts the updates of a device in order, and before or after its deletion.
    const [device, stored] = await Promise.all([
      findDevice(tx, tenantId, deviceId, 'FOR NO KEY UPDATE'),
      readAttributes(tx, tenantId, deviceId),
    ]);
    if (!device) throw notFound('device');
    const now = clock.now();
    const written = new Map<AttributeScope, StoredAttributes>();
    const deltas = new Map<AttributeScope, AttributeDelta>();
    for (const [scope, given] of updates) {
      const applied = applyUpdate(scope, stored[scope], given, now);
      if (!applied) continue;
      written.set(scope, applied.attributes);
      deltas.set(scope, applied.delta);
    }
    if (written.size === 0) return stored;
    const shared = deltas.get('shared');
    const events = [...deltas].map(([scope, delta]) => ({
      tenantId,
      subject: attributesSubject(tenantId, deviceId),
      resource: deviceId,
      data: { device_id: deviceId, scope, ...delta },
    }));
    await Promise.all([
      writeAttributes(tx, tenantId, deviceId, written),
      enqueueAll(tx, events, clock),
      shared && enqueueAttributesChanged(tx, tenantId, deviceId, shared),
    ]);
    return { ...stored, ...Object.fromEntries(written) };
  };

  const register = (registry: ServiceRegistry): void =>
    registry.register(DeviceLinkService, {
      getAttributes: async (request, context) => {
        const { tenantId } = context;
        const deviceId = idField('device', request.deviceId);
        const [device, stored] = await database.read(tenantId, (tx) =>
          Promise.all([findDevice(tx, tenantId, deviceId), readAttributes(tx, tenantId, deviceId)]),
        );
        if (!device) throw notFound('device');
        return toMessage(stored, context);
      },

      updateAttributes: async (request, context) => {
        const { tenantId } = context;
        const deviceId = idField('device', request.deviceId);
        const updates = updatesOf(request, context);
        return toMessage(await database.tenant(tenantId, (tx) => update(tx, tenantId, deviceId, updates)), context);
      },
    });
  return { register };
}

/** Returns the updates by scope. Throws if one is malformed, or of a scope that the caller may not write. */
function updatesOf(request: UpdateAttributesRequest, { caller }: CallContext): Map<AttributeScope, JsonObject> {
  const updates = new Map<AttributeScope, JsonObject>();
  for (const scope of attributeScopes) {
    const update = request[scope];
    if (!update || Object.keys(update).length === 0) continue;
    if ((scope === 'client') !== (caller.kind === 'device')) {
      throw permissionDenied(
        scope === 'client'
          ? 'client: only the device writes its client attributes'
          : `${scope}: a device writes only its client attributes`,
      );
    }
    checkUpdate(scope, update);
    updates.set(scope, update);
  }
  return updates;
}

/** Converts attributes to the public message; a device does not see those of the server. */
function toMessage(stored: DeviceAttributes, { caller }: CallContext): MessageInitShape<typeof AttributesSchema> {
  return {
    client: toMap(stored.client),
    server: caller.kind === 'device' ? {} : toMap(stored.server),
    shared: toMap(stored.shared),
  };
}

const toMap = (attributes: StoredAttributes) =>
  Object.fromEntries(
    Object.entries(attributes).map(([name, { value, updated_at: updatedAt }]) => [
      name,
      { value: fromJson(ValueSchema, value), updatedAt: timestampFromMs(updatedAt) },
    ]),
  );
