// SQL of provisioning templates and their keys.
import type { ObjectMeta } from '@kellet/proto/es/kellet/control/v1/control_pb.ts';
import type { CredentialType } from '../../auth/credentials/device-proof.ts';
import { RefusalError } from '../../control/applier.ts';
import type { Transaction } from '../../platform/database/database.ts';
import { sqlState } from '../../platform/errors.ts';

/** A template with its current key. */
export interface TemplateRow {
  template_id: string;
  namespace: string;
  resource_name: string;
  name: string;
  profile_id: string;
  hardware_id_pattern: string;
  one_time: boolean;
  expires_in_seconds: number | null;
  credential_type: CredentialType;
  default_group_ids: string[];
  enabled: boolean;
  detached: boolean;
  key_hash: Buffer;
  first_seen_at: Date;
  used: boolean;
  claims: number;
  created_at: Date;
  updated_at: Date;
  /** The database's clock, which alone decides about expiry. */
  now: Date;
}

/** The fields of a template that the applier writes; its references have been resolved. */
export interface TemplateFields {
  readonly profileId: string;
  readonly hardwareIdPattern: string;
  readonly oneTime: boolean;
  /** 0: no expiry. */
  readonly expiresInSeconds: number;
  readonly credentialType: CredentialType;
  readonly defaultGroupIds: readonly string[];
  readonly enabled: boolean;
  readonly keyHash: Buffer;
}

/** Position after a page of templates: name and id. */
export type TemplateCursor = [name: string, id: string];

const select = `SELECT t.template_id, t.namespace, t.resource_name, t.name, t.profile_id, t.hardware_id_pattern, t.one_time,
    t.expires_in_seconds, t.credential_type, t.default_group_ids, t.enabled, t.detached_at IS NOT NULL AS detached, t.key_hash,
    k.first_seen_at, k.used_at IS NOT NULL AS used, t.created_at, t.updated_at, clock_timestamp() AS now,
    (SELECT coalesce(sum(c.claims), 0)::int4 FROM provisioning_claims c
     WHERE c.tenant_id = t.tenant_id AND c.template_id = t.template_id) AS claims
  FROM provisioning_templates t JOIN provision_keys k ON k.key_hash = t.key_hash AND k.tenant_id = t.tenant_id`;

/** Returns the template with this id, or undefined. */
export async function findTemplate(
  tx: Transaction,
  tenantId: string,
  templateId: string,
): Promise<TemplateRow | undefined> {
  const { rows } = await tx.query<TemplateRow>(`${select} WHERE t.tenant_id = $1 AND t.template_id = $2`, [
    tenantId,
    templateId,
  ]);
  return rows[0];
}

/** Returns a template with this name, or undefined. */
export async function findTemplateByName(
  tx: Transaction,
  tenantId: string,
  name: string,
): Promise<TemplateRow | undefined> {
  const { rows } = await tx.query<TemplateRow>(`${select} WHERE t.tenant_id = $1 AND t.name COLLATE "C" = $2 LIMIT 1`, [
    tenantId,
    name,
  ]);
  return rows[0];
}

/** Returns templates ordered by name, after the cursor; with a profile, only its templates. */
export async function listTemplates(
  tx: Transaction,
  tenantId: string,
  limit: number,
  filter: { profileId?: string; after?: TemplateCursor | undefined },
): Promise<TemplateRow[]> {
  const { rows } = await tx.query<TemplateRow>(
    `${select} WHERE t.tenant_id = $1 AND ($2::uuid IS NULL OR t.profile_id = $2)
       AND ($3::text IS NULL OR (t.name COLLATE "C", t.template_id) > ($3, $4::uuid))
     ORDER BY t.name COLLATE "C", t.template_id LIMIT $5`,
    [tenantId, filter.profileId ?? null, filter.after?.[0] ?? null, filter.after?.[1] ?? null, limit],
  );
  return rows;
}

/** Describes which templates name a device group as a default group; undefined if none does. */
export async function templatesOfGroup(
  tx: Transaction,
  tenantId: string,
  groupId: string,
): Promise<string | undefined> {
  const { rows } = await tx.query<{ name: string; templates: number }>(
    `SELECT name, count(*) OVER ()::int4 AS templates FROM provisioning_templates
     WHERE tenant_id = $1 AND $2::uuid = ANY(default_group_ids) AND detached_at IS NULL
     ORDER BY name COLLATE "C", template_id LIMIT 1`,
    [tenantId, groupId],
  );
  if (!rows[0]) return undefined;
  const { name, templates } = rows[0];
  const others = templates > 1 ? ` and ${templates - 1} more` : '';
  return `provisioning template ${JSON.stringify(name)}${others}`;
}

