// Tenants through the API: a tenant reads and changes itself, the platform administrator every tenant.
import { create } from '@bufbuild/protobuf';
import type { TenantSpec } from '@kellet/crds';
import {
  type AuthService,
  type CreateTenantRequest,
  QuotasSchema,
  TenantDefaultsSchema,
  TenantSchema,
  type TenantUsage,
  type UpdateOwnTenantRequest,
  type UpdateTenantRequest,
} from '@kellet/proto/es/kellet/v1/auth_pb';
import { checkNewPassword, type PasswordPolicy } from '../auth/accounts/password-policy.ts';
import type { AuthPlatform } from '../auth/credentials/auth-platform.ts';
import { refuseLosses } from '../auth/credentials/refuse-losses.ts';
import { emailField } from '../auth/users/users.ts';
import { checkAllowlist } from '../platform/addresses/address-ranges.ts';
import type { Database, Transaction } from '../platform/database/database.ts';
import { failedPrecondition, invalidArgument, notFound, permissionDenied } from '../platform/errors.ts';
import type { KubernetesObject } from '../platform/kubernetes/kubernetes.ts';
import { textField, updatedFields } from '../platform/requests/fields.ts';
import { mergedField } from '../platform/requests/merged-field.ts';
import type { Implementation } from '../platform/rpc.ts';
import { managedElsewhere } from './managed-settings.ts';
import type { TenantResources } from './tenant-resources.ts';
import {
  checkBatchSeconds,
  checkDefaults,
  checkQuotas,
  checkRateLimit,
  checkRetention,
  checkSigningKeys,
  defaultRateLimitPerMinute,
  tenantIdForm,
} from './tenant-settings.ts';
import {
  defaultsJson,
  findTenant,
  listTenants,
  quotasJson,
  setSuspended,
  type TenantField,
  type TenantRow,
  type TenantSettings,
  toTenant,
  updateTenant,
} from './tenant-store.ts';

const updatable = [
  'name',
  'rate_limit_per_minute',
  'quotas',
  'ip_allowlist',
  'mfa_required',
  'defaults',
  'trusted_signing_keys',
  'retention_days',
  'batch_seconds',
] as const satisfies readonly TenantField[];

/** The handlers of `tenant` and `tenants`. Tenants are created and deleted as Tenant resources. */
export function tenantHandlers(
  platform: AuthPlatform,
  resources: TenantResources,
  usageOf: (tenantId: string) => Promise<TenantUsage>,
): Implementation<typeof AuthService> {
  const { config, database, paging } = platform;
  const shown = async (row: TenantRow) => toTenant(row, await usageOf(row.tenant_id));
  return {
    createTenant: async (request, context) => {
      await checkNewTenant(request, config);
      const read = async (tx: Transaction) => found(await findTenant(tx, request.tenantId));
      return shown(await resources.create(request, context, read));
    },

    deleteTenant: async ({ tenantId }, { signal }) => {
      found(await database.systemRead((tx) => findTenant(tx, tenantId)));
      await resources.remove(tenantId, signal);
      return {};
    },

    restoreTenant: async ({ tenantId }, { signal }) => {
      found(await database.systemRead((tx) => findTenant(tx, tenantId)));
      await resources.restore(tenantId, signal);
      return shown(found(await database.systemRead((tx) => findTenant(tx, tenantId))));
    },

    suspendTenant: async ({ tenantId }) => shown(await suspend(database, tenantId, true)),

    unsuspendTenant: async ({ tenantId }) => shown(await suspend(database, tenantId, false)),

    getOwnTenant: async (_request, { tenantId }) => {
      const row = await database.read(tenantId, (tx) => findTenant(tx, tenantId));
      return shown(found(row));
    },

    updateOwnTenant: async (request, { tenantId, caller, signal }) => {
      const fields = updatedFields(request.updateMask, updatable);
      for (const field of ['rate_limit_per_minute', 'quotas'] as const) {
        if (fields.has(field)) throw permissionDenied(`${field} is set by the platform administrator only`);
      }
      const resource = fields.size > 0 ? await resources.governing(tenantId, signal) : undefined;
      const row = await database.tenant(tenantId, async (tx) => {
        const changed = await change(tx, tenantId, { request, fields, resource });
        // The Kubernetes API may have been slow.
        await refuseLosses(tx, caller);
        return changed;
      });
      return shown(found(row));
    },

    getTenant: async (request) => {
      const row = await database.systemRead((tx) => findTenant(tx, request.tenantId));
      return shown(found(row));
    },

    listTenants: async (request) => {
      const scope = ['', 'tenants'];
      const page = paging.open<string>(request, scope);
      const rows = await database.systemRead((tx) => listTenants(tx, page.after, page.size + 1));
      const closed = paging.close(rows, page, scope, (row) => row.tenant_id);
      return { tenants: closed.rows.map((row) => toTenant(row)), nextPageToken: closed.nextPageToken };
    },

    updateTenant: async (request, { signal }) => {
      const { tenantId } = request;
      const fields = updatedFields(request.updateMask, updatable);
      found(await database.systemRead((tx) => findTenant(tx, tenantId)));
      const resource = fields.size > 0 ? await resources.governing(tenantId, signal) : undefined;
      const row = await database.system((tx) => change(tx, tenantId, { request, fields, resource }));
      return shown(found(row));
    },
  };
}

