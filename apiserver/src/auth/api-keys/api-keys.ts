// API keys of service accounts: limited to their creator's scopes, listed without their secret, revoked permanently.
import type { MessageInitShape } from '@bufbuild/protobuf';
import { timestampFromDate } from '@bufbuild/protobuf/wkt';
import type { ApiKeySchema, AuthService } from '@kellet/proto/es/kellet/v1/auth_pb';
import { checkAllowlist } from '../../platform/addresses/address-ranges.ts';
import type { Transaction } from '../../platform/database/database.ts';
import { checkRoom, countedLimit } from '../../platform/database/number-limits.ts';
import { invalidArgument, notFound, permissionDenied } from '../../platform/errors.ts';
import { newId } from '../../platform/ids.ts';
import { idField, textField } from '../../platform/requests/fields.ts';
import type { Implementation } from '../../platform/rpc.ts';
import { scopeAreas } from '../../platform/scopes.ts';
import { listSized, type Room, type SizedRow, sizedRows } from '../../platform/statements/sized-rows.ts';
import { mintKey } from '../credentials/api-key-format.ts';
import type { AuthPlatform } from '../credentials/auth-platform.ts';
import type { LastUsed } from '../credentials/last-used.ts';
import { notifyRevoked } from '../credentials/revocations.ts';
import { type Grant, grantBeyond, type Rights } from '../roles/rights.ts';
import { unknownScopes } from '../roles/roles.ts';
import { type KeyLimits, lifetimeWithin, limitsOf, limitsOfNewKey } from './key-limits.ts';

interface KeyRow {
  key_id: string;
  name: string;
  prefix: string;
  last4: string;
  scopes: string[];
  ip_allowlist: string[];
  created_at: Date;
  expires_at: Date | null;
  last_used_at: Date | null;
}

/** A key with the seconds that it was made for; 0 if it was to have no end, null if only its end is known. */
interface LockedKey extends KeyRow {
  lifetime_seconds: bigint | null;
}

/** Pages of more keys take turns: each may have 100 ranges of addresses. */
const smallPage = 50;

/** How long a rotated key may continue to work. */
const maximumGraceSeconds = 30 * 86_400;

const keyColumns = 'key_id, name, prefix, last4, scopes, ip_allowlist, created_at, expires_at, last_used_at';

/** Checks that at least one scope is named, and that all of them exist. Throws INVALID_ARGUMENT. */
export function checkKnownScopes(asked: readonly string[]): void {
  if (asked.length === 0) throw invalidArgument('scopes must name at least one scope');
  const unknown = unknownScopes(asked);
  if (unknown.length > 0) {
    const said = unknown.map((scope) => JSON.stringify(scope)).join(', ');
    throw invalidArgument(
      `scopes: there is no ${said}; a scope is area:read or area:write, of ${scopeAreas.join(', ')}`,
    );
  }
}

/** Throws PERMISSION_DENIED for scopes that the caller does not hold, or not for all of the grant's devices. */
export function checkGrant(asked: Grant, caller: Rights): void {
  const beyond = grantBeyond(asked, caller);
  if (beyond.length > 0)
    throw permissionDenied(`scopes that the caller does not hold cannot be granted: ${beyond.join(', ')}`);
}

/** The handlers of `auth/api-keys`. */
export function apiKeyHandlers(platform: AuthPlatform, lastUsed: LastUsed): Implementation<typeof AuthService> {
  const { database, paging, clock } = platform;
  return {
    createApiKey: async (request, { tenantId, caller }) => {
      const name = textField('name', request.name, { minimum: 1, maximum: 128 });
      checkKnownScopes(request.scopes);
      checkGrant({ scopes: request.scopes, deviceGroupIds: [] }, caller);
      checkAllowlist('ip_allowlist', request.ipAllowlist);
      return database.tenant(tenantId, async (tx) => {
        await checkRoom(tx, [tenantId], keyLimit);
        const maker = await limitsOf(tx, caller);
        const now = clock.now();
        const limits = limitsOfNewKey(request, maker, caller.ipAllowlist, now);
        return insertKey(tx, tenantId, { name, scopes: [...new Set(request.scopes)], ...limits, now });
      });
    },

    rotateApiKey: async (request, { tenantId, caller }) => {
      const keyId = idField('API key', request.keyId);
      const { graceSeconds = 0, expiresInSeconds = 0 } = request;
      if (graceSeconds > maximumGraceSeconds) {
        throw invalidArgument(`grace_seconds must be at most ${maximumGraceSeconds}`);
      }
      return database.tenant(tenantId, async (tx) => {
        await checkRoom(tx, [tenantId], keyLimit);
        const old = await lockKey(tx, tenantId, keyId);
        const { scopes, ip_allowlist: ipAllowlist } = old;
        checkGrant({ scopes, deviceGroupIds: [] }, caller);
        const maker = await limitsOf(tx, caller);
        const now = clock.now();
        const lifetime = lifetimeWithin(lifetimeOf(old), maker, now);
        const asked = { ipAllowlist, expiresInSeconds: expiresInSeconds || lifetime };
        const limits = limitsOfNewKey(asked, maker, caller.ipAllowlist, now);
        await endKey(tx, tenantId, keyId, graceSeconds);
        return insertKey(tx, tenantId, { name: old.name, scopes, ...limits, now });
      });
    },

    listApiKeys: async (request, { tenantId }) => {
      await lastUsed.write();
      const { items: apiKeys, nextPageToken } = await listSized({ database, paging }, request, {
        scope: [tenantId, 'api-keys'],
        smallPage,
        cursorOf: (row: KeyRow) => row.key_id,
        read: (tx, after, room) => listKeys(tx, tenantId, after, room),
        toItem: toApiKey,
      });
      return { apiKeys, nextPageToken };
    },

    deleteApiKey: async (request, { tenantId }) => {
      const keyId = idField('API key', request.keyId);
      await database.tenant(tenantId, (tx) => endKey(tx, tenantId, keyId, 0));
      return {};
    },
  };
}

