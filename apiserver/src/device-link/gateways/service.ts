// DeviceLinkService: gateways, which act for devices that have no connection of their own.
import { type ConnectGatewayDeviceRequest, DeviceLinkService } from '@kellet/proto/es/kellet/v1/device_link_pb';
import { usesOwnKey } from '../../auth/device-credentials/device-keys.ts';
import type { Platform, ServiceModule } from '../../config/module.ts';
import {
  countChildren,
  countCreatedBy,
  createDevice,
  type DeviceRow,
  findByHardwareId,
  fleetFacts,
  isAlive,
  lockDevices,
  notifyDeviceChanged,
  setGateway,
  writeAlive,
} from '../../device-registry/devices/devices.ts';
import type { DeviceDirectory } from '../../device-registry/devices/directory.ts';
import type { MembershipListener } from '../../device-registry/devices/fleet-changes.ts';
import type { Liveness } from '../../device-registry/liveness/liveness.ts';
import type { Transaction } from '../../platform/database/database.ts';
import { retriedTransactions } from '../../platform/database/retry-conflicts.ts';
import { failedPrecondition, KelletError, notFound, permissionDenied } from '../../platform/errors.ts';
import { isId, newId } from '../../platform/ids.ts';
import { idField, textField } from '../../platform/requests/fields.ts';
import type { Caller, ServiceRegistry } from '../../platform/rpc.ts';
import type { TransactionalProfileReader } from '../../policies/profile-reader.ts';
import { decideConnect, maxChildren } from './connect-decision.ts';

/** Dependencies of the service. */
export interface GatewayParts {
  readonly platform: Pick<Platform, 'database' | 'clock'>;
  readonly profiles: TransactionalProfileReader;
  readonly membership: MembershipListener;
  readonly directory: DeviceDirectory;
  readonly liveness: Liveness;
}

/** How often a connection is tried again when another call has created the device meanwhile. */
const attempts = 3;

interface Connected {
  readonly deviceId: string;
  readonly created: boolean;
}

/** Creates the service. */
export function createGateways({ platform, profiles, membership, directory, liveness }: GatewayParts): ServiceModule {
  const { database, clock } = platform;

  const connect = async (tx: Transaction, tenantId: string, gatewayId: string, wanted: Wanted): Promise<Connected> => {
    // The profile is locked before rows of devices (fleet-changes.ts).
    const known = await findByHardwareId(tx, tenantId, wanted.hardwareId);
    if (!known && wanted.profileId !== '') {
      const profile =
        isId(wanted.profileId) && (await profiles.getWithin(tx, tenantId, wanted.profileId, 'FOR KEY SHARE'));
      if (!profile) throw notFound('profile_id');
    }
    const rows = await lockDevices(tx, tenantId, [gatewayId, ...(known ? [known.device_id] : [])]);
    const gateway = rows.get(gatewayId);
    if (!gateway) throw notFound('gateway_device_id');
    const device = known && rows.get(known.device_id);
    // Deleted or renamed since.
    if (known && device?.hardware_id !== wanted.hardwareId) throw new ChangedMeanwhile();
    const [children, created] = await Promise.all([
      countChildren(tx, tenantId, gatewayId, maxChildren),
      device ? 0 : countCreatedBy(tx, tenantId, gatewayId, maxChildren),
    ]);
    const decision = decideConnect(
      {
        deviceId: gatewayId,
        customerId: gateway.customer_id,
        isChild: gateway.gateway_device_id !== null,
        ...{ children, created },
      },
      device && (await wantedDevice(tx, tenantId, device)),
    );
    if (decision.action === 'refuse') throw failedPrecondition(decision.reason);
    await writeAlive(tx, tenantId, gatewayId, wanted.offlineAfterSeconds);
    // The gateway's stream may follow all its children, so it has to learn of this one.
    if (decision.action === 'adopt' || !device) await notifyDeviceChanged(tx, tenantId, gatewayId);
    if (decision.action === 'adopt') await setGateway(tx, tenantId, device!.device_id, gatewayId);
    if (device) return { deviceId: device.device_id, created: false };
    const row = await createChild(tx, tenantId, gatewayId, wanted);
    await membership.devicesChanged(tx, tenantId, [{ after: fleetFacts(row) }]);
    return { deviceId: row.device_id, created: true };
  };

  const disconnect = async (tx: Transaction, tenantId: string, gatewayId: string, deviceId: string): Promise<void> => {
    const device = (await lockDevices(tx, tenantId, [deviceId])).get(deviceId);
    if (!device) throw notFound('device_id');
    if (device.gateway_device_id === null) return;
    if (device.gateway_device_id !== gatewayId) throw permissionDenied('device_id is not a child of this gateway');
    await setGateway(tx, tenantId, deviceId, null);
  };

  const register = (registry: ServiceRegistry): void =>
    registry.register(DeviceLinkService, {
      connectGatewayDevice: async (request, { tenantId, caller }) => {
        const gatewayId = ownId(request.gatewayDeviceId, caller);
        const facts = (await directory.lookup(tenantId, [gatewayId])).get(gatewayId);
        if (!facts) throw notFound('gateway_device_id');
        const wanted = { ...fieldsOf(request), offlineAfterSeconds: facts.offlineAfterSeconds };
        const connected = await again(() =>
          retriedTransactions(database)(tenantId, (tx) => connect(tx, tenantId, gatewayId, wanted)),
        );
        const now = clock.now();
        for (const id of [gatewayId, connected.deviceId]) liveness.seen(tenantId, id, now, 'poll');
        directory.evict(tenantId, connected.deviceId);
        return connected;
      },

      disconnectGatewayDevice: async (request, { tenantId, caller }) => {
        const gatewayId = ownId(request.gatewayDeviceId, caller);
        const deviceId = idField('device_id', request.deviceId);
        await database.tenant(tenantId, (tx) => disconnect(tx, tenantId, gatewayId, deviceId));
        const now = clock.now();
        liveness.seen(tenantId, gatewayId, now, 'poll');
        liveness.streamClosed(tenantId, deviceId, now);
        directory.evict(tenantId, deviceId);
        return {};
      },
    });
  return { register };
}

