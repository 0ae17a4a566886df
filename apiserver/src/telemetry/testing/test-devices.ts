// For tests: a directory that holds devices in memory, and points for them.
import type { AnchoringMode, Devices, TelemetryDevice } from '../points/devices.ts';
import { isRejection, validatePoint, type AcceptedPoint } from '../points/validate.ts';

/** A device with the given properties. */
export function testDevice(deviceId: string, overrides: Partial<TelemetryDevice> = {}): TelemetryDevice {
  return {
    deviceId,
    name: `device ${deviceId.slice(-4)}`,
    type: 'sensor',
    gatewayDeviceId: '',
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
}

/** The id of the n-th device of a test. */
export const testDeviceId = (n: number): string => `01900000-0000-7000-8000-${String(n).padStart(12, '0')}`;

/** An accepted point: device `device`, `seconds` since 1970, the number `n` as its value. */
export function testPoint(
  tenantId: string,
  device: number,
  seconds: number,
  n: number,
  anchoringMode: AnchoringMode = 'merkle',
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
