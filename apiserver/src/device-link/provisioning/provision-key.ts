// Provision keys: how one is made, what is kept of it, and in which state it is.
import { createHash } from 'node:crypto';
import { randomToken } from '../../platform/ids.ts';

/** A new key: opaque, 256 random bits. Shown once; only its hash is kept. */
export const mintProvisionKey = (): string => `pk_${randomToken(32)}`;

/** SHA-256 of a key, under which it is kept and found (SPEC, Claim a device, rule 2). */
export const provisionKeyHash = (key: string): Buffer => createHash('sha256').update(key).digest();

/** States of a template's key (API.md, key_state). */
export type KeyStateName = 'active' | 'used' | 'expired' | 'disabled';

/** What decides the state of a key. */
export interface KeyFacts {
  readonly enabled: boolean;
  readonly oneTime: boolean;
  readonly used: boolean;
  readonly expiresAt: Date | undefined;
}

/** The state of a key at a time: a person's decision first, then what cannot be undone, then what a longer expiry could. */
export function keyState({ enabled, oneTime, used, expiresAt }: KeyFacts, now: Date): KeyStateName {
  if (!enabled) return 'disabled';
  if (oneTime && used) return 'used';
  if (expiresAt && expiresAt <= now) return 'expired';
  return 'active';
}

/** When a key ends: counted from the moment it was first seen, so that applying a template again does not prolong it. */
export const keyExpiry = (firstSeen: Date, expiresInSeconds: number | null): Date | undefined =>
  expiresInSeconds === null ? undefined : new Date(firstSeen.getTime() + expiresInSeconds * 1000);
