// An in-memory device directory and points for its devices, for tests.
import type { AnchorMode } from '@kellet/verify';
import type { Devices, Liveness, TelemetryDevice } from '../points/devices.ts';
import { type AcceptedPoint, isRejection, validatePoint } from '../points/validate.ts';

/** Returns a device with the given properties. */
export function testDevice(deviceId: string, overrides: Partial<TelemetryDevice> = {}): TelemetryDevice {
  return {
    deviceId,
    name: `device ${deviceId.slice(-4)}`,
    type: 'sensor',
    profileId: '',
    gatewayDeviceId: '',
    customerId: '',
    effectiveTags: { site: 'north' },
    telemetrySchema: undefined,
    anchoringMode: 'merkle',
    ...overrides,
  };
}

/** Devices by tenant. */
export class TestDevices implements Devices {
  private readonly devices = new Map<string, TelemetryDevice>();

  add(tenantId: string, device: TelemetryDevice): TelemetryDevice {
    this.devices.set(`${tenantId}/${device.deviceId}`, device);
    return device;
  }

  async lookup(tenantId: string, deviceIds: readonly string[]): Promise<Map<string, TelemetryDevice>> {
    const found = new Map<string, TelemetryDevice>();
    for (const id of deviceIds) {
      const device = this.devices.get(`${tenantId}/${id}`);
      if (device) found.set(id, device);
    }
    return found;
  }

  async lookupEach(tenantId: string, deviceIds: readonly string[]): Promise<(TelemetryDevice | undefined)[]> {
    const found = await this.lookup(tenantId, deviceIds);
    return deviceIds.map((id) => found.get(id));
  }
}

/** Returns the id of a test's n-th device. */
export const testDeviceId = (n: number): string => `01900000-0000-7000-8000-${String(n).padStart(12, '0')}`;

/** Returns an accepted point of device `device` at `seconds` since 1970 with the value `n`. */
export function testPoint(
  tenantId: string,
  device: number,
  seconds: number,
  n: number,
  anchoringMode: AnchorMode = 'merkle',
): AcceptedPoint {
  const deviceId = testDeviceId(device);
  const judged = validatePoint(
    { deviceId, timestamp: new Date(seconds * 1000).toISOString(), numericValues: { n }, stringValues: {} },
    testDevice(deviceId, { anchoringMode }),
    { kind: 'service', tenantId, deviceId: '' },
    Date.now(),
  );
  if (isRejection(judged)) throw new Error(judged.message);
  return judged;
}

/** Returns a receiver of signs of life that only passes them on. */
export const testLiveness = (seen: Liveness['seen'] = () => undefined): Liveness => ({
  seen,
  overlay: () => undefined,
  position: 0,
  writtenPosition: 0,
  writeAll: async () => true,
});