/** The device that a gateway wants, checked. */
interface Wanted {
  readonly hardwareId: string;
  readonly name: string;
  readonly profileId: string;
  /** Of the gateway. */
  readonly offlineAfterSeconds: number;
}

function fieldsOf(request: ConnectGatewayDeviceRequest): Omit<Wanted, 'offlineAfterSeconds'> {
  const hardwareId = textField('hardware_id', request.hardwareId, { minimum: 1, maximum: 256 });
  return {
    hardwareId,
    name: textField('device_name', request.deviceName, { maximum: 256 }) || hardwareId,
    profileId: request.profileId,
  };
}

/** The route admits a device's own gateway, which must not act as a gateway in its name. */
function ownId(gatewayDeviceId: string, caller: Caller): string {
  if (gatewayDeviceId !== caller.deviceId) throw permissionDenied('gateway_device_id is not the calling device');
  return caller.deviceId;
}

async function wantedDevice(tx: Transaction, tenantId: string, device: DeviceRow) {
  const { device_id: deviceId, customer_id: customerId, gateway_device_id: gatewayDeviceId } = device;
  const [isGatewayAlive, children, usesKey] = await Promise.all([
    gatewayDeviceId !== null && isAlive(tx, tenantId, gatewayDeviceId),
    countChildren(tx, tenantId, deviceId, 1),
    usesOwnKey(tx, tenantId, deviceId),
  ]);
  return { deviceId, customerId, gatewayDeviceId, isGatewayAlive, hasChildren: children > 0, usesOwnKey: usesKey };
}

/** Creates a child, which has no key. */
async function createChild(tx: Transaction, tenantId: string, gatewayId: string, wanted: Wanted): Promise<DeviceRow> {
  try {
    return await createDevice(tx, {
      ...{ tenantId, deviceId: newId(), name: wanted.name, hardwareId: wanted.hardwareId },
      ...{ profileId: wanted.profileId, groupIds: [], gatewayDeviceId: gatewayId, credentialType: 'api_key' },
    });
  } catch (error) {
    if (error instanceof KelletError && error.code === 'ALREADY_EXISTS') throw new ChangedMeanwhile();
    throw error;
  }
}

/** Another transaction has created or changed the device since it was looked up. */
class ChangedMeanwhile extends KelletError {
  constructor() {
    super('UNAVAILABLE', 'the device is being changed by another request: try again');
  }
}

async function again<T>(run: () => Promise<T>): Promise<T> {
  for (let attempt = 1; ; attempt += 1) {
    try {
      return await run();
    } catch (error) {
      if (!(error instanceof ChangedMeanwhile) || attempt === attempts) throw error;
    }
  }
}