/** Checks a new tenant before anything is written. Throws INVALID_ARGUMENT naming the field. */
async function checkNewTenant(request: CreateTenantRequest, policy: PasswordPolicy): Promise<void> {
  if (!tenantIdForm.test(request.tenantId)) {
    throw invalidArgument('tenant_id must be a DNS label of at most 56 characters');
  }
  textField('name', request.name, { maximum: 128 });
  checkRateLimit(request.rateLimitPerMinute);
  if (request.quotas) checkQuotas(request.quotas);
  checkAllowlist('ip_allowlist', request.ipAllowlist);
  if (request.defaults) checkDefaults(request.defaults);
  checkSigningKeys(request.trustedSigningKeys);
  checkRetention(request.retentionDays);
  checkBatchSeconds(request.batchSeconds);
  if (request.adminEmail === '') {
    if (request.adminPassword !== '') throw invalidArgument('admin_email is required with admin_password');
    return;
  }
  emailField(request.adminEmail, 'admin_email');
  const words = [request.adminEmail, request.tenantId, request.name];
  await checkNewPassword(request.adminPassword, policy, { field: 'admin_password', words });
}

/** Suspends a tenant or ends its suspension. Throws FAILED_PRECONDITION if it is deleted. */
const suspend = (database: Database, tenantId: string, suspended: boolean): Promise<TenantRow> =>
  database.system(async (tx) => {
    notDeleted(await findTenant(tx, tenantId, 'FOR UPDATE'));
    return notDeleted(await setSuspended(tx, tenantId, suspended));
  });

/** Returns the tenant. Throws NOT_FOUND if there is no such tenant, and FAILED_PRECONDITION if it is deleted. */
function notDeleted(row: TenantRow | undefined): TenantRow {
  if (found(row).deleted_at) throw failedPrecondition('the tenant is deleted: restore it first');
  return row!;
}

function found(row: TenantRow | undefined): TenantRow {
  if (!row) throw notFound('tenant');
  return row;
}

type TenantUpdate = UpdateTenantRequest | UpdateOwnTenantRequest;

/** A change that was asked for. */
interface AskedChange {
  readonly request: TenantUpdate;
  readonly fields: ReadonlySet<TenantField>;
  /** The Tenant resource, if it decides on settings. */
  readonly resource: KubernetesObject<TenantSpec> | undefined;
}

/**
 * Changes the fields of a tenant. Returns undefined if there is no such tenant. Throws FAILED_PRECONDITION if it is
 * deleted, or if another manager owns one of the fields in its resource.
 */
async function change(
  tx: Transaction,
  tenantId: string,
  { request, fields, resource }: AskedChange,
): Promise<TenantRow | undefined> {
  const row = await findTenant(tx, tenantId, 'FOR UPDATE');
  if (row) notDeleted(row);
  if (!row || fields.size === 0) return row;
  const settings = settingsOf(request, fields, row);
  const managed = resource && managedElsewhere(resource, row, settings);
  if (managed !== undefined) throw failedPrecondition(managed);
  return updateTenant(tx, tenantId, settings);
}

/** Returns the checked settings of a request. Throws INVALID_ARGUMENT naming the field. */
function settingsOf(request: TenantUpdate, fields: ReadonlySet<TenantField>, row: TenantRow): Partial<TenantSettings> {
  const mask = request.updateMask!;
  const before = create(TenantSchema, toTenant(row));
  const settings: { -readonly [Field in TenantField]?: TenantSettings[Field] } = {};
  if (fields.has('name')) settings.name = textField('name', request.name ?? '', { minimum: 1, maximum: 128 });
  if (fields.has('rate_limit_per_minute')) {
    checkRateLimit(request.rateLimitPerMinute ?? 0);
    settings.rate_limit_per_minute = request.rateLimitPerMinute || defaultRateLimitPerMinute;
  }
  if (fields.has('quotas')) {
    const values = { current: before.quotas, update: request.quotas };
    const quotas = mergedField(QuotasSchema, 'quotas', mask, values) ?? create(QuotasSchema);
    checkQuotas(quotas);
    settings.quotas = quotasJson(quotas);
  }
  if (fields.has('ip_allowlist')) {
    checkAllowlist('ip_allowlist', request.ipAllowlist);
    settings.ip_allowlist = request.ipAllowlist;
  }
  if (fields.has('mfa_required')) settings.mfa_required = request.mfaRequired ?? false;
  if (fields.has('defaults')) {
    const values = { current: before.defaults, update: request.defaults };
    const defaults = mergedField(TenantDefaultsSchema, 'defaults', mask, values) ?? create(TenantDefaultsSchema);
    checkDefaults(defaults);
    settings.defaults = defaultsJson(defaults);
  }
  if (fields.has('trusted_signing_keys')) {
    checkSigningKeys(request.trustedSigningKeys);
    settings.trusted_signing_keys = request.trustedSigningKeys;
  }
  if (fields.has('retention_days')) {
    settings.retention_days = request.retentionDays ?? 0;
    checkRetention(settings.retention_days);
  }
  if (fields.has('batch_seconds')) {
    settings.batch_seconds = request.batchSeconds ?? 0;
    checkBatchSeconds(settings.batch_seconds);
  }
  return settings;
}
