// From a custom resource to what control applies: fields one by one, CamelCase enum values to the contract's lower case. The
// operator translates the same manifests for itself; control.proto is where the two meet.
import { create, type MessageInitShape } from '@bufbuild/protobuf';
import {
  displayNameAnnotation,
  intentAnnotation,
  type DeviceProfileSpec,
  type OtaPackageSpec,
  type OtaPolicy,
  type OtaRolloutSpec,
  type ProvisioningTemplateSpec,
  type TelemetrySchema,
  type TenantSpec,
  type UpdateWindow,
} from '@kellet/crds';
import {
  ApplyRequestSchema,
  type ApplyRequest,
  type OtaPolicySchema,
  type ObjectMetaSchema,
  type TelemetrySchemaSchema,
  type TenantSpecSchema,
  type WindowSchema,
} from '@kellet/proto/es/kellet/control/v1/control_pb.ts';
import { namedId, rolloutId } from '../platform/ids.ts';
import type { KubernetesObject } from '../platform/kubernetes/kubernetes.ts';

/** The kinds that REST and gRPC callers create, with the type of their spec. */
export interface ManagedSpecs {
  DeviceProfile: DeviceProfileSpec;
  ProvisioningTemplate: ProvisioningTemplateSpec;
  OtaPackage: OtaPackageSpec;
  OtaRollout: OtaRolloutSpec;
}

/** A kind of resource that REST and gRPC callers create. */
export type ManagedKind = keyof ManagedSpecs;

/** `PerEvent` → `per_event`. */
export const lowerCase = (value: string | undefined): string =>
  (value ?? '').replace(/(?<!^)[A-Z]/g, (letter) => `_${letter}`).toLowerCase();

/** The request that applies a custom resource as the API server holds it. */
export function applyRequest<K extends ManagedKind>(
  kind: K,
  tenantId: string,
  object: KubernetesObject<ManagedSpecs[K]>,
): ApplyRequest {
  return create(ApplyRequestSchema, { meta: metaOf(tenantId, object), spec: specOf(kind, object.spec) });
}

/** The id in the data plane of the working copy that a request writes. */
export function workingCopyId({ meta, spec }: ApplyRequest): string {
  const { tenantId = '', name = '' } = meta ?? {};
  switch (spec.case) {
    case 'deviceProfile':
      return namedId(tenantId, 'profile', name);
    case 'provisioningTemplate':
      return namedId(tenantId, 'template', name);
    case 'otaPackage':
      return namedId(tenantId, 'package', name);
    case 'otaRollout': {
      const { packageName, profileName } = spec.value;
      return rolloutId(
        tenantId,
        name,
        namedId(tenantId, 'package', packageName),
        namedId(tenantId, 'profile', profileName),
      );
    }
    default:
      return tenantId;
  }
}

/** Identity of a custom resource, as control knows it. */
export function metaOf(tenantId: string, object: KubernetesObject<unknown>): MessageInitShape<typeof ObjectMetaSchema> {
  const { metadata } = object;
  return {
    tenantId,
    namespace: metadata.namespace ?? '',
    name: metadata.name,
    uid: metadata.uid ?? '',
    generation: BigInt(metadata.generation ?? 0),
    resourceVersion: metadata.resourceVersion ?? '',
    displayName: metadata.annotations?.[displayNameAnnotation] ?? '',
    intentId: metadata.annotations?.[intentAnnotation] ?? '',
  };
}

type SpecInit = MessageInitShape<typeof ApplyRequestSchema>['spec'];

function specOf<K extends ManagedKind>(kind: K, spec: ManagedSpecs[K]): SpecInit {
  // TypeScript does not narrow the spec by the kind: each branch states what the kind implies.
  switch (kind) {
    case 'DeviceProfile':
      return { case: 'deviceProfile', value: profileSpec(spec as DeviceProfileSpec) };
    case 'ProvisioningTemplate':
      return { case: 'provisioningTemplate', value: templateSpec(spec as ProvisioningTemplateSpec) };
    case 'OtaPackage':
      return { case: 'otaPackage', value: packageSpec(spec as OtaPackageSpec) };
    default:
      return { case: 'otaRollout', value: rolloutSpec(spec as OtaRolloutSpec) };
  }
}

const profileSpec = (spec: DeviceProfileSpec) => ({
  type: spec.type ?? '',
  defaultTags: spec.defaultTags ?? {},
  anchoringMode: lowerCase(spec.anchoringPolicy?.mode),
  telemetrySchema: spec.telemetrySchema && telemetrySchema(spec.telemetrySchema),
  otaPolicy: spec.otaPolicy && otaPolicy(spec.otaPolicy),
  offlineAfterSeconds: spec.offlineAfterSeconds ?? 0,
});

