// May this key claim this hardware id? (SPEC, Claim a device; DECISIONS 28)
import { matchesPattern } from './hardware-id-pattern.ts';

/** A provision key with the template that it opens, as they stand at the moment of the claim. */
export interface ClaimKey {
  readonly enabled: boolean;
  /** Undefined: never. */
  readonly expiresAt: Date | undefined;
  readonly oneTime: boolean;
  /** The hardware id whose device the key made under a one-time template; undefined while it is unused. */
  readonly usedBy: string | undefined;
  readonly hardwareIdPattern: string;
}

/** A claim: the key as it was found, the hardware id as it was sent. */
export interface Claim {
  /** Undefined: no template has this key. */
  readonly key: ClaimKey | undefined;
  readonly hardwareId: string;
  /** The living device with this hardware id in the key's tenant. */
  readonly existingDeviceId: string | undefined;
  readonly now: Date;
}

/** Why a claim is refused: for logs and metrics alone, the caller gets one answer for all (SPEC, rule 3). */
export type Refused = 'unknown_key' | 'wrong_binding' | 'disabled' | 'expired' | 'pattern' | 'used';

/** What comes of a claim. */
export type ClaimDecision =
  | { readonly action: 'refuse'; readonly cause: Refused }
  /** The device exists: its id again, and no key. */
  | { readonly action: 'repeat'; readonly deviceId: string }
  /** A new device; `useUp`: the key is used with it. */
  | { readonly action: 'create'; readonly useUp: boolean };

/** Decides a claim. Rule 3 comes first: a known hardware id does not help a key that is disabled or expired. */
export function decideClaim({ key, hardwareId, existingDeviceId, now }: Claim): ClaimDecision {
  if (!key) return { action: 'refuse', cause: 'unknown_key' };
  if (!key.enabled) return { action: 'refuse', cause: 'disabled' };
  if (key.expiresAt && key.expiresAt <= now) return { action: 'refuse', cause: 'expired' };
  if (!matchesPattern(key.hardwareIdPattern, hardwareId)) return { action: 'refuse', cause: 'pattern' };
  const used = key.oneTime && key.usedBy !== undefined;
  if (used && key.usedBy !== hardwareId) return { action: 'refuse', cause: 'used' };
  if (existingDeviceId !== undefined) return { action: 'repeat', deviceId: existingDeviceId };
  // The device that used the key is deleted: a used key makes no second one.
  if (used) return { action: 'refuse', cause: 'used' };
  return { action: 'create', useUp: key.oneTime };
}
