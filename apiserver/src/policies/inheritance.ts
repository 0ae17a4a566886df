// What a device inherits: profile → tenant → platform. Pure.
import type { OtaPolicy, TelemetrySchema } from '@kellet/proto/es/kellet/v1/common_pb';
import type { AnchorMode } from '@kellet/verify';
import type { ProfileFacts } from './profile-reader.ts';

/** The platform's default for offline_after_seconds. */
const platformOfflineAfterSeconds = 300;

/** A tenant's defaults as its row holds them. */
export interface TenantDefaultFacts {
  readonly tags: Readonly<Record<string, string>>;
  readonly telemetrySchema: TelemetrySchema | undefined;
  readonly anchoringMode: AnchorMode | undefined;
  /** 0: the platform's default. */
  readonly offlineAfterSeconds: number;
  readonly otaPolicy: OtaPolicy | undefined;
  /** Another one for other defaults. */
  readonly revision?: string;
}

/** A device's own values. */
export interface OwnFacts {
  readonly deviceId: string;
  readonly name: string;
  readonly hardwareId: string;
  /** Empty: none. */
  readonly profileId: string;
  /** Empty: none. */
  readonly gatewayDeviceId: string;
  /** The customer whose users see the device; empty: none. */
  readonly customerId: string;
  readonly tags: Readonly<Record<string, string>>;
}

/**
 * What a process holds about a device, reached without a search: in a large fleet, each search takes longer than what it is for.
 * A part belongs to who has set it, who also knows whether it still counts.
 */
export interface DeviceMemory {
  latest: unknown;
  life: unknown;
}

/** A device with everything it inherits resolved. */
export interface DeviceFacts {
  readonly deviceId: string;
  /** `tenant/device`, always the same string, for the maps in which it is looked up for each point. */
  readonly key?: string;
  readonly memory?: DeviceMemory;
  readonly name: string;
  readonly hardwareId: string;
  /** The profile's device type label; empty without a profile. */
  readonly type: string;
  /** Empty: none. */
  readonly profileId: string;
  /** The gateway of a child device; empty: none. */
  readonly gatewayDeviceId: string;
  /** The customer whose users see the device; empty: none. */
  readonly customerId: string;
  readonly effectiveTags: Readonly<Record<string, string>>;
  /** Undefined: any point is valid. */
  readonly telemetrySchema: TelemetrySchema | undefined;
  readonly anchoringMode: AnchorMode;
  readonly offlineAfterSeconds: number;
  /** Undefined: the platform's defaults. */
  readonly otaPolicy: OtaPolicy | undefined;
}

/** Returns the effective tags of a device: its own over the inherited ones. */
export function effectiveTags(
  own: Readonly<Record<string, string>>,
  profile: Pick<ProfileFacts, 'defaultTags'> | undefined,
  tenant: TenantDefaultFacts,
): Record<string, string> {
  return { ...(profile ? profile.defaultTags : tenant.tags), ...own };
}

/**
 * Resolves what a device inherits. A tenant's tags, telemetry schema and OTA policy apply to devices without a profile; its
 * anchoring mode and offline time also where the profile leaves them open.
 */
export function inherit(own: OwnFacts, profile: ProfileFacts | undefined, tenant: TenantDefaultFacts): DeviceFacts {
  const messages = profile ?? tenant;
  return {
    deviceId: own.deviceId,
    name: own.name,
    hardwareId: own.hardwareId,
    type: profile?.type ?? '',
    profileId: own.profileId,
    gatewayDeviceId: own.gatewayDeviceId,
    customerId: own.customerId,
    effectiveTags: effectiveTags(own.tags, profile, tenant),
    telemetrySchema: messages.telemetrySchema,
    anchoringMode: profile?.anchoringMode ?? tenant.anchoringMode ?? 'merkle',
    offlineAfterSeconds: profile?.offlineAfterSeconds || tenant.offlineAfterSeconds || platformOfflineAfterSeconds,
    otaPolicy: messages.otaPolicy,
  };
}
