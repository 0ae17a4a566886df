import type { Kind } from '@kellet/crds';
import { expect } from 'chai';
import { inContract, inManifest } from './field-names.ts';

describe('field names in messages', () => {
  const contract: [Kind, string, string][] = [
    ['OtaRollout', 'spec.packageRef: OtaPackage pump not found', 'package_id: OtaPackage pump not found'],
    ['OtaRollout', 'spec.steps[0].soakSeconds: Invalid value: -1', 'steps[0].soak_seconds: Invalid value: -1'],
    [
      'OtaRollout',
      'rollbackPackageRef must name another package than packageRef',
      'rollback_package_id must name another package than package_id',
    ],
    [
      'OtaRollout',
      'spec.maxAttempts: Invalid value: 101: spec.maxAttempts in body should be less than or equal to 100',
      'max_attempts: Invalid value: 101: max_attempts in body should be less than or equal to 100',
    ],
    ['OtaRollout', 'rollout "maxAttempts" has not completed', 'rollout "maxAttempts" has not completed'],
    ['ProvisioningTemplate', 'spec.profileRef: there is none', 'profile_id: there is none'],
    ['ProvisioningTemplate', 'spec.defaultGroups: no device group x', 'default_group_ids: no device group x'],
    ['OtaPackage', 'spec.artifact.sizeBytes: must not be negative', 'size_bytes: must not be negative'],
    ['OtaPackage', 'the version of the type must differ', 'the version of the type must differ'],
    [
      'DeviceProfile',
      'spec.telemetrySchema.keys.tankLevel.maxLength: too much',
      'telemetry_schema.keys.tankLevel.max_length: too much',
    ],
    [
      'DeviceProfile',
      'spec.telemetrySchema.keys["tank.maxLevel"].maxLength: too much',
      'telemetry_schema.keys["tank.maxLevel"].max_length: too much',
    ],
    ['DeviceProfile', '.spec.offlineAfterSeconds is managed by argocd', 'offline_after_seconds is managed by argocd'],
    ['DeviceProfile', '.spec.type is managed by argocd', 'type is managed by argocd'],
    ['Tenant', 'adminEmail must be an e-mail address', 'admin_email must be an e-mail address'],
  ];
  for (const [kind, message, expected] of contract) {
    it(`are translated for callers of the API: ${expected}`, () => {
      expect(inContract(kind, message)).to.equal(expected);
      expect(inContract(kind, expected)).to.equal(expected);
    });
  }

  const manifest: [Kind, string, string][] = [
    ['DeviceProfile', 'ota_policy.max_attempts must be less', 'spec.otaPolicy.maxAttempts must be less'],
    ['DeviceProfile', 'ota_policy.window.time_zone: "x_y" is none', 'spec.otaPolicy.window.timeZone: "x_y" is none'],
    ['DeviceProfile', 'default_tags["a_b"] is long', 'spec.defaultTags["a_b"] is long'],
    ['DeviceProfile', 'telemetry_schema.keys["a_b"].max_length: 1', 'spec.telemetrySchema.keys["a_b"].maxLength: 1'],
    ['OtaPackage', 'artifact_uri must be a URL', 'spec.artifact.uri must be a URL'],
    ['OtaPackage', 'sha256 must be 64 hexadecimal digits', 'spec.artifact.sha256 must be 64 hexadecimal digits'],
    ['OtaPackage', 'compatibility.min_version must …', 'spec.compatibility.minVersion must …'],
    [
      'OtaPackage',
      'compatibility.min_version must not be above compatibility.max_version',
      'spec.compatibility.minVersion must not be above spec.compatibility.maxVersion',
    ],
    [
      'OtaPackage',
      'the artifact of this type has 5 bytes, size_bytes says 6',
      'the artifact of this type has 5 bytes, spec.artifact.sizeBytes says 6',
    ],
    ['OtaRollout', 'skipped: raise canary_percent to continue', 'skipped: raise spec.canaryPercent to continue'],
    ['OtaRollout', 'spec.packageRef: the package "size_bytes"', 'spec.packageRef: the package "size_bytes"'],
    ['OtaPackage', 'checksum mismatch: the artifact', 'checksum mismatch: the artifact'],
    ['OtaRollout', 'package_id: not found', 'spec.packageRef: not found'],
    ['Tenant', 'quotas.points_per_day must …', 'spec.quotas.pointsPerDay must …'],
  ];
  for (const [kind, message, expected] of manifest) {
    it(`are translated for authors of manifests: ${expected}`, () =>
      expect(inManifest(kind, message)).to.equal(expected));
  }
});
