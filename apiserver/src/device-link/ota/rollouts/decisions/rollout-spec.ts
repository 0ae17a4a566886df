// The spec of a rollout as the data plane uses it: its policy in the form of the API, and what only manifests have. Its row
// holds it as JSON.
import { fromJson, type JsonObject, toJson } from '@bufbuild/protobuf';
import type { OtaRolloutSpec } from '@kellet/crds';
import { type CreateRolloutRequest, CreateRolloutRequestSchema } from '@kellet/proto/es/kellet/v1/ota_pb';
import { requestOf } from '../../../../control/manifest-mapping.ts';

interface ManifestFields {
  packageName: string;
  profileName: string;
  /** Empty: none. */
  rollbackPackageName: string;
  paused: boolean;
  rolledBack: boolean;
}

/** The spec of a rollout. The ids and the name are empty: columns of the row have them. */
export interface RolloutSpec extends CreateRolloutRequest, ManifestFields {
  failureThresholdPercent: number;
  /** 0 means 1. */
  minFailures: number;
}

/** Returns the spec that a manifest describes. */
export const rolloutSpecOf = (manifest: OtaRolloutSpec): RolloutSpec => {
  const request = requestOf('OtaRollout', manifest);
  return {
    ...request,
    // The default of the custom resource definition, for a spec that has not been through the API server.
    failureThresholdPercent: request.failureThresholdPercent ?? 10,
    minFailures: request.minFailures ?? 0,
    packageName: manifest.packageRef.name,
    profileName: manifest.targetProfileRef.name,
    rollbackPackageName: manifest.rollbackPackageRef?.name ?? '',
    paused: manifest.paused ?? false,
    rolledBack: manifest.desiredState === 'RolledBack',
  };
};

/** Returns the content of the column `spec`. */
export function toColumn(spec: RolloutSpec): JsonObject {
  const { packageName, profileName, rollbackPackageName, paused, rolledBack } = spec;
  const manifestFields: ManifestFields = { packageName, profileName, rollbackPackageName, paused, rolledBack };
  return { ...(toJson(CreateRolloutRequestSchema, spec) as JsonObject), ...manifestFields };
}

/** Reads the column `spec`, in which unset fields may be missing. */
export function fromColumn(column: JsonObject): RolloutSpec {
  const request = fromJson(CreateRolloutRequestSchema, column, { ignoreUnknownFields: true });
  const stated = column as Partial<ManifestFields>;
  return {
    ...request,
    failureThresholdPercent: request.failureThresholdPercent ?? 0,
    minFailures: request.minFailures ?? 0,
    packageName: stated.packageName ?? '',
    profileName: stated.profileName ?? '',
    rollbackPackageName: stated.rollbackPackageName ?? '',
    paused: stated.paused ?? false,
    rolledBack: stated.rolledBack ?? false,
  };
}
