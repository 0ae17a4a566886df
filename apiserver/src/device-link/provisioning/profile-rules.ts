// Limits of a profile's fields.
import type { CreateProfileRequest } from '@kellet/proto/es/kellet/v1/profile_pb.ts';
import { invalidArgument } from '../../platform/errors.ts';
import { textField } from '../../platform/requests/fields.ts';
import {
  checkAnchoringMode,
  checkOfflineAfter,
  checkOtaPolicy,
  checkTelemetrySchema,
  isSchemaTooLarge,
  schemaTooLarge,
} from '../../policies/policies.ts';

/** The checked fields of a profile. */
export type ProfileFields = Omit<CreateProfileRequest, '$typeName' | '$unknown' | 'name'>;

/** Checks a profile. Throws INVALID_ARGUMENT; the message begins with the path of the field. */
export function checkProfile(profile: ProfileFields): void {
  textField('type', profile.type, { maximum: 128 });
  checkDefaultTags(profile.defaultTags);
  checkAnchoringMode('anchoring_policy.mode', profile.anchoringPolicy?.mode);
  if (profile.telemetrySchema) checkTelemetrySchema('telemetry_schema', profile.telemetrySchema);
  if (profile.otaPolicy) checkOtaPolicy('ota_policy', profile.otaPolicy);
  checkOfflineAfter('offline_after_seconds', profile.offlineAfterSeconds);
}

/**
 * Throws INVALID_ARGUMENT if the telemetry schema is too large, unless that of the profile was before: an earlier version
 * accepted it.
 */
export function checkSchemaSize(profile: ProfileFields, before: ProfileFields | undefined): void {
  if (!isSchemaTooLarge(profile.telemetrySchema) || isSchemaTooLarge(before?.telemetrySchema)) return;
  throw invalidArgument(`telemetry_schema ${schemaTooLarge}`);
}

function checkDefaultTags(tags: Readonly<Record<string, string>>): void {
  const entries = Object.entries(tags);
  if (entries.length > 64) throw invalidArgument('default_tags must have at most 64 entries');
  for (const [key, value] of entries) {
    const at = `default_tags[${JSON.stringify(key)}]`;
    textField(`${at} key`, key, { minimum: 1, maximum: 128 });
    textField(at, value, { maximum: 256 });
  }
}
