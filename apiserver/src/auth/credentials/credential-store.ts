// SQL that decides whether sessions, keys and Kubernetes identities are valid.
import type { Transaction } from '../../platform/database/database.ts';
import { rowsOf } from '../../platform/statements/index-plans.ts';
import { joinTenant, lookUpTenant } from '../../policies/tenant-reader.ts';
import type { Grant } from '../roles/rights.ts';
import type { Role } from '../roles/roles.ts';
import type { CredentialType } from './device-proof.ts';

/** SQL column: what the groups of a user grant, as Grant[]. */
const grantsOf = (user: string): string =>
  `(SELECT coalesce(json_agg(json_build_object('scopes', g.scopes, 'deviceGroupIds', g.device_group_ids)
      ORDER BY g.group_id), '[]')
    FROM user_group_members m JOIN user_groups g USING (tenant_id, group_id) WHERE m.user_id = ${user}.user_id)`;

/** A session and everything that decides whether its access tokens are valid. */
export interface SessionState {
  session_id: string;
  tenant_id: string | null;
  user_id: string;
  email: string;
  /** Null if the user holds only what its groups grant. */
  role: Role | null;
  /** What the user's groups grant. */
  grants: Grant[];
  /** Null if the user is not limited to a customer. */
  customer_id: string | null;
  user_disabled: boolean;
  tenant_deleted: boolean;
  tenant_suspended: boolean;
  revoked: boolean;
  expires_at: Date;
  last_used_at: Date;
  aal: 'aal1' | 'aal2';
  /** When the user last proved who they are. */
  authenticated_at: Date;
  mfa_enrolled: boolean;
  /** Whether the tenant requires a second factor; null for a platform administrator. */
  mfa_required: boolean | null;
  /** Null for a platform administrator. */
  rate_limit_per_minute: number | null;
  tenant_ip_allowlist: string[] | null;
}

/** Reads the state of a session, or returns undefined. `lock` locks it until the transaction ends. */
export async function sessionState(
  tx: Transaction,
  sessionId: string,
  lock: '' | 'FOR UPDATE OF s' = '',
): Promise<SessionState | undefined> {
  const { rows } = await tx.query<SessionState>(
    `SELECT s.session_id, s.tenant_id, s.user_id, u.email, u.role, ${grantsOf('u')} AS grants, u.customer_id,
       u.disabled AS user_disabled, t.deleted_at IS NOT NULL AS tenant_deleted, t.suspended_at IS NOT NULL AS tenant_suspended,
       s.revoked_at IS NOT NULL AS revoked, s.expires_at, s.last_used_at, s.aal, s.authenticated_at, u.mfa_enrolled,
       t.mfa_required, t.rate_limit_per_minute, t.ip_allowlist AS tenant_ip_allowlist
     FROM sessions s JOIN users u USING (user_id) LEFT ${joinTenant('s')}
     WHERE s.session_id = $1 ${lock}`,
    [sessionId],
  );
  return rows[0];
}

/** Reports whether the holder of a session must enroll a second factor before anything else. */
export const mustEnrollFirst = (session: Pick<SessionState, 'aal' | 'mfa_required'>): boolean =>
  session.mfa_required === true && session.aal === 'aal1';

/** Reports whether a key is neither revoked nor expired. */
export async function isKeyInForce(tx: Transaction, keyId: string): Promise<boolean> {
  const { rowCount } = await tx.query(
    'SELECT FROM api_keys WHERE key_id = $1 AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())',
    [keyId],
  );
  return rowCount === 1;
}

/** A key and everything that decides whether it is valid. */
export interface KeyState {
  key_id: string;
  tenant_id: string;
  /** Null for a service account's key. */
  device_id: string | null;
  name: string;
  key_hash: Buffer;
  scopes: string[];
  ip_allowlist: string[];
  expires_at: Date | null;
  last_used_at: Date | null;
  revoked: boolean;
  tenant_deleted: boolean;
  tenant_suspended: boolean;
  rate_limit_per_minute: number;
  tenant_ip_allowlist: string[];
}

/**
 * SQL: leaves only keys whose certificate has become valid at the time $3 and whose authority is not revoked. Certificate, key,
 * device and authority are of the tenant that signed it.
 */
const inForce = `CROSS JOIN LATERAL (
    SELECT * FROM device_certificates WHERE tenant_id = k.tenant_id AND key_id = k.key_id LIMIT 1) AS c
  CROSS JOIN LATERAL (
    SELECT * FROM device_authorities WHERE tenant_id = c.tenant_id AND authority_id = c.authority_id LIMIT 1) AS a
  WHERE c.device_id = k.device_id AND c.not_before <= $3 AND a.revoked_at IS NULL`;

/** Returns the state of the key with this type and hash, or undefined; of a certificate only if it is in force. */
export const keyState = async (
  tx: Transaction,
  type: CredentialType,
  hash: Buffer,
  now: Date,
): Promise<KeyState | undefined> => (await keyStates(tx, type, [hash], now))[0];

/** Returns the states of the keys with this type and these hashes, in their order; undefined where there is none in force. */
export async function keyStates(
  tx: Transaction,
  type: CredentialType,
  hashes: readonly Buffer[],
  now: Date,
): Promise<(KeyState | undefined)[]> {
  const isCertificate = type === 'certificate';
  const { rows } = await tx.query<KeyState & { place: number } & Record<string, unknown>>(
    `SELECT w.place::int4 AS place, k.key_id, k.tenant_id, k.device_id, k.name, k.key_hash, k.scopes, k.ip_allowlist, k.expires_at, k.last_used_at,
       k.revoked_at IS NOT NULL AS revoked, t.deleted_at IS NOT NULL AS tenant_deleted, t.suspended_at IS NOT NULL AS tenant_suspended, t.rate_limit_per_minute,
       t.ip_allowlist AS tenant_ip_allowlist
     FROM ${rowsOf('$1::bytea[]')} AS w (hash, place)
     CROSS JOIN LATERAL (SELECT * FROM api_keys WHERE key_hash = w.hash AND credential_type = $2 LIMIT 1) AS k
     ${lookUpTenant('k')} ${isCertificate ? inForce : ''}`,
    [hashes, type, ...(isCertificate ? [now] : [])],
  );
  const found: (KeyState | undefined)[] = hashes.map(() => undefined);
  for (const { place, ...key } of rows) found[place - 1] = key;
  return found;
}
