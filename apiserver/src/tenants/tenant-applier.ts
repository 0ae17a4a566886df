// Applies Tenant manifests: the tenant's row and its first administrator.
import { isDeepStrictEqual } from 'node:util';
import { create } from '@bufbuild/protobuf';
import type { ObjectMeta } from '@kellet/proto/es/kellet/control/v1/control_pb';
import { QuotasSchema, TenantDefaultsSchema } from '@kellet/proto/es/kellet/v1/auth_pb';
import { findUserId, hasAdministrator, insertUser } from '../auth/accounts/account-store.ts';
import { checkNewPassword } from '../auth/accounts/password-policy.ts';
import { hashPassword } from '../auth/accounts/passwords.ts';
import type { Config } from '../config/config.ts';
import type { Platform } from '../config/module.ts';
import { takeUp } from '../control/applied-versions.ts';
import { type Applied, type Applier, type LastStep, type Refusal, RefusalError } from '../control/applier.ts';
import { notifyChanged } from '../control/changes.ts';
import { inManifest } from '../control/field-names.ts';
import { requestOf, type Specs } from '../control/manifest-mapping.ts';
import { checkAllowlist } from '../platform/addresses/address-ranges.ts';
import { systemFacts } from '../platform/audit/audit-event.ts';
import type { AuditTrail } from '../platform/audit/audit-trail.ts';
import type { Database, Transaction } from '../platform/database/database.ts';
import { KelletError, sqlState } from '../platform/errors.ts';
import { newId } from '../platform/ids.ts';
import { textField } from '../platform/requests/fields.ts';
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
  appliedOf,
  type AppliedTenant,
  confirmNamespace,
  defaultsJson,
  deletionOf,
  holdDeletion,
  holdTenant,
  markDeleted,
  noteApplied,
  quotasJson,
  type TenantField,
  type TenantSettings,
  updateTenant,
  withdrawNamespace,
} from './tenant-store.ts';

type TenantSpec = Specs['Tenant'];

interface Observed {
  readonly adminUserId: string;
}

interface ApplierParts extends Pick<Platform, 'database'> {
  readonly audit: Pick<AuditTrail, 'within'>;
  readonly config: Pick<Config, 'tenantGraceDays' | 'passwordStrength'>;
}

/**
 * Applies Tenant manifests. A field that the API has changed since the manifest was applied keeps its value until the
 * manifest changes that field.
 */
export class TenantApplier implements Applier<TenantSpec, Observed> {
  private readonly database: Database;
  private readonly audit: Pick<AuditTrail, 'within'>;
  private readonly settings: Pick<Config, 'tenantGraceDays' | 'passwordStrength'>;

  constructor({ database, audit, config }: ApplierParts) {
    this.database = database;
    this.audit = audit;
    this.settings = config;
  }

