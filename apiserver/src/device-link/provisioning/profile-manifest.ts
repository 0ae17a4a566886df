// A profile in its three spellings: the public message, the custom resource's spec, and the spec that control applies.
import { create } from '@bufbuild/protobuf';
import type { DeviceProfileSpec as Manifest } from '@kellet/crds';
import type { DeviceProfileSpec } from '@kellet/proto/es/kellet/control/v1/control_pb.ts';
import { ProfileSchema, type Profile } from '@kellet/proto/es/kellet/v1/profile_pb.ts';
import { anchoringModeOf, otaPolicyOf, telemetrySchemaOf } from '../../policies/policies.ts';
import { anchoringManifest, otaManifest, telemetryManifest } from '../../policies/policy-manifests.ts';
import type { ProfileFields } from './profile-rules.ts';

/** The profile that a manifest describes. Throws INVALID_ARGUMENT for a word that the contract does not know. */
export function profileFromSpec(spec: DeviceProfileSpec): Profile {
  const mode = anchoringModeOf('anchoring_policy.mode', spec.anchoringMode);
  return create(ProfileSchema, {
    type: spec.type,
    defaultTags: spec.defaultTags,
    anchoringPolicy: mode === undefined ? undefined : { mode },
    telemetrySchema: spec.telemetrySchema && telemetrySchemaOf(spec.telemetrySchema),
    otaPolicy: spec.otaPolicy && otaPolicyOf(spec.otaPolicy),
    offlineAfterSeconds: spec.offlineAfterSeconds,
  });
}

/** The custom resource's spec of a profile whose fields have been checked. What is unset is left out. */
export function manifestOf(profile: ProfileFields): Manifest {
  const manifest: Manifest = {};
  if (profile.type !== '') manifest.type = profile.type;
  if (Object.keys(profile.defaultTags).length > 0) manifest.defaultTags = { ...profile.defaultTags };
  const anchoringPolicy = anchoringManifest(profile.anchoringPolicy);
  if (anchoringPolicy) manifest.anchoringPolicy = anchoringPolicy;
  if (profile.telemetrySchema) manifest.telemetrySchema = telemetryManifest(profile.telemetrySchema);
  if (profile.otaPolicy) manifest.otaPolicy = otaManifest(profile.otaPolicy);
  if (profile.offlineAfterSeconds > 0) manifest.offlineAfterSeconds = profile.offlineAfterSeconds;
  return manifest;
}
