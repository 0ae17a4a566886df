// Which methods of the contract need a recent sign-in: docs/decisions/0045-second-factors.md.
import { type DescMethod, getOption, hasOption } from '@bufbuild/protobuf';
import { http } from '@kellet/proto/es/google/api/annotations_pb';
import { AuthService } from '@kellet/proto/es/kellet/v1/auth_pb';
import { DeviceRegistryService } from '@kellet/proto/es/kellet/v1/device_registry_pb';
import { access, Access_Caller as Caller } from '@kellet/proto/es/kellet/v1/options_pb';
import { ProvisioningService } from '@kellet/proto/es/kellet/v1/provisioning_pb';
import { RulesService } from '@kellet/proto/es/kellet/v1/rules_pb';
import { WebhookService } from '@kellet/proto/es/kellet/v1/webhook_pb';
import { expect } from 'chai';
import { publicServices } from '../services.ts';

/** Methods that send data of the tenant elsewhere, or change or delete many devices. */
const farReaching: readonly DescMethod[] = [
  ...[WebhookService.method.createWebhook, WebhookService.method.updateWebhook],
  ...[RulesService.method.createRule, RulesService.method.updateRule],
  DeviceRegistryService.method.changeDevices,
];

/** Methods that return a credential, or widen what one admits. Those of `users:write` and `tenant:write` are found by their scope. */
const granting: readonly DescMethod[] = [
  ...[AuthService.method.createApiKey, AuthService.method.rotateApiKey],
  ...[DeviceRegistryService.method.rotateDeviceCredentials, DeviceRegistryService.method.createDeviceAuthority],
  ...[ProvisioningService.method.createTemplate, ProvisioningService.method.updateTemplate],
  ProvisioningService.method.rotateTemplateKey,
];

describe('a recent sign-in', () => {
  for (const method of publicServices.flatMap((service) => service.methods)) {
    const { callers, scope, stepUp } = getOption(method, access);
    const isRead = hasOption(method, http) && getOption(method, http).pattern.case === 'get';
    const isOfPlatform = callers.every((caller) => caller === Caller.PLATFORM);
    if (isRead || !(isOfPlatform || scope === 'users:write' || scope === 'tenant:write')) continue;
    it(`is needed for ${method.parent.name}/${method.name}, which changes who has access`, () => {
      expect(stepUp).to.equal(true);
    });
  }
  for (const method of granting) {
    it(`is needed for ${method.parent.name}/${method.name}, which gives access`, () => {
      expect(getOption(method, access).stepUp).to.equal(true);
    });
  }
  for (const method of farReaching) {
    it(`is needed for ${method.parent.name}/${method.name}, which reaches far`, () => {
      expect(getOption(method, access).stepUp).to.equal(true);
    });
  }
});
