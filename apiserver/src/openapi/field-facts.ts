// Constraints that field types do not express: limits, formats and required fields, as the services enforce them. A
// test checks that every field named here exists.
import type { DescField, JsonObject, JsonValue } from '@bufbuild/protobuf';
import { sampleIds } from './sample-ids.ts';

/** JSON Schema keywords added to a field's type. */
export type FieldFacts = Readonly<Record<string, JsonValue>>;

/** By field name, in every message. */
const byName: Record<string, FieldFacts> = {
  ...Object.fromEntries(Object.entries(sampleIds).map(([name, id]) => [name, { examples: [id] }])),
  tenant_id: { examples: ['acme'] },
  hardware_id: { examples: ['WS-0001'] },
  firmware_version: { examples: ['1.2.0'] },
  page_size: { minimum: 0, examples: [50] },
  page_token: { examples: [''] },
  limit: { minimum: 0, maximum: 500 },
  wait_seconds: { maximum: 60 },
  data_hash: { pattern: '^([0-9a-f]{64})?$' },
  merkle_root: { pattern: '^([0-9a-f]{64})?$' },
  txid: { pattern: '^([0-9a-f]{64})?$' },
  block_hash: { pattern: '^([0-9a-f]{64})?$' },
  beef_hex: { pattern: '^([0-9a-f]{2})*$' },
};