/** Lists the keys after one, as far as there is room for them. */
async function listKeys(
  tx: Transaction,
  tenantId: string,
  after: string | undefined,
  room: Room,
): Promise<(KeyRow & SizedRow)[]> {
  const { rows } = await tx.query<KeyRow & SizedRow>(
    sizedRows(
      `SELECT ${keyColumns}, octet_length(ip_allowlist::text) + octet_length(scopes::text) AS row_bytes FROM api_keys
       WHERE tenant_id = $1 AND device_id IS NULL AND revoked_at IS NULL AND ($2::uuid IS NULL OR key_id > $2)`,
      'key_id',
      3,
    ),
    [tenantId, after ?? null, room.limit, room.bytes],
  );
  return rows;
}

/** A key to be created. */
interface NewKey extends KeyLimits {
  readonly name: string;
  readonly scopes: readonly string[];
  /** Milliseconds since 1970. */
  readonly now: number;
}

/** Keys of service accounts, with those that ended within a day. */
const keyLimit = countedLimit(
  'tenant',
  'SELECT FROM api_keys WHERE tenant_id = $1 AND device_id IS NULL',
  10_000,
  'API keys, including those that ended within a day',
);

/** Deletes keys of service accounts that ended before a time, at most `limit` of them; returns how many. */
export async function deleteEndedKeys(tx: Transaction, before: Date, limit: number): Promise<number> {
  const { rowCount } = await tx.query(
    `DELETE FROM api_keys WHERE key_id = ANY (ARRAY (
       SELECT key_id FROM api_keys WHERE device_id IS NULL AND least(revoked_at, expires_at) < $1
       ORDER BY least(revoked_at, expires_at) LIMIT $2 FOR UPDATE SKIP LOCKED))`,
    [before, limit],
  );
  return rowCount ?? 0;
}

/** Creates a key, for which there is room, and returns it with its secret, which is not stored. */
async function insertKey(
  tx: Transaction,
  tenantId: string,
  { name, scopes, ipAllowlist, expiresAt, now }: NewKey,
): Promise<MessageInitShape<typeof ApiKeySchema>> {
  const { key, hash, prefix, last4 } = mintKey();
  const [end, lifetime] =
    expiresAt === undefined ? [null, 0] : [new Date(expiresAt), Math.ceil((expiresAt - now) / 1000)];
  const { rows } = await tx.query<KeyRow>(
    `INSERT INTO api_keys (key_id, tenant_id, name, key_hash, prefix, last4, scopes, ip_allowlist, expires_at,
       lifetime_seconds)
     VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) RETURNING ${keyColumns}`,
    [newId(), tenantId, name, hash, prefix, last4, scopes, ipAllowlist, end, lifetime],
  );
  return { ...toApiKey(rows[0]!), apiKey: key };
}

/** Returns a key, locked until the transaction ends. Throws NOT_FOUND for one that has expired or was revoked. */
async function lockKey(tx: Transaction, tenantId: string, keyId: string): Promise<LockedKey> {
  const { rows } = await tx.query<LockedKey>(
    `SELECT ${keyColumns}, lifetime_seconds FROM api_keys
     WHERE tenant_id = $1 AND key_id = $2 AND device_id IS NULL AND revoked_at IS NULL
       AND (expires_at IS NULL OR expires_at > now()) FOR NO KEY UPDATE`,
    [tenantId, keyId],
  );
  if (!rows[0]) throw notFound('API key');
  return rows[0];
}

/** Returns the seconds that a key was made for; 0 if it was to have no end. */
function lifetimeOf({ lifetime_seconds: seconds, created_at: createdAt, expires_at: end }: LockedKey): number {
  if (seconds !== null) return Number(seconds);
  return end ? Math.ceil((end.getTime() - createdAt.getTime()) / 1000) : 0;
}

/** Ends a key: revokes it, or makes it expire after some seconds if it does not expire sooner. Throws NOT_FOUND. */
async function endKey(tx: Transaction, tenantId: string, keyId: string, graceSeconds: number): Promise<void> {
  const { rows } = await tx.query<{ hash: string }>(
    `UPDATE api_keys SET revoked_at = CASE WHEN $3 = 0 THEN now() END,
       expires_at = CASE WHEN $3 = 0 THEN expires_at ELSE least(expires_at, now() + $3 * interval '1 second') END
     WHERE tenant_id = $1 AND key_id = $2 AND device_id IS NULL AND revoked_at IS NULL
     RETURNING encode(key_hash, 'hex') AS hash`,
    [tenantId, keyId, graceSeconds],
  );
  if (!rows[0]) throw notFound('API key');
  // Caches and streams that use the key learn that it ends.
  await notifyRevoked(tx, [rows[0].hash]);
}

function toApiKey(row: KeyRow): MessageInitShape<typeof ApiKeySchema> {
  return {
    keyId: row.key_id,
    name: row.name,
    prefix: row.prefix,
    last4: row.last4,
    scopes: row.scopes,
    ipAllowlist: row.ip_allowlist,
    createdAt: timestampFromDate(row.created_at),
    expiresAt: row.expires_at ? timestampFromDate(row.expires_at) : undefined,
    lastUsedAt: row.last_used_at ? timestampFromDate(row.last_used_at) : undefined,
  };
}
