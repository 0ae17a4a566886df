// DeviceLinkService: the attributes of devices.
import { fromJson, type JsonObject, type MessageInitShape } from '@bufbuild/protobuf';
import { timestampFromMs, ValueSchema } from '@bufbuild/protobuf/wkt';
import {
  type Attributes_AttributeSchema,
  type AttributesSchema,
  DeviceLinkService,
  type UpdateAttributesRequest,
} from '@kellet/proto/es/kellet/v1/device_link_pb';
import type { Platform, ServiceModule } from '../../config/module.ts';
import { findDevice } from '../../device-registry/devices/devices.ts';
import { LargeReads } from '../../platform/concurrency/large-reads.ts';
import { Pauses } from '../../platform/concurrency/pauses.ts';
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

/** Attributes of more bytes take turns: making a message of them takes up to a tenth of a second. */
const smallBytes = 16_384;

/** Creates the service. */
export function createAttributes({ database, clock }: Pick<Platform, 'database' | 'clock'>): ServiceModule {
  const large = new LargeReads();

  /** Works with a device's attributes, in a turn if they have more than so many bytes, as `work` says then. */
  const inTurn = async <T extends object>(tenantId: string, work: (mostBytes: number) => Promise<T | 'large'>) => {
    const done = await work(smallBytes);
    if (done !== 'large') return done;
    return large.run(tenantId, Infinity, smallBytes, () => work(Infinity) as Promise<T>);
  };

  const update = async (
    tx: Transaction,
    tenantId: string,
    deviceId: string,
    updates: ReadonlyMap<AttributeScope, JsonObject>,
    mostBytes: number,
  ): Promise<DeviceAttributes | 'large'> => {
    // The lock puts the updates of a device in order, and before or after its deletion.
    const [device, stored] = await Promise.all([
      findDevice(tx, tenantId, deviceId, 'FOR NO KEY UPDATE'),
      readAttributes(tx, tenantId, deviceId, mostBytes),
    ]);
    if (!device) throw notFound('device');
    if (stored === 'large') return stored;
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
        return inTurn(tenantId, async (mostBytes) => {
          const [device, stored] = await database.read(tenantId, (tx) =>
            Promise.all([findDevice(tx, tenantId, deviceId), readAttributes(tx, tenantId, deviceId, mostBytes)]),
          );
          if (!device) throw notFound('device');
          return stored === 'large' ? stored : toMessage(stored, context);
        });
      },

      updateAttributes: async (request, context) => {
        const { tenantId } = context;
        const deviceId = idField('device', request.deviceId);
        const updates = updatesOf(request, context);
        return inTurn(tenantId, async (mostBytes) => {
          const stored = await database.tenant(tenantId, (tx) => update(tx, tenantId, deviceId, updates, mostBytes));
          return stored === 'large' ? stored : toMessage(stored, context);
        });
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
async function toMessage(
  stored: DeviceAttributes,
  { caller }: CallContext,
): Promise<MessageInitShape<typeof AttributesSchema>> {
  const pauses = new Pauses();
  const toMap = async (attributes: StoredAttributes) => {
    const entries: [string, MessageInitShape<typeof Attributes_AttributeSchema>][] = [];
    for (const [name, { value, updated_at: updatedAt }] of Object.entries(attributes)) {
      entries.push([name, { value: fromJson(ValueSchema, value), updatedAt: timestampFromMs(updatedAt) }]);
      await pauses.next();
    }
    return Object.fromEntries(entries);
  };
  return {
    client: await toMap(stored.client),
    server: caller.kind === 'device' ? {} : await toMap(stored.server),
    shared: await toMap(stored.shared),
  };
}
