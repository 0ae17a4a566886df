// Provision keys: how one is made, what is kept of it, and in which state it is.
import { createHash, timingSafeEqual } from 'node:crypto';
import { provisionKeyBinding } from '@kellet/crds';
import { randomToken } from '../../platform/ids.ts';

/** A new key: opaque, 256 random bits. Shown once; only its hash is kept. */
export const mintProvisionKey = (): string => `pk_${randomToken(32)}`;

/** SHA-256 of a key, under which it is kept and found (SPEC, Claim a device, rule 2). */
export const provisionKeyHash = (key: string): Buffer => createHash('sha256').update(key).digest();

/** A hash as one tenant's manifest names it. */
export interface RegisteredKey {
  readonly tenant_id: string;
  readonly key_hash: Buffer;
  /** Null: the tenant used the key before there were bindings. */
  readonly binding: Buffer | null;
}

/**
 * Returns the tenant that a key belongs to: the first among those that name its hash whose binding holds, else the one that
 * used it before there were bindings. A hash alone, which anybody may have copied, makes no tenant the key's. Compares in
 * constant time.
 */
export function tenantOfKey(key: string, registered: readonly RegisteredKey[]): string | undefined {
  const hash = provisionKeyHash(key);
  const named = registered.filter(({ key_hash: stored }) => timingSafeEqual(stored, hash));
  const bound = named.find(
    ({ tenant_id: tenantId, binding }) =>
      binding !== null && timingSafeEqual(binding, Buffer.from(provisionKeyBinding(tenantId, key), 'hex')),
  );
  return (bound ?? named.find(({ binding }) => binding === null))?.tenant_id;
}

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