/** The spec of a Tenant as control takes it, without namespace and password, which are not in the manifest. */
export const tenantSpec = ({ quotas, defaults, ...spec }: TenantSpec): MessageInitShape<typeof TenantSpecSchema> => ({
  name: spec.name ?? '',
  rateLimitPerMinute: spec.rateLimitPerMinute ?? 0,
  quotas: quotas && {
    devices: quotas.devices ?? 0,
    pointsPerDay: quotas.pointsPerDay ?? 0,
    storageBytes: quotas.storageBytes ?? 0,
    anchorsPerDay: quotas.anchorsPerDay ?? 0,
  },
  ipAllowlist: spec.ipAllowlist ?? [],
  mfaRequired: spec.mfaRequired ?? false,
  defaults: defaults && {
    tags: defaults.tags ?? {},
    telemetrySchema: defaults.telemetrySchema && telemetrySchema(defaults.telemetrySchema),
    otaPolicy: defaults.otaPolicy && otaPolicy(defaults.otaPolicy),
    offlineAfterSeconds: defaults.offlineAfterSeconds ?? 0,
    anchoringMode: lowerCase(defaults.anchoringPolicy?.mode),
  },
  trustedSigningKeys: spec.trustedSigningKeys ?? [],
  adminEmail: spec.adminEmail ?? '',
});

const telemetrySchema = (schema: TelemetrySchema): MessageInitShape<typeof TelemetrySchemaSchema> => ({
  keys: Object.fromEntries(
    Object.entries(schema.keys ?? {}).map(([name, key]) => [
      name,
      {
        type: lowerCase(key.type),
        required: key.required ?? false,
        min: key.min,
        max: key.max,
        unit: key.unit ?? '',
        enum: key.enum ?? [],
        maxLength: key.maxLength ?? 0,
      },
    ]),
  ),
  rejectAdditionalKeys: schema.additionalKeys === 'Reject',
});

const otaPolicy = (policy: OtaPolicy): MessageInitShape<typeof OtaPolicySchema> => ({
  deviceTimeoutSeconds: policy.deviceTimeoutSeconds ?? 0,
  maxAttempts: policy.maxAttempts ?? 0,
  window: policy.window && updateWindow(policy.window),
  requireSignature: policy.requireSignature ?? false,
});

const updateWindow = (window: UpdateWindow): MessageInitShape<typeof WindowSchema> => ({
  start: window.start,
  end: window.end,
  days: (window.days ?? []).map((day) => day.slice(0, 3).toLowerCase()),
  timeZone: window.timeZone ?? '',
});

const templateSpec = (spec: ProvisioningTemplateSpec) => ({
  profileName: spec.profileRef.name,
  hardwareIdPattern: spec.hardwareIdPattern ?? '*',
  oneTime: spec.keyUse === 'Once',
  expiresInSeconds: spec.expiresInSeconds ?? 0,
  credentialType: lowerCase(spec.credentialType),
  defaultGroups: spec.defaultGroups ?? [],
  keySha256: spec.keySha256 ?? '',
  keyBinding: spec.keyBinding ?? '',
  suspended: spec.suspended ?? false,
});

const packageSpec = (spec: OtaPackageSpec) => ({
  type: spec.type === 'Firmware' ? 'fw' : 'sw',
  version: spec.version,
  artifactUri: spec.artifact.uri,
  sha256: spec.artifact.sha256,
  signature: spec.artifact.signature ?? '',
  sizeBytes: spec.artifact.sizeBytes ?? 0,
  compatibility: spec.compatibility,
  releaseNotes: spec.releaseNotes ?? '',
});

const rolloutSpec = (spec: OtaRolloutSpec) => ({
  packageName: spec.packageRef.name,
  profileName: spec.targetProfileRef.name,
  rollbackPackageName: spec.rollbackPackageRef?.name ?? '',
  canaryPercent: spec.canaryPercent,
  // The default of the custom resource definition, for an object that has not been through the API server.
  failureThresholdPercent: spec.failureThresholdPercent ?? 10,
  minFailures: spec.minFailures ?? 0,
  steps: (spec.steps ?? []).map((step) => ({
    percent: step.percent,
    soakSeconds: step.soakSeconds ?? 0,
    approval: step.approval ?? false,
  })),
  deviceTimeoutSeconds: spec.deviceTimeoutSeconds ?? 0,
  maxPerMinute: spec.maxPerMinute ?? 0,
  maxAttempts: spec.maxAttempts ?? 0,
  window: spec.window && updateWindow(spec.window),
  paused: spec.paused ?? false,
  rolledBack: spec.desiredState === 'RolledBack',
});