/** By message and field. */
const byField: Record<string, FieldFacts> = {
  'LoginRequest.email': { minLength: 1, maxLength: 254, format: 'email' },
  'LoginRequest.password': { minLength: 1, maxLength: 1024, format: 'password' },
  'LoginRequest.tenant_id': { maxLength: 63 },
  'CreateUserRequest.email': { minLength: 1, maxLength: 254, format: 'email' },
  'CreateUserRequest.name': { maxLength: 128 },
  'CreateUserRequest.password': { minLength: 12, maxLength: 1024, format: 'password' },
  'UpdateUserRequest.name': { maxLength: 128 },
  'UpdateUserRequest.password': { minLength: 12, maxLength: 1024, format: 'password' },
  'CreateTenantRequest.tenant_id': { pattern: '^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$' },
  'CreateTenantRequest.admin_password': { minLength: 12, maxLength: 1024, format: 'password' },
  'CreateTenantRequest.rate_limit_per_minute': { maximum: 10_000_000 },
  'UpdateTenantRequest.rate_limit_per_minute': { maximum: 10_000_000 },
  'CreateTenantRequest.retention_days': { maximum: 36_500 },
  'UpdateTenantRequest.retention_days': { maximum: 36_500 },
  'UpdateOwnTenantRequest.retention_days': { maximum: 36_500 },
  'CreateTenantRequest.trusted_signing_keys': { maxItems: 100 },
  'UpdateTenantRequest.trusted_signing_keys': { maxItems: 100 },
  'UpdateOwnTenantRequest.trusted_signing_keys': { maxItems: 100 },
  'CreateApiKeyRequest.name': { minLength: 1, maxLength: 128 },
  'CreateApiKeyRequest.scopes': { items: { type: 'string', pattern: '^[a-z]+:(read|write)$' } },
  'CreateDeviceRequest.hardware_id': { minLength: 1, maxLength: 256 },
  'CreateDeviceRequest.name': { maxLength: 256 },
  'CreateDeviceRequest.tags': { maxProperties: 64 },
  'UpdateDeviceRequest.hardware_id': { minLength: 1, maxLength: 256 },
  'UpdateDeviceRequest.name': { minLength: 1, maxLength: 256 },
  'UpdateDeviceRequest.tags': { maxProperties: 64 },
  'ListDevicesRequest.hardware_id': { maxLength: 256 },
  'ListDevicesRequest.q': { maxLength: 256 },
  'CreateDeviceGroupRequest.name': { minLength: 1, maxLength: 128 },
  'CreateDeviceGroupRequest.description': { maxLength: 1024 },
  'UpdateDeviceGroupRequest.name': { minLength: 1, maxLength: 128 },
  'UpdateDeviceGroupRequest.description': { maxLength: 1024 },
  'CreateProfileRequest.name': { minLength: 1, maxLength: 128 },
  'CreateProfileRequest.type': { maxLength: 128 },
  'UpdateProfileRequest.name': { minLength: 1, maxLength: 128 },
  'UpdateProfileRequest.type': { maxLength: 128 },
  'CreateTemplateRequest.name': { minLength: 1, maxLength: 128 },
  'CreateTemplateRequest.hardware_id_pattern': { maxLength: 256, examples: ['WS-*'] },
  'UpdateTemplateRequest.name': { minLength: 1, maxLength: 128 },
  'UpdateTemplateRequest.hardware_id_pattern': { maxLength: 256 },
  'ClaimDeviceRequest.provision_key': { minLength: 1, maxLength: 512 },
  'ClaimDeviceRequest.device_name': { minLength: 1, maxLength: 256 },
  'ClaimDeviceRequest.hardware_id': { minLength: 1, maxLength: 256 },
  'ConnectGatewayDeviceRequest.device_name': { minLength: 1, maxLength: 256 },
  'ConnectGatewayDeviceRequest.hardware_id': { minLength: 1, maxLength: 256 },
  'IngestRequest.points': { maxItems: 5000 },
  'TelemetryPoint.timestamp': { format: 'date-time' },
  'TelemetryPoint.numeric_values': { maxProperties: 256 },
  'TelemetryPoint.string_values': { maxProperties: 256 },
  'GetHistoryRequest.page_size': { minimum: 0, maximum: 10_000 },
  'VerifyHashRequest.data_hash_hex': { pattern: '^[0-9a-fA-F]{64}$' },
  'VerifyRawRequest.timestamp': { format: 'date-time' },
  'MerkleStep.hash': { pattern: '^[0-9a-f]{64}$' },
  'BlockHeader.header': { pattern: '^[0-9a-f]{160}$' },
  'CreatePackageRequest.sha256': { pattern: '^[0-9a-fA-F]{64}$' },
  'CreatePackageRequest.version': { minLength: 1, examples: ['1.2.0'] },
  'CreateRolloutRequest.canary_percent': { minimum: 1, maximum: 100 },
  'CreateRolloutRequest.failure_threshold_percent': { maximum: 100, default: 10 },
  'RolloutStep.percent': { minimum: 1, maximum: 100 },
  'UpdateRolloutRequest.canary_percent': { minimum: 1, maximum: 100 },
  'ResumeRolloutRequest.canary_percent': { minimum: 1, maximum: 100 },
  'GetChunkRequest.length': { minimum: 1, maximum: 65_536, default: 65_536 },
  'SendRpcRequest.method': { minLength: 1 },
  'CreateCustomerRequest.name': { minLength: 1, maxLength: 256 },
  'CreateCustomerRequest.contact': { maxLength: 4096 },
  'UpdateCustomerRequest.name': { minLength: 1, maxLength: 256 },
  'UpdateCustomerRequest.contact': { maxLength: 4096 },
  'CreateAssetRequest.name': { minLength: 1, maxLength: 256 },
  'CreateAssetRequest.type': { maxLength: 128 },
  'CreateAssetRequest.tags': { maxProperties: 64 },
  'UpdateAssetRequest.name': { minLength: 1, maxLength: 256 },
  'UpdateAssetRequest.type': { maxLength: 128 },
  'UpdateAssetRequest.tags': { maxProperties: 64 },
  'CreateEntityViewRequest.name': { minLength: 1, maxLength: 256 },
  'CreateEntityViewRequest.keys': { maxItems: 256 },
  'UpdateEntityViewRequest.name': { minLength: 1, maxLength: 256 },
  'UpdateEntityViewRequest.keys': { maxItems: 256 },
  'CreateAlarmRequest.type': { minLength: 1, maxLength: 128 },
  'CreateRuleRequest.name': { minLength: 1, maxLength: 128 },
  'CreateRuleRequest.expression': { minLength: 1, maxLength: 2048 },
  'CreateRuleRequest.alarm_type': { maxLength: 128 },
  'CreateRuleRequest.for_seconds': { maximum: 2_592_000 },
  'CreateRuleRequest.cooldown_seconds': { maximum: 2_592_000 },
  'CreateRuleRequest.actions': { maxItems: 10 },
  'UpdateRuleRequest.name': { minLength: 1, maxLength: 128 },
  'UpdateRuleRequest.expression': { minLength: 1, maxLength: 2048 },
  'UpdateRuleRequest.alarm_type': { maxLength: 128 },
  'UpdateRuleRequest.for_seconds': { maximum: 2_592_000 },
  'UpdateRuleRequest.cooldown_seconds': { maximum: 2_592_000 },
  'UpdateRuleRequest.actions': { maxItems: 10 },
  'Window.start': { pattern: '^([01][0-9]|2[0-3]):[0-5][0-9]$' },
  'Window.end': { pattern: '^([01][0-9]|2[0-3]):[0-5][0-9]$' },
};