  /**
   * Writes the tenant, and creates its administrator when the manifest begins to name one; an existing account keeps its password,
   * and one that was deleted stays deleted. The spec states the namespace that the operator has found to be the tenant's; without
   * one, as of a request, the namespace is only planned.
   * An empty one states that the tenant has none now, and nothing else is applied.
   */
  async apply(meta: ObjectMeta, spec: TenantSpec, last?: LastStep): Promise<Applied<Observed>> {
    const id = meta.tenantId;
    try {
      if (!tenantIdForm.test(id)) throw new RefusalError('InvalidSpec', 'the name must be a DNS label');
      if (spec.namespace === '') {
        await this.database.system((tx) => withdraw(tx, meta));
        return { id };
      }
      const settings = settingsOf(meta, spec);
      const passwordHash = await this.administratorHash(meta, spec);
      const adminUserId = await this.database.system(async (tx) => {
        await takeUp(tx, 'Tenant', meta);
        const administrator = { email: spec.adminEmail ?? '', passwordHash };
        const userId = await this.writeTenant(tx, id, spec.namespace, settings, administrator);
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

  /** Writes what a manifest says, and returns the id of its administrator; empty if there is no such account. */
  private async writeTenant(
    tx: Transaction,
    tenantId: string,
    namespace: string | undefined,
    settings: TenantSettings,
    { email, passwordHash }: Administrator,
  ): Promise<string> {
    const before = await holdTenant(tx, tenantId, settings.name, namespace ?? `kellet-${tenantId}`);
    if (before.purged_at) {
      throw new RefusalError('Terminated', `the tenant ${tenantId} was deleted; its id cannot be reused`);
    }
    if (before.deleted_at) throw new RefusalError('TenantDeleted', deletedMessage(tenantId, before.purge_at));
    const changed = changedSettings(before.applied, settings);
    const isChanged = Object.keys(changed).length > 0;
    if (isChanged) await updateTenant(tx, tenantId, changed);
    const isMissing = await lacksAdministrator(tx, tenantId, before.applied, email);
    if (isMissing && passwordHash !== undefined) {
      const user = { userId: newId(), tenantId, email, name: '', role: 'tenant_admin', disabled: false } as const;
      await insertUser(tx, { ...user, passwordHash });
      const resource = { kind: 'user', id: user.userId };
      await this.audit.within(tx, { ...systemFacts('auth.tenant_administrator_created', resource), tenantId });
    }
    const named = isMissing && passwordHash === undefined ? before.applied.admin_email : email;
    if (isChanged || named !== before.applied.admin_email) {
      await noteApplied(tx, tenantId, { ...settings, ...(named !== undefined && { admin_email: named }) });
    }
    const isConfirmed = before.namespace_confirmed && before.namespace === namespace;
    if (namespace !== undefined && !isConfirmed) await confirmNamespace(tx, tenantId, namespace);
    return email === '' ? '' : ((await findUserId(tx, tenantId, email)) ?? '');
  }

  /**
   * Deletes the tenant, as DELETE tenants/{tenant_id} does, and refuses the removal of its resource until its data has
   * been purged: with the resource, its namespace would go. The deletion of a resource that was undone by restoring the
   * tenant is refused too. With `detach` the tenant has no namespace any more.
   */
  async remove({ tenantId: id, uid }: ObjectMeta, detach: boolean): Promise<Refusal | undefined> {
    return this.database.system(async (tx) => {
      const deletion = await holdDeletion(tx, id);
      if (!deletion || deletion.purged_at) return undefined;
      if (detach) await withdrawNamespace(tx, id);
      if (!deletion.deleted_at && uid !== '' && deletion.restored_resource_uid === uid) {
        return { reason: 'TenantRestored', message: `the tenant ${id} was restored; its resource is kept as it is` };
      }
      const purgeAt = deletion.purge_at ?? (await markDeleted(tx, id, this.settings.tenantGraceDays));
      return { reason: 'TenantDeleted', message: deletedMessage(id, purgeAt) };
    });
  }

  /** Marks the tenant deleted. Deleting it again changes nothing. */
  async markDeleted(tenantId: string): Promise<void> {
    await this.database.system(async (tx) => {
      await markDeleted(tx, tenantId, this.settings.tenantGraceDays);
      await notifyChanged(tx, 'Tenant', tenantId, '', tenantId);
    });
  }

  /** Hashes the administrator's password outside the transaction, and only if the account must be created. */
  private async administratorHash({ tenantId, intentId }: ObjectMeta, spec: TenantSpec): Promise<string | undefined> {
    const { adminEmail = '', adminPassword = '' } = spec;
    if (adminEmail === '') return undefined;
    textField('adminEmail', adminEmail, { maximum: 254 });
    if (!/^[^\s@]+@[^\s@]+$/.test(adminEmail)) {
      throw new RefusalError('InvalidSpec', 'adminEmail must be an e-mail address');
    }
    const isMissing = await this.database.systemRead(async (tx) =>
      lacksAdministrator(tx, tenantId, await appliedOf(tx, tenantId), adminEmail),
    );
    if (!isMissing) return undefined;
    if (adminPassword === '' && intentId !== '') {
      // Created by a request, which applies the resource itself.
      throw new RefusalError('ReferenceNotReady', 'waiting for the request that creates the tenant');
    }
    if (adminPassword === '') {
      throw new RefusalError('InvalidSpec', 'adminPasswordSecretRef is required to create the account of adminEmail');
    }
    await checkNewPassword(adminPassword, this.settings, { words: [adminEmail, tenantId], owner: tenantId });
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
  checkBatchSeconds(stated.batchSeconds);
  return {
    name: textField('name', stated.name || meta.displayName || meta.tenantId, { maximum: 128 }),
    rate_limit_per_minute: stated.rateLimitPerMinute || defaultRateLimitPerMinute,
    quotas: quotasJson(quotas),
    defaults: defaultsJson(defaults),
    ip_allowlist: stated.ipAllowlist,
    mfa_required: stated.mfaRequired,
    trusted_signing_keys: stated.trustedSigningKeys,
    retention_days: stated.retentionDays,
    batch_seconds: stated.batchSeconds,
  };
}

async function withdraw(tx: Transaction, meta: ObjectMeta): Promise<void> {
  const deletion = await deletionOf(tx, meta.tenantId);
  if (!deletion || deletion.purged_at) return;
  await takeUp(tx, 'Tenant', meta);
  await withdrawNamespace(tx, meta.tenantId);
}

/** The administrator that a manifest names. */
interface Administrator {
  /** Empty if there is none. */
  readonly email: string;
  /** Undefined if the account need not be created. */
  readonly passwordHash: string | undefined;
}

/**
 * Reports whether the account of the administrator has to be created: only when the manifest begins to name it. The operator applies
 * manifests again and again, and somebody whose account was deleted may know the password that they refer to. Manifests that an
 * earlier release has applied have not begun to, if the tenant has any administrator.
 */
async function lacksAdministrator(
  tx: Transaction,
  tenantId: string,
  { admin_email: before }: AppliedTenant['applied'],
  email: string,
): Promise<boolean> {
  if (email === '' || before?.toLowerCase() === email.toLowerCase()) return false;
  if (before === undefined && (await hasAdministrator(tx, tenantId))) return false;
  return (await findUserId(tx, tenantId, email)) === undefined;
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

const deletedMessage = (tenantId: string, purgeAt: Date | null | undefined): string =>
  `the tenant ${tenantId} is deleted, and its data will be purged at ${purgeAt?.toISOString() ?? 'any time'}; ` +
  `until then POST /api/v1/tenants/${tenantId}/restore undoes this`;

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
