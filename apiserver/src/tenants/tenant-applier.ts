// Applies Tenant manifests: the tenant's row and its first administrator.
import { isDeepStrictEqual } from 'node:util';
import { create } from '@bufbuild/protobuf';
import type { ObjectMeta } from '@kellet/proto/es/kellet/control/v1/control_pb';
import { QuotasSchema, TenantDefaultsSchema } from '@kellet/proto/es/kellet/v1/auth_pb';
import { RefusalError, type Applied, type Applier, type LastStep, type Refusal } from '../control/applier.ts';
import { takeUp } from '../control/applied-versions.ts';
import { inManifest } from '../control/field-names.ts';
import { requestOf, type Specs } from '../control/manifest-mapping.ts';
import type { Database, Transaction } from '../platform/database/database.ts';
import { KelletError, sqlState } from '../platform/errors.ts';
import { textField } from '../platform/fields.ts';
import { newId } from '../platform/ids.ts';
import type { Platform } from '../config/module.ts';
import { checkAllowlist } from '../platform/address-ranges.ts';
import { checkNewPassword, hashPassword } from '../auth/accounts/passwords.ts';
import { findUserId, insertUser } from '../auth/accounts/account-store.ts';
import { revokeCredentials } from '../auth/credentials/credential-store.ts';
import {
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
  holdTenant,
  markDeleted,
  noteApplied,
  notifyTenantChanged,
  quotasJson,
  updateTenant,
  type TenantField,
  type TenantSettings,
} from './tenant-store.ts';

type TenantSpec = Specs['Tenant'];

interface Observed {
  readonly adminUserId: string;
}

/**
 * Applies Tenant manifests. A field that the API has changed since the manifest was applied keeps its value until the
 * manifest changes that field.
 */
export class TenantApplier implements Applier<TenantSpec, Observed> {
  private readonly database: Database;

  constructor(platform: Pick<Platform, 'database'>) {
    this.database = platform.database;
  }

  /**
   * Writes the tenant, and creates its administrator if the account is missing; an existing account keeps its password.
   */
  async apply(meta: ObjectMeta, spec: TenantSpec, last?: LastStep): Promise<Applied<Observed>> {
    const id = meta.tenantId;
    try {
      if (!tenantIdForm.test(id)) throw new RefusalError('InvalidSpec', 'the name must be a DNS label');
      const settings = settingsOf(meta, spec);
      const passwordHash = await this.administratorHash(meta, spec);
      const adminUserId = await this.database.system(async (tx) => {
        await takeUp(tx, 'Tenant', meta);
        await writeTenant(tx, id, spec.namespace || `kellet-${id}`, settings);
        const userId = await makeAdministrator(tx, id, spec.adminEmail ?? '', passwordHash);
        await last?.(tx);
        return userId;
      });
      return { id, observed: { adminUserId } };
    } catch (error) {
      const refusal = refusalOf(error);
      if (!refusal) throw error;
      return { id, refusal };
    }
  }

  /**
   * Marks the tenant deleted and revokes all its credentials. Its data stays until it is exported, and its id is never
   * reused.
   */
  async remove(meta: ObjectMeta, _detach: boolean): Promise<Refusal | undefined> {
    const id = meta.tenantId;
    await this.database.system(async (tx) => {
      if (!(await markDeleted(tx, id))) return;
      await revokeCredentials(tx, id);
      // Every gateway evicts the tenant's callers and checks its open streams again.
      await notifyTenantChanged(tx, id);
    });
    return undefined;
  }

