// The handlers of `auth/sso/providers`.
import type { MessageInitShape } from '@bufbuild/protobuf';
import { timestampFromDate } from '@bufbuild/protobuf/wkt';
import type { AuthService, SsoProviderSchema } from '@kellet/proto/es/kellet/v1/auth_pb';
import type { Transaction } from '../../platform/database/database.ts';
import { checkRoom } from '../../platform/database/number-limits.ts';
import { alreadyExists, notFound } from '../../platform/errors.ts';
import type { OutboundGuard } from '../../platform/outbound/outbound-guard.ts';
import { textField, updatedFields } from '../../platform/requests/fields.ts';
import type { Caller, Implementation } from '../../platform/rpc.ts';
import type { SealedSecrets } from '../../platform/sealed-secrets.ts';
import { listSized } from '../../platform/statements/sized-rows.ts';
import { refuseLimitedKey } from '../api-keys/key-limits.ts';
import type { AuthPlatform } from '../credentials/auth-platform.ts';
import { domainsField, issuerField, mappingField, nameOfIssuer, providerName } from './provider-fields.ts';
import {
  deleteProvider,
  findProvider,
  forgetIdentities,
  insertProvider,
  listProviders,
  providerLimit,
  type ProviderRow,
  updateProvider,
} from './provider-store.ts';

/** Pages of more providers take turns: each may have 400 KB. */
const smallPage = 1;

const updatable = ['issuer', 'client_id', 'client_secret', 'allowed_domains', 'role_mapping'] as const;

/** Returns the owner to which a sealed client secret is bound. */
export const secretOwner = (tenantId: string, provider: string): string => `${tenantId}/${provider}`;

/** Returns the owner to which a sealed ID token is bound. */
export const idTokenOwner = (tenantId: string, userId: string): string => `${tenantId}/${userId}`;

/**
 * Returns the handlers. A provider decides who signs in, with any role, so a caller who can name one could sign in as any user:
 * the contract requires every scope (Access.every_scope).
 */
export function providerHandlers(
  platform: AuthPlatform,
  guard: OutboundGuard,
  secrets: SealedSecrets,
): Implementation<typeof AuthService> {
  const { database, logger, paging } = platform;
  const seal = (tenantId: string, provider: string, secret: string): string =>
    secrets.seal(secretOwner(tenantId, provider), textField('client_secret', secret, { minimum: 1, maximum: 1024 }));
  const noted = (caller: Caller, provider: string, what: string): void =>
    logger.info({ tenant: caller.tenantId, provider, by: caller.name }, `${what} a provider for single sign-on`);

  return {
    createSsoProvider: async (request, { tenantId, caller }) => {
      const issuer = issuerField(request.issuer, guard);
      const provider = providerName(request.provider || nameOfIssuer(issuer));
      const made = {
        ...{ tenant_id: tenantId, provider, issuer },
        client_id: textField('client_id', request.clientId, { minimum: 1, maximum: 512 }),
        client_secret: seal(tenantId, provider, request.clientSecret),
        allowed_domains: domainsField(request.allowedDomains),
        role_mapping: mappingField(request.roleMapping),
      };
      const row = await database.tenant(tenantId, async (tx) => {
        await checkRoom(tx, [tenantId], providerLimit);
        await refuseLimitedKey(tx, caller);
        return insertProvider(tx, made);
      });
      if (!row) throw alreadyExists(`a provider named ${JSON.stringify(provider)} already exists`);
      noted(caller, provider, 'created');
      return toProvider(row);
    },

    getSsoProvider: async (request, { tenantId }) =>
      toProvider(await database.read(tenantId, (tx) => found(tx, tenantId, request.provider))),

    listSsoProviders: async (request, { tenantId }) => {
      const { items: providers, nextPageToken } = await listSized({ database, paging }, request, {
        scope: [tenantId, 'sso-providers'],
        smallPage,
        cursorOf: (row: ProviderRow) => row.provider,
        read: (tx, after, room) => listProviders(tx, tenantId, after, room),
        toItem: toProvider,
      });
      return { providers, nextPageToken };
    },

    updateSsoProvider: async (request, { tenantId, caller }) => {
      const fields = updatedFields(request.updateMask, updatable);
      const { provider, clientId = '', clientSecret = '', issuer = '' } = request;
      const changes = {
        ...(fields.has('issuer') ? { issuer: issuerField(issuer, guard) } : {}),
        ...(fields.has('client_id')
          ? { client_id: textField('client_id', clientId, { minimum: 1, maximum: 512 }) }
          : {}),
        ...(fields.has('client_secret') ? { client_secret: seal(tenantId, provider, clientSecret) } : {}),
        ...(fields.has('allowed_domains') ? { allowed_domains: domainsField(request.allowedDomains) } : {}),
        ...(fields.has('role_mapping') ? { role_mapping: mappingField(request.roleMapping) } : {}),
      };
      const row = await database.tenant(tenantId, async (tx) => {
        const before = await found(tx, tenantId, provider, 'FOR UPDATE');
        await refuseLimitedKey(tx, caller);
        // The ids of another issuer belong to other people, even if they are the same.
        if (changes.issuer !== undefined && changes.issuer !== before.issuer)
          await forgetIdentities(tx, tenantId, provider);
        return updateProvider(tx, { ...before, ...changes });
      });
      noted(caller, provider, 'changed');
      return toProvider(row);
    },

    deleteSsoProvider: async ({ provider }, { tenantId, caller }) => {
      if (!(await database.tenant(tenantId, (tx) => deleteProvider(tx, tenantId, provider))))
        throw notFound('provider');
      noted(caller, provider, 'deleted');
      return {};
    },
  };
}

async function found(
  tx: Transaction,
  tenantId: string,
  provider: string,
  lock: '' | 'FOR UPDATE' = '',
): Promise<ProviderRow> {
  const row = provider.includes('\0') ? undefined : await findProvider(tx, tenantId, provider, lock);
  if (!row) throw notFound('provider');
  return row;
}

/** Converts a row to the public message, without the secret. */
function toProvider(row: ProviderRow): MessageInitShape<typeof SsoProviderSchema> {
  return {
    provider: row.provider,
    issuer: row.issuer,
    clientId: row.client_id,
    allowedDomains: row.allowed_domains,
    roleMapping: row.role_mapping,
    createdAt: timestampFromDate(row.created_at),
    updatedAt: timestampFromDate(row.updated_at),
  };
}
