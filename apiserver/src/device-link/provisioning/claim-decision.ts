// Decides whether a provision key may claim a hardware id.
import { matchesPattern } from './hardware-id-pattern.ts';

/** A provision key and its template at the moment of the claim. */
export interface ClaimKey {
  readonly enabled: boolean;
  /** Undefined if it does not expire. */
  readonly expiresAt: Date | undefined;
  readonly oneTime: boolean;
  /** The hardware id of the device created with the key under a one-time template; undefined while it is unused. */
  readonly usedBy: string | undefined;
  readonly hardwareIdPattern: string;
}

/** A claim: the stored key and the requested hardware id. */
export interface Claim {
  /** Undefined if no template has this key. */
  readonly key: ClaimKey | undefined;
  readonly hardwareId: string;
  /** The existing device with this hardware id in the key's tenant. */
  readonly existing:
    | {
        readonly deviceId: string;
        /** Whether it has ever had a credential. A device that a gateway has connected has none. */
        readonly hasCredentials: boolean;
      }
    | undefined;
  readonly now: Date;
}

/** Why a claim is rejected, for logs and metrics; the caller gets the same error for every cause. */
export type Refused = 'unknown_key' | 'wrong_binding' | 'disabled' | 'expired' | 'pattern' | 'used';

/** The outcome of a claim. */
export type ClaimDecision =
  | { readonly action: 'refuse'; readonly cause: Refused }
  /** The device exists: returns its id again, without a key. */
  | { readonly action: 'repeat'; readonly deviceId: string }
  /** A gateway has connected the device, which now connects by itself: gives it credentials. */
  | { readonly action: 'take'; readonly deviceId: string; readonly useUp: boolean }
  /** Creates a device; with `useUp` the key is marked as used. */
  | { readonly action: 'create'; readonly useUp: boolean };

/** Decides a claim. The key is checked first: a known hardware id does not help a key that is disabled or expired. */
export function decideClaim({ key, hardwareId, existing, now }: Claim): ClaimDecision {
  if (!key) return { action: 'refuse', cause: 'unknown_key' };
  if (!key.enabled) return { action: 'refuse', cause: 'disabled' };
  if (key.expiresAt && key.expiresAt <= now) return { action: 'refuse', cause: 'expired' };
  if (!matchesPattern(key.hardwareIdPattern, hardwareId)) return { action: 'refuse', cause: 'pattern' };
  const used = key.oneTime && key.usedBy !== undefined;
  if (used && key.usedBy !== hardwareId) return { action: 'refuse', cause: 'used' };
  // Otherwise any device could connect the hardware ids that are still to be claimed, and get their commands.
  if (existing && !existing.hasCredentials && !used)
    return { action: 'take', deviceId: existing.deviceId, useUp: key.oneTime };
  if (existing) return { action: 'repeat', deviceId: existing.deviceId };
  // The device that used the key was deleted: a used key creates no second one.
  if (used) return { action: 'refuse', cause: 'used' };
  return { action: 'create', useUp: key.oneTime };
}