/**
 * Registers a key with a tenant, as first seen now unless the tenant had it before. A binding replaces the recorded
 * one; without one the recorded one stays. Throws the refusal InvalidSpec when a key new to the tenant has no binding,
 * because its hash may have been copied from another tenant's manifest.
 */
export async function registerKey(
  tx: Transaction,
  tenantId: string,
  keyHash: Buffer,
  binding: Buffer | undefined,
): Promise<void> {
  if (binding) {
    await tx.query(
      `INSERT INTO provision_keys AS held (key_hash, tenant_id, binding) VALUES ($1, $2, $3)
       ON CONFLICT (key_hash, tenant_id) DO UPDATE SET binding = excluded.binding
         WHERE held.binding IS DISTINCT FROM excluded.binding`,
      [keyHash, tenantId, binding],
    );
    return;
  }
  const known = await tx.query('SELECT FROM provision_keys WHERE key_hash = $1 AND tenant_id = $2', [
    keyHash,
    tenantId,
  ]);
  if (known.rowCount === 0) {
    throw new RefusalError(
      'InvalidSpec',
      `spec.keyBinding is required with spec.keySha256: the SHA-256 of the text kellet-provision-key:${tenantId}:<key>`,
    );
  }
}

/** Writes the row of a resource. Throws the refusal InvalidSpec when the key belongs to another template. */
export async function writeTemplate(
  tx: Transaction,
  templateId: string,
  meta: ObjectMeta,
  fields: TemplateFields,
): Promise<void> {
  try {
    await tx.query(
      `INSERT INTO provisioning_templates AS held
         (tenant_id, template_id, namespace, resource_name, name, profile_id, hardware_id_pattern, one_time,
          expires_in_seconds, credential_type, default_group_ids, enabled, key_hash)
       VALUES ($1, $2, $3, $4, $5, $6, $7, $8, nullif($9::int4, 0), $10, $11, $12, $13)
       ON CONFLICT (tenant_id, template_id) DO UPDATE
         SET namespace = excluded.namespace, name = excluded.name, profile_id = excluded.profile_id,
             hardware_id_pattern = excluded.hardware_id_pattern, one_time = excluded.one_time,
             expires_in_seconds = excluded.expires_in_seconds, credential_type = excluded.credential_type,
             default_group_ids = excluded.default_group_ids, enabled = excluded.enabled, key_hash = excluded.key_hash,
             detached_at = NULL, updated_at = now()
         WHERE (held.namespace, held.name, held.profile_id, held.hardware_id_pattern, held.one_time,
                held.expires_in_seconds, held.credential_type, held.default_group_ids, held.enabled, held.key_hash,
                held.detached_at)
               IS DISTINCT FROM
               (excluded.namespace, excluded.name, excluded.profile_id, excluded.hardware_id_pattern, excluded.one_time,
                excluded.expires_in_seconds, excluded.credential_type, excluded.default_group_ids, excluded.enabled,
                excluded.key_hash, NULL)`,
      [
        meta.tenantId,
        templateId,
        meta.namespace,
        meta.name,
        meta.displayName || meta.name,
        fields.profileId,
        fields.hardwareIdPattern,
        fields.oneTime,
        fields.expiresInSeconds,
        fields.credentialType,
        fields.defaultGroupIds,
        fields.enabled,
        fields.keyHash,
      ],
    );
  } catch (error) {
    if (sqlState(error) !== '23505') throw error;
    throw new RefusalError('InvalidSpec', 'this provision key opens another template: choose another one');
  }
}

/** Deletes a template. Its keys and the count of its claims stay, in case it is created again. */
export async function deleteTemplate(tx: Transaction, tenantId: string, templateId: string): Promise<void> {
  await tx.query('DELETE FROM provisioning_templates WHERE tenant_id = $1 AND template_id = $2', [
    tenantId,
    templateId,
  ]);
}

/** Marks a template whose namespace was deleted: it is still shown, but cannot be claimed with. */
export async function detachTemplate(tx: Transaction, tenantId: string, templateId: string): Promise<void> {
  await tx.query(
    `UPDATE provisioning_templates SET detached_at = now()
     WHERE tenant_id = $1 AND template_id = $2 AND detached_at IS NULL`,
    [tenantId, templateId],
  );
}

/** Returns the number of templates that use a profile. */
export async function countTemplatesOfProfile(tx: Transaction, tenantId: string, profileId: string): Promise<number> {
  const { rows } = await tx.query<{ templates: number }>(
    `SELECT count(*)::int4 AS templates FROM provisioning_templates WHERE tenant_id = $1 AND profile_id = $2`,
    [tenantId, profileId],
  );
  return rows[0]!.templates;
}
