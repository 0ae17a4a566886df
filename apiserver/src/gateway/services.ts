// The public services that the gateway routes, whether or not this process has handlers for all of them.
import type { DescService } from '@bufbuild/protobuf';
import { AnchorService } from '@kellet/proto/es/kellet/v1/anchor_pb';
import { AuditService } from '@kellet/proto/es/kellet/v1/audit_pb';
import { AuthService } from '@kellet/proto/es/kellet/v1/auth_pb';
import { DeviceLinkService } from '@kellet/proto/es/kellet/v1/device_link_pb';
import { DeviceRegistryService } from '@kellet/proto/es/kellet/v1/device_registry_pb';
import { OtaService } from '@kellet/proto/es/kellet/v1/ota_pb';
import { ProfileService } from '@kellet/proto/es/kellet/v1/profile_pb';
import { ProvisioningService } from '@kellet/proto/es/kellet/v1/provisioning_pb';
import { RulesService } from '@kellet/proto/es/kellet/v1/rules_pb';
import { TelemetryService } from '@kellet/proto/es/kellet/v1/telemetry_pb';
import { VerifierService } from '@kellet/proto/es/kellet/v1/verifier_pb';
import { WebhookService } from '@kellet/proto/es/kellet/v1/webhook_pb';

/** All services of the public contract. */
export const publicServices: readonly DescService[] = [
  AuthService,
  AuditService,
  DeviceRegistryService,
  ProfileService,
  ProvisioningService,
  DeviceLinkService,
  OtaService,
  TelemetryService,
  RulesService,
  AnchorService,
  VerifierService,
  WebhookService,
];
