// Limits of a tenant's settings, the same for a manifest and for a request.
import { createPublicKey } from 'node:crypto';
import type { Quotas, TenantDefaults } from '@kellet/proto/es/kellet/v1/auth_pb';
import { invalidArgument } from '../platform/errors.ts';
import { textField, textMapField } from '../platform/requests/fields.ts';
import { maximumBatchSeconds } from '../policies/batch-seconds.ts';
import { checkAnchoringMode, checkOfflineAfter, checkOtaPolicy, checkTelemetrySchema } from '../policies/policies.ts';

/** Default of rate_limit_per_minute. */
export const defaultRateLimitPerMinute = 1000;

/** A tenant id: a DNS label of at most 56 characters, so that it fits in keys, subjects and namespaces. */
export const tenantIdForm = /^[a-z0-9]([-a-z0-9]{0,54}[a-z0-9])?$/;

/** Checks the defaults that devices inherit. Throws INVALID_ARGUMENT naming the field. */
export function checkDefaults(defaults: TenantDefaults): void {
  textMapField('defaults.tags', defaults.tags);
  if (defaults.telemetrySchema) checkTelemetrySchema('defaults.telemetry_schema', defaults.telemetrySchema);
  if (defaults.otaPolicy) checkOtaPolicy('defaults.ota_policy', defaults.otaPolicy);
  checkOfflineAfter('defaults.offline_after_seconds', defaults.offlineAfterSeconds);
  checkAnchoringMode('defaults.anchoring_policy.mode', defaults.anchoringPolicy?.mode);
}

/** Checks quotas. Throws INVALID_ARGUMENT naming the field. */
export function checkQuotas(quotas: Quotas): void {
  for (const [name, value] of [
    ['points_per_day', quotas.pointsPerDay],
    ['storage_bytes', quotas.storageBytes],
  ] as const) {
    // As in the custom resource definition.
    if (!Number.isSafeInteger(value) || value < 0) {
      throw invalidArgument(`quotas.${name} must be a whole number from 0 to ${Number.MAX_SAFE_INTEGER}`);
    }
  }
}

/** Checks a request rate. Throws INVALID_ARGUMENT naming the field. */
export function checkRateLimit(perMinute: number): void {
  if (perMinute > 10_000_000) throw invalidArgument('rate_limit_per_minute must be at most 10000000');
}

/** Checks how many days values are kept. Throws INVALID_ARGUMENT naming the field. */
export function checkRetention(days: number): void {
  if (days > 36_500) throw invalidArgument('retention_days must be at most 36500');
}

/** Checks the time after which batches are sealed. Throws INVALID_ARGUMENT naming the field. */
export function checkBatchSeconds(seconds: number): void {
  if (seconds > maximumBatchSeconds) throw invalidArgument(`batch_seconds must be at most ${maximumBatchSeconds}`);
}

/** As in the custom resource definition. Each key may have to be tried for each package, and what follows a key in PEM is ignored. */
const maximumSigningKeys = 16;
const maximumKeyCharacters = 1024;

/** Checks public keys for signatures of artifacts: Ed25519 in PEM. Throws INVALID_ARGUMENT naming the field. */
export function checkSigningKeys(keys: readonly string[]): void {
  if (keys.length > maximumSigningKeys)
    throw invalidArgument(`trusted_signing_keys must have at most ${maximumSigningKeys} entries`);
  for (const [index, pem] of keys.entries()) {
    const field = `trusted_signing_keys[${index}]`;
    textField(field, pem, { maximum: maximumKeyCharacters });
    if (!isEd25519PublicKey(pem)) throw invalidArgument(`${field} must be an Ed25519 public key in PEM`);
  }
}

function isEd25519PublicKey(pem: string): boolean {
  // createPublicKey also accepts a private key, which must not be stored here.
  if (!pem.trimStart().startsWith('-----BEGIN PUBLIC KEY-----')) return false;
  try {
    return createPublicKey(pem).asymmetricKeyType === 'ed25519';
  } catch {
    return false;
  }
}
