// SQL of claims.
import type { CredentialType } from '../../auth/credentials/device-proof.ts';
import type { Transaction } from '../../platform/database/database.ts';
import { rowsOf } from '../../platform/statements/index-plans.ts';
import { tenantExists, tenantNotPurged } from '../../policies/tenant-reader.ts';
import type { RegisteredKey } from './provision-key.ts';

/** The columns of a key's template that a claim needs. */
export interface ClaimTemplateRow {
  tenant_id: string;
  template_id: string;
  namespace: string;
  resource_name: string;
  profile_id: string;
  hardware_id_pattern: string;
  one_time: boolean;
  expires_in_seconds: number | null;
  credential_type: CredentialType;
  default_group_ids: string[];
  enabled: boolean;
  first_seen_at: Date;
  used_by_hardware_id: string | null;
  now: Date;
}

/**
 * Returns for each hash the tenants whose manifests name it, in the order in which they did, deleted ones last.
 * Works across tenants.
 */
export async function findKeys(tx: Transaction, keyHashes: readonly Buffer[]): Promise<RegisteredKey[][]> {
  const { rows } = await tx.query<RegisteredKey & { place: bigint }>(
    `SELECT given.place, found.tenant_id, found.key_hash, found.binding
     FROM ${rowsOf('$1::bytea[]')} AS given (key_hash, place), LATERAL (
       SELECT k.tenant_id, k.key_hash, k.binding, k.first_seen_at, ${tenantExists('k')} AS is_living
       FROM provision_keys k WHERE k.key_hash = given.key_hash AND ${tenantNotPurged('k')}
     ) AS found
     ORDER BY given.place, found.is_living DESC, found.first_seen_at, found.tenant_id`,
    [keyHashes],
  );
  const byPlace = Map.groupBy(rows, ({ place }) => Number(place));
  return keyHashes.map((_hash, index) => byPlace.get(index + 1) ?? []);
}

const selectTemplate = `SELECT t.tenant_id, t.template_id, t.namespace, t.resource_name, t.profile_id,
    t.hardware_id_pattern, t.one_time, t.expires_in_seconds, t.credential_type, t.default_group_ids, t.enabled,
    k.first_seen_at, k.used_by_hardware_id, clock_timestamp() AS now
  FROM provisioning_templates t
  JOIN profiles p ON p.tenant_id = t.tenant_id AND p.profile_id = t.profile_id
  JOIN provision_keys k ON k.tenant_id = t.tenant_id AND k.key_hash = t.key_hash
  WHERE t.tenant_id = $1 AND t.key_hash = $2 AND t.detached_at IS NULL`;

/** Returns the template of a key, or undefined. */
export async function findClaimTemplate(
  tx: Transaction,
  tenantId: string,
  keyHash: Buffer,
): Promise<ClaimTemplateRow | undefined> {
  const { rows } = await tx.query<ClaimTemplateRow>(selectTemplate, [tenantId, keyHash]);
  return rows[0];
}

/**
 * Returns the template of a one-time key, or undefined. The key is locked until the transaction ends, so that concurrent
 * claims with it see its use.
 */
export async function lockClaimTemplate(
  tx: Transaction,
  tenantId: string,
  keyHash: Buffer,
): Promise<ClaimTemplateRow | undefined> {
  const { rows } = await tx.query<ClaimTemplateRow>(`${selectTemplate} FOR UPDATE OF k`, [tenantId, keyHash]);
  return rows[0];
}

/** Marks a key as used by the device with this hardware id. lockClaimTemplate has locked the key. */
export async function markKeyUsed(
  tx: Transaction,
  tenantId: string,
  keyHash: Buffer,
  hardwareId: string,
): Promise<void> {
  await tx.query(
    `UPDATE provision_keys SET used_at = clock_timestamp(), used_by_hardware_id = $3
     WHERE tenant_id = $1 AND key_hash = $2`,
    [tenantId, keyHash, hardwareId],
  );
}

/** Counts a device created with a template, in a slot that the connections of a process rarely share. */
export async function countClaim(tx: Transaction, tenantId: string, templateId: string): Promise<void> {
  await tx.query(
    `INSERT INTO provisioning_claims AS held (tenant_id, template_id, slot, claims)
     VALUES ($1, $2, pg_backend_pid() % 64, 1)
     ON CONFLICT (tenant_id, template_id, slot) DO UPDATE SET claims = held.claims + 1`,
    [tenantId, templateId],
  );
}
