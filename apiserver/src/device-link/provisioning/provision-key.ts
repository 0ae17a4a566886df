// Provision keys: their creation, stored form and state.
import { createHash, timingSafeEqual } from 'node:crypto';
import { provisionKeyBinding } from '@kellet/crds';
import { randomToken } from '../../platform/ids.ts';

/** Creates a key: opaque, 256 random bits. Returned once; only its hash is stored. */
export const mintProvisionKey = (): string => `pk_${randomToken(32)}`;

/** The SHA-256 of a key, by which it is stored and found. */
export const provisionKeyHash = (key: string): Buffer => createHash('sha256').update(key).digest();

/** A hash as named by one tenant's manifest. */
export interface RegisteredKey {
  readonly tenant_id: string;
  readonly key_hash: Buffer;
  /** Null if the tenant used the key before bindings existed. */
  readonly binding: Buffer | null;
}

/**
 * Returns the tenant that a key belongs to: the first among those that name its hash with a valid binding, else the one
 * that used it before bindings existed. A hash alone, which could be copied, does not make a tenant the owner. Compares
 * in constant time.
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

/** States of a template's key (key_state). */
export type KeyStateName = 'active' | 'used' | 'expired' | 'disabled';

/** The facts that decide the state of a key. */
export interface KeyFacts {
  readonly enabled: boolean;
  readonly oneTime: boolean;
  readonly used: boolean;
  readonly expiresAt: Date | undefined;
}

/**
 * Returns the state of a key at a time: disabled by a person first, then what cannot be undone, then what a longer
 * expiry could change.
 */
export function keyState({ enabled, oneTime, used, expiresAt }: KeyFacts, now: Date): KeyStateName {
  if (!enabled) return 'disabled';
  if (oneTime && used) return 'used';
  if (expiresAt && expiresAt <= now) return 'expired';
  return 'active';
}

/**
 * Returns when a key expires: counted from when it was first seen, so that applying a template again does not prolong
 * it.
 */
export const keyExpiry = (firstSeen: Date, expiresInSeconds: number | null): Date | undefined =>
  expiresInSeconds === null ? undefined : new Date(firstSeen.getTime() + expiresInSeconds * 1000);
