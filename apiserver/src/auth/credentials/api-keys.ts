// API keys of service accounts: limited to their creator's scopes, listed without their secret, revoked permanently.
import { timestampFromDate } from '@bufbuild/protobuf/wkt';
import type { MessageInitShape } from '@bufbuild/protobuf';
import type { ApiKeySchema, AuthService } from '@kellet/proto/es/kellet/v1/auth_pb';
import { invalidArgument, notFound, permissionDenied } from '../../platform/errors.ts';
import { idField, textField } from '../../platform/fields.ts';
import { newId } from '../../platform/ids.ts';
import type { AuthPlatform } from './auth-platform.ts';
import type { Implementation } from '../../platform/rpc.ts';
import { mintKey } from './api-key-format.ts';
import { checkAllowlist } from '../../platform/address-ranges.ts';
import { limitsOf, limitsOfNewKey } from './key-limits.ts';
import type { LastUsed } from './last-used.ts';
import { notifyRevoked } from './revocations.ts';
import { grantBeyond, type Grant, type Rights } from './rights.ts';
import { scopeAreas, unknownScopes } from './roles.ts';

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
      const { key, hash, prefix, last4 } = mintKey();
      const row = await database.tenant(tenantId, async (tx) => {
        const maker = await limitsOf(tx, caller);
        const { ipAllowlist, expiresAt } = limitsOfNewKey(request, maker, caller.ipAllowlist, clock.now());
        const end = expiresAt === undefined ? null : new Date(expiresAt);
        const { rows } = await tx.query<KeyRow>(
          `INSERT INTO api_keys (key_id, tenant_id, name, key_hash, prefix, last4, scopes, ip_allowlist, expires_at)
           VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) RETURNING ${keyColumns}`,
          [newId(), tenantId, name, hash, prefix, last4, [...new Set(request.scopes)], ipAllowlist, end],
        );
        return rows[0]!;
      });
      return { ...toApiKey(row), apiKey: key };
    },

    listApiKeys: async (request, { tenantId }) => {
      const scope = [tenantId, 'api-keys'];
      const page = paging.open<string>(request, scope);
      await lastUsed.write();
      const { rows } = await database.read(tenantId, (tx) =>
        tx.query<KeyRow>(
          `SELECT ${keyColumns} FROM api_keys
           WHERE tenant_id = $1 AND device_id IS NULL AND revoked_at IS NULL AND ($2::uuid IS NULL OR key_id > $2)
           ORDER BY key_id LIMIT $3`,
          [tenantId, page.after ?? null, page.size + 1],
        ),
      );
      const closed = paging.close(rows, page, scope, (row) => row.key_id);
      return { apiKeys: closed.rows.map(toApiKey), nextPageToken: closed.nextPageToken };
    },

    deleteApiKey: async (request, { tenantId }) => {
      const keyId = idField('API key', request.keyId);
      await database.tenant(tenantId, async (tx) => {
        const { rows } = await tx.query<{ hash: string }>(
          `UPDATE api_keys SET revoked_at = now()
           WHERE tenant_id = $1 AND key_id = $2 AND device_id IS NULL AND revoked_at IS NULL
           RETURNING encode(key_hash, 'hex') AS hash`,
          [tenantId, keyId],
        );
        if (!rows[0]) throw notFound('API key');
        await notifyRevoked(tx, [rows[0].hash]);
      });
      return {};
    },
  };
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
