// Interfaces telemetry needs from the other services: device properties, entity views and liveness.
import type { TelemetrySchema } from '@kellet/proto/es/kellet/v1/common_pb';
import type { AnchorMode } from '@kellet/verify';

/** A device as telemetry sees it, with profile and tenant defaults applied. */
export interface TelemetryDevice {
  readonly deviceId: string;
  /** `tenant/device`, always the same string: its hash is computed once. Undefined: not in the directory. */
  readonly key?: string;
  /** Where what is held about the device is reached without a search, if it is in the directory. */
  readonly memory?: { latest: unknown; life: unknown };
  readonly name: string;
  readonly type: string;
  /** Empty: none. */
  readonly profileId: string;
  /** The gateway it is connected through, or empty. */
  readonly gatewayDeviceId: string;
  /** The customer whose users see it, or empty. */
  readonly customerId: string;
  readonly effectiveTags: Readonly<Record<string, string>>;
  readonly telemetrySchema: TelemetrySchema | undefined;
  readonly anchoringMode: AnchorMode;
  /** How long it stays online without a sign of life, if that is at hand. */
  readonly offlineAfterSeconds?: number;
}

/** A device as named in requests, which keeps what the directory has found for it. */
export interface DeviceReference {
  /** Returns `tenant/device`. */
  keyIn(tenantId: string): string;
  /** For the directory alone. */
  found: unknown;
}

/** The device directory (device-registry/devices/directory.ts). */
export interface Devices {
  /** Returns those of the devices that exist in the tenant, keyed by the id as requested. */
  lookup(tenantId: string, deviceIds: readonly string[]): Promise<ReadonlyMap<string, TelemetryDevice>>;
  /** Returns the same as `lookup`, for each id in turn. `references` are the devices of the ids, if they are at hand. */
  lookupEach(
    tenantId: string,
    deviceIds: readonly string[],
    references?: readonly DeviceReference[],
  ): Promise<readonly (TelemetryDevice | undefined)[]>;
}

/** A window on the data of a device, or on an asset. */
export interface EntityView {
  /** Null: it shows an asset. */
  readonly deviceId: string | null;
  /** Whether its reader may know which device it is. */
  readonly seesDevice: boolean;
  /** Empty: all. */
  readonly keys: readonly string[];
  /** Nanoseconds since 1970, the end exclusive; null: no bound. */
  readonly start: bigint | null;
  readonly end: bigint | null;
}

/** Returns an entity view that users of `customer` see (null: all users), or undefined. */
export type FindEntityView = (
  tenantId: string,
  viewId: string,
  customer: string | null,
) => Promise<EntityView | undefined>;

/** Receives signs of life (device-registry/liveness/liveness.ts). */
export interface Liveness {
  /** `device` is the directory's entry, if it is at hand. */
  seen(
    tenantId: string,
    deviceId: string,
    atMilliseconds: number,
    source: 'telemetry' | 'poll',
    device?: Pick<TelemetryDevice, 'key' | 'memory' | 'offlineAfterSeconds'>,
  ): void;
  /** Returns what is in memory about a device, or undefined. Milliseconds by the database's clock. */
  overlay(tenantId: string, deviceId: string): { readonly lastSeen: number; readonly online: boolean } | undefined;
  /** How many signs were recorded so far, and up to which of them all are written. */
  readonly position: number;
  readonly writtenPosition: number;
  /**
   * Writes what is in memory, and returns whether all of it is written: it ends early when the signal is aborted. Rejects if
   * something cannot be written.
   */
  writeAll(signal?: AbortSignal): Promise<boolean>;
}