  /** Hashes the administrator's password outside the transaction, and only if the account must be created. */
  private async administratorHash({ tenantId, intentId }: ObjectMeta, spec: TenantSpec): Promise<string | undefined> {
    const { adminEmail = '', adminPassword = '' } = spec;
    if (adminEmail === '') return undefined;
    textField('adminEmail', adminEmail, { maximum: 254 });
    if (!/^[^\s@]+@[^\s@]+$/.test(adminEmail)) {
      throw new RefusalError('InvalidSpec', 'adminEmail must be an e-mail address');
    }
    const existing = await this.database.system((tx) => findUserId(tx, tenantId, adminEmail));
    if (existing !== undefined) return undefined;
    if (adminPassword === '' && intentId !== '') {
      // Created by a request, which applies the resource itself.
      throw new RefusalError('ReferenceNotReady', 'waiting for the request that creates the tenant');
    }
    if (adminPassword === '') {
      throw new RefusalError('InvalidSpec', 'adminPasswordSecretRef is required to create the account of adminEmail');
    }
    checkNewPassword(adminPassword);
    return hashPassword(adminPassword);
  }
}

/** Returns the checked settings of a manifest. Throws INVALID_ARGUMENT or a RefusalError. */
function settingsOf(meta: ObjectMeta, spec: TenantSpec): TenantSettings {
  const request = requestOf('Tenant', spec);
  const { quotas = create(QuotasSchema), defaults = create(TenantDefaultsSchema), ...stated } = request;
  checkQuotas(quotas);
  checkDefaults(defaults);
  checkRateLimit(stated.rateLimitPerMinute);
  checkAllowlist('ipAllowlist', stated.ipAllowlist);
  checkSigningKeys(stated.trustedSigningKeys);
  checkRetention(stated.retentionDays);
  return {
    name: textField('name', stated.name || meta.displayName || meta.tenantId, { maximum: 128 }),
    rate_limit_per_minute: stated.rateLimitPerMinute || defaultRateLimitPerMinute,
    quotas: quotasJson(quotas),
    defaults: defaultsJson(defaults),
    ip_allowlist: stated.ipAllowlist,
    mfa_required: stated.mfaRequired,
    trusted_signing_keys: stated.trustedSigningKeys,
    retention_days: stated.retentionDays,
  };
}

async function writeTenant(tx: Transaction, tenantId: string, namespace: string, settings: TenantSettings) {
  const before = await holdTenant(tx, tenantId, settings.name, namespace);
  if (before.deleted) {
    throw new RefusalError('Terminated', `the tenant ${tenantId} was deleted; its id cannot be reused`);
  }
  const changed = changedSettings(before.applied, settings);
  if (Object.keys(changed).length > 0) await updateTenant(tx, tenantId, changed);
  if (before.namespace !== namespace || Object.keys(changed).length > 0) {
    await noteApplied(tx, tenantId, namespace, settings);
  }
}

/** Returns the settings of a manifest that differ from those of the manifest applied last. */
export function changedSettings(
  applied: Readonly<Record<string, unknown>>,
  settings: TenantSettings,
): Partial<TenantSettings> {
  const changed = Object.entries(settings).filter(
    ([field, value]) => !isDeepStrictEqual(applied[field as TenantField], value),
  );
  return Object.fromEntries(changed);
}

async function makeAdministrator(
  tx: Transaction,
  tenantId: string,
  email: string,
  passwordHash: string | undefined,
): Promise<string> {
  if (email === '') return '';
  if (passwordHash !== undefined) {
    const user = { userId: newId(), tenantId, email, name: '', role: 'tenant_admin', disabled: false } as const;
    const made = await insertUser(tx, { ...user, passwordHash });
    if (made) return made.user_id;
  }
  return (await findUserId(tx, tenantId, email)) ?? '';
}

function refusalOf(error: unknown): Refusal | undefined {
  if (error instanceof RefusalError) return { reason: error.reason, message: error.message };
  if (error instanceof KelletError && ['INVALID_ARGUMENT', 'FAILED_PRECONDITION'].includes(error.code)) {
    return { reason: 'InvalidSpec', message: inManifest('Tenant', error.message) };
  }
  if (sqlState(error) === '23505') {
    return { reason: 'InvalidSpec', message: 'the namespace belongs to another tenant' };
  }
  return undefined;
}
