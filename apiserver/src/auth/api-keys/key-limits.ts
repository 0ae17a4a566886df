// Limits that a key passes on: a key that it creates is usable from no more addresses, and no longer, than itself.
import { rangesBeyond } from '../../platform/addresses/address-ranges.ts';
import type { Transaction } from '../../platform/database/database.ts';
import { invalidArgument, permissionDenied, unauthenticated } from '../../platform/errors.ts';
import type { Caller } from '../../platform/rpc.ts';
import { refuseLosses } from '../credentials/refuse-losses.ts';

/** The limits of the calling key; a session has none. */
export interface KeyLimits {
  /** Empty: every address that the tenant allows. */
  readonly ipAllowlist: readonly string[];
  /** Milliseconds since 1970; undefined if it does not expire. */
  readonly expiresAt: number | undefined;
}

const none: KeyLimits = { ipAllowlist: [], expiresAt: undefined };

/**
 * Reads the limits and locks the key against revocation until the transaction ends. Throws UNAUTHENTICATED when it is
 * revoked, and for a user as refuseLosses does.
 */
export async function limitsOf(tx: Transaction, caller: Caller): Promise<KeyLimits> {
  if (caller.kind !== 'service') {
    await refuseLosses(tx, caller);
    return none;
  }
  const { rows } = await tx.query<{ ip_allowlist: string[]; expires_at: Date | null }>(
    'SELECT ip_allowlist, expires_at FROM api_keys WHERE key_id = $1 AND revoked_at IS NULL FOR SHARE',
    [caller.userId],
  );
  const key = rows[0];
  if (!key) throw unauthenticated();
  return { ipAllowlist: key.ip_allowlist, expiresAt: key.expires_at?.getTime() };
}

/** The limits requested for a new key. */
export interface AskedKey {
  readonly ipAllowlist: readonly string[];
  /** 0: the longest that the creator's expiry allows. */
  readonly expiresInSeconds: number;
}

/**
 * Returns the limits of a new key: those requested, else the creator's. `callerRanges` are the addresses from which the
 * creator itself may call. Throws PERMISSION_DENIED for a request beyond the creator's limits, INVALID_ARGUMENT for
 * addresses outside the tenant's.
 */
export function limitsOfNewKey(
  asked: AskedKey,
  maker: KeyLimits,
  callerRanges: readonly string[],
  now: number,
): KeyLimits {
  const beyond = rangesBeyond(asked.ipAllowlist, maker.ipAllowlist);
  if (beyond.length > 0) {
    throw permissionDenied(`ip_allowlist: ${beyond.join(', ')} is not within the allowlist of the creating key`);
  }
  const useless = rangesBeyond(asked.ipAllowlist, callerRanges);
  if (useless.length > 0)
    throw invalidArgument(`ip_allowlist: ${useless.join(', ')} is not within the allowlist of the tenant`);
  const ipAllowlist = asked.ipAllowlist.length > 0 ? asked.ipAllowlist : maker.ipAllowlist;
  if (asked.expiresInSeconds === 0) return { ipAllowlist, expiresAt: maker.expiresAt };
  const expiresAt = now + asked.expiresInSeconds * 1000;
  if (maker.expiresAt !== undefined && expiresAt > maker.expiresAt) {
    const left = Math.max(0, Math.floor((maker.expiresAt - now) / 1000));
    throw permissionDenied(`expires_in_seconds: the creating key itself expires in ${left} seconds`);
  }
  return { ipAllowlist, expiresAt };
}

/** Returns the seconds for which a key may be valid that was requested for `seconds` (0: no expiry), as far as its creator allows. */
export function lifetimeWithin(seconds: number, { expiresAt }: KeyLimits, now: number): number {
  if (seconds === 0 || expiresAt === undefined) return seconds;
  const left = Math.floor((expiresAt - now) / 1000);
  // 0 stands for the creator's own expiry.
  return seconds > left ? 0 : seconds;
}

/**
 * Throws as refuseLosses does, and PERMISSION_DENIED if the caller is a limited key: it must not create or take over a user,
 * whose sessions would have neither limit.
 */
export async function refuseLimitedKey(tx: Transaction, caller: Caller): Promise<void> {
  const { ipAllowlist, expiresAt } = await limitsOf(tx, caller);
  if (ipAllowlist.length > 0 || expiresAt !== undefined) {
    throw permissionDenied('a key with an expiry or an ip_allowlist must not create or change users');
  }
}
