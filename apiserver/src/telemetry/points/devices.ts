// What telemetry needs of the other services: facts of devices, and somewhere to say that a device was heard.
import type { TelemetrySchema } from '@kellet/proto/es/kellet/v1/common_pb';

/** How the points of a device are committed to the chain. */
export type AnchoringMode = 'merkle' | 'per_event' | 'chain';

/** A device as telemetry sees it; profile and tenant defaults are already in it. */
export interface TelemetryDevice {
  readonly deviceId: string;
  readonly name: string;
  readonly type: string;
  /** The gateway it is connected through; empty when there is none. */
  readonly gatewayDeviceId: string;
  readonly effectiveTags: Readonly<Record<string, string>>;
  readonly telemetrySchema: TelemetrySchema | undefined;
  readonly anchoringMode: AnchoringMode;
}

/** The directory of devices (device-registry/directory.ts). */
export interface Devices {
  /** Those of the devices that exist in the tenant, by the id as it was asked for. */
  lookup(tenantId: string, deviceIds: readonly string[]): Promise<ReadonlyMap<string, TelemetryDevice>>;
}

/** Where signs of life go (device-registry/liveness.ts). */
export interface Liveness {
  seen(tenantId: string, deviceId: string, atMilliseconds: number, source: 'telemetry'): void;
}