/** Required fields. Path fields are always required. */
const required: Record<string, readonly string[]> = {
  LoginRequest: ['email', 'password'],
  RefreshRequest: ['refresh_token'],
  CreateApiKeyRequest: ['name', 'scopes'],
  CreateUserRequest: ['email', 'role', 'password'],
  VerifyMfaRequest: ['mfa_token', 'code'],
  CreateTenantRequest: ['tenant_id'],
  CreateDeviceRequest: ['hardware_id'],
  CreateDeviceGroupRequest: ['name'],
  AddDevicesToGroupRequest: ['device_ids'],
  CreateCustomerRequest: ['name'],
  CreateAssetRequest: ['name'],
  CreateEntityViewRequest: ['name'],
  CreateAlarmRequest: ['device_id', 'type'],
  CreateProfileRequest: ['name'],
  CreateTemplateRequest: ['name', 'profile_id'],
  ClaimDeviceRequest: ['provision_key', 'device_name', 'hardware_id'],
  ConnectGatewayDeviceRequest: ['device_name', 'hardware_id'],
  DisconnectGatewayDeviceRequest: ['device_id'],
  SendRpcRequest: ['method'],
  IngestRequest: ['points'],
  TelemetrySchemaKey: ['type'],
  VerifyRawRequest: ['device_id', 'timestamp'],
  CreatePackageRequest: ['type', 'version', 'artifact_uri', 'sha256'],
  CreateRolloutRequest: ['package_id', 'target_profile_id', 'canary_percent'],
  UpdateRolloutRequest: ['canary_percent'],
  GetChunkRequest: ['package_id'],
  SetAssignmentRequest: ['package_id'],
  RetryRolloutRequest: ['device_ids'],
  SkipRolloutRequest: ['device_ids'],
  CreateRuleRequest: ['name', 'expression'],
  ValidateRuleRequest: ['expression'],
  TestRuleRequest: ['expression', 'point'],
};

/** Returns the schema name of a type: `kellet.v1.Rollout.Step` → `RolloutStep`. */
export const shortName = (typeName: string): string => typeName.replace(/^kellet\.v1\./, '').replaceAll('.', '');

/** Returns the JSON Schema keywords to add to a field's type. */
export function fieldFacts(field: DescField): JsonObject {
  return { ...byName[field.name], ...byField[`${shortName(field.parent.typeName)}.${field.name}`] };
}

/** Reports whether a request must carry the field. */
export const isRequired = (field: DescField): boolean =>
  required[shortName(field.parent.typeName)]?.includes(field.name) ?? false;

/** Every `Message.field` named in these tables. */
export const namedFields: readonly string[] = [
  ...Object.keys(byField),
  ...Object.entries(required).flatMap(([message, fields]) => fields.map((field) => `${message}.${field}`)),
];
