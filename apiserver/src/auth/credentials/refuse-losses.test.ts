// Calls that have waited since before their caller lost its rights.
import { create, fromJson, type JsonValue, type MessageInitShape, type MessageShape } from '@bufbuild/protobuf';
import { ValueSchema } from '@bufbuild/protobuf/wkt';
import { User_Role } from '@kellet/proto/es/kellet/v1/auth_pb';
import {
  ChangeDevicesRequest_Action as Action,
  DeviceRegistryService,
} from '@kellet/proto/es/kellet/v1/device_registry_pb';
import { RulesService } from '@kellet/proto/es/kellet/v1/rules_pb';
import { WebhookService } from '@kellet/proto/es/kellet/v1/webhook_pb';
import { expect } from 'chai';
import { RolloutMembership } from '../../device-link/ota/rollouts/membership.ts';
import { createProfileReader } from '../../device-link/provisioning/profiles.ts';
import { insertCustomer } from '../../device-registry/entities/customers.ts';
import { createDeviceRegistry } from '../../device-registry/service.ts';
import { newId } from '../../platform/ids.ts';
import { parseOutboundHosts } from '../../platform/outbound/outbound-addresses.ts';
import { OutboundGuard } from '../../platform/outbound/outbound-guard.ts';
import { type Caller, internalContext } from '../../platform/rpc.ts';
import { allScopes } from '../../platform/scopes.ts';
import { outcomeOf } from '../../platform/testing/refusals.ts';
import { ruleHandlers } from '../../rules-engine/rule-handlers.ts';
import { WebhookSecrets } from '../../webhooks/sending/webhook-secrets.ts';
import { createWebhooks } from '../../webhooks/service.ts';
import { method as authMethod, TestAuth } from '../testing/test-auth.ts';
import { testPlatform } from '../testing/test-platform.ts';

const webhooks = WebhookService.method;
const rules = RulesService.method;
const devices = DeviceRegistryService.method;
type Method =
  | (typeof webhooks)[keyof typeof webhooks]
  | (typeof rules)[keyof typeof rules]
  | (typeof devices)[keyof typeof devices];

describe('a caller that has lost rights while its call waited', () => {
  const at = TestAuth.define();

  const call = <M extends Method>(of: M, request: MessageInitShape<M['input']>, caller: Caller) =>
    at.registry.unary(of, create(of.input, request) as MessageShape<M['input']>, internalContext(caller));
  /** Returns a caller as it was when its calls were admitted, before its session was ended. */
  const gone = async (defender: Caller): Promise<Caller> => {
    const { caller, user } = await at.signedIn();
    await at.call(authMethod.deleteUser, { userId: user.user_id }, defender);
    return caller;
  };
  /** The same of a key of a service account. */
  const goneKey = async (defender: Caller): Promise<Caller> => {
    const made = { name: 'key', scopes: [...allScopes] };
    const { keyId, apiKey = '' } = await at.call(authMethod.createApiKey, made, defender);
    const caller = await at.auth.authenticate(apiKey, '127.0.0.1');
    await at.call(authMethod.deleteApiKey, { keyId }, defender);
    return caller;
  };

  it('makes and changes neither webhooks nor rules', async () => {
    const { database } = at.test;
    const platform = testPlatform(database, at.clock);
    createWebhooks(platform).register(at.registry);
    at.registry.register(
      RulesService,
      ruleHandlers({
        ...platform,
        profiles: createProfileReader(database),
        devices: { lookup: async () => new Map() },
        visibleDevices: async () => new Set(),
        guard: new OutboundGuard(parseOutboundHosts('')),
        secrets: new WebhookSecrets(platform.config.controlSecret),
      }),
    );
    const { caller: defender } = await at.signedIn();
    const webhook = { url: 'https://example.com/', secret: 'secret', events: ['device.provisioned'] };
    const { webhookId } = await call(webhooks.createWebhook, webhook, defender);
    let made = 0;
    const rule = () => ({ name: `rule ${(made += 1)}`, expression: 'numeric.t > 1.0' });
    const { ruleId } = await call(rules.createRule, rule(), defender);
    await call(rules.disableRule, { ruleId }, defender);
    const outcomes = async (caller: Caller) =>
      new Set([
        await outcomeOf(call(webhooks.createWebhook, webhook, caller)),
        await outcomeOf(
          call(
            webhooks.updateWebhook,
            { webhookId, url: 'https://example.org/', updateMask: { paths: ['url'] } },
            caller,
          ),
        ),
        await outcomeOf(call(rules.createRule, rule(), caller)),
        await outcomeOf(
          call(rules.updateRule, { ruleId, expression: 'true', updateMask: { paths: ['expression'] } }, caller),
        ),
        await outcomeOf(call(rules.enableRule, { ruleId }, caller)),
      ]);

    // As they were when the calls were admitted.
    const deleted = await gone(defender);
    const [demoted, moved] = [await at.signedIn(), await at.signedIn('operator')];
    const demotion = { userId: demoted.user.user_id, role: User_Role.viewer, updateMask: { paths: ['role'] } };
    await at.call(authMethod.updateUser, demotion, defender);
    const customer = { customerId: newId(), name: 'Harbour', contact: '' };
    await database.tenant('acme', (tx) => insertCustomer(tx, 'acme', customer));
    const { customerId } = customer;
    const move = { userId: moved.user.user_id, customerId, updateMask: { paths: ['customer_id'] } };
    await at.call(authMethod.updateUser, move, defender);

    for (const caller of [deleted, await goneKey(defender)])
      expect(await outcomes(caller)).to.deep.equal(new Set(['UNAUTHENTICATED']));
    expect(await outcomes(demoted.caller)).to.deep.equal(new Set(['PERMISSION_DENIED']));
    expect(await outcomeOf(call(rules.createRule, rule(), moved.caller))).to.equal('PERMISSION_DENIED');
    expect((await call(webhooks.listWebhooks, {}, defender)).webhooks.map(({ url }) => url)).to.deep.equal([
      'https://example.com/',
    ]);
    expect((await call(rules.listRules, {}, defender)).rules).to.have.length(1);
    expect(await outcomes(defender)).to.deep.equal(new Set(['OK']));
  });

  before(() => {
    const { database } = at.test;
    const platform = testPlatform(database, at.clock);
    const usage = { ofGroup: async () => undefined, customerHasUsers: async () => false };
    const membership = new RolloutMembership(platform.clock);
    createDeviceRegistry(platform, createProfileReader(database), membership, usage).register(at.registry);
  });

  /** Expects that calls succeed, and that callers who have lost their session or their key cannot make them. */
  const expectRefused = async (calls: (caller: Caller) => Promise<unknown>[]) => {
    const { caller: defender } = await at.signedIn();
    const outcomes = (caller: Caller) => Promise.all(calls(caller).map(outcomeOf));
    for (const caller of [await gone(defender), await goneKey(defender)]) {
      const refused = await outcomes(caller);
      expect(refused).to.deep.equal(refused.map(() => 'UNAUTHENTICATED'));
    }
    const allowed = await outcomes(defender);
    expect(allowed).to.deep.equal(allowed.map(() => 'OK'));
  };

  it('makes neither devices nor credentials of devices', async () => {
    const { caller: defender } = await at.signedIn();
    const { deviceId } = (await call(devices.createDevice, { hardwareId: newId() }, defender)).device!;
    await expectRefused((caller) => [
      call(devices.createDevice, { hardwareId: newId() }, caller),
      call(devices.rotateDeviceCredentials, { deviceId }, caller),
      call(devices.createDeviceAuthority, {}, caller),
    ]);
  });

  it('shows devices to nobody else, by views, customers or device groups', async () => {
    const { caller: defender } = await at.signedIn();
    const { customerId } = await call(devices.createCustomer, { name: 'Marina' }, defender);
    const { groupId } = await call(devices.createDeviceGroup, { name: newId() }, defender);
    const queried = { name: newId(), query: { q: 'nothing' } };
    const { groupId: queriedId } = await call(devices.createDeviceGroup, queried, defender);
    const hardwareId = newId();
    const { deviceId } = (await call(devices.createDevice, { hardwareId }, defender)).device!;
    const changeAll = (action: Action, value: JsonValue, caller: Caller) => {
      const filter = { q: hardwareId };
      return call(devices.changeDevices, { filter, expected: 1, action, value: fromJson(ValueSchema, value) }, caller);
    };
    const entity = { case: 'deviceId', value: deviceId } as const;
    const { entityViewId } = await call(devices.createEntityView, { name: 'View', entity, keys: ['t'] }, defender);
    const mask = (path: string) => ({ updateMask: { paths: [path] } });
    await expectRefused((caller) => [
      call(devices.createEntityView, { name: 'View', entity, customerId }, caller),
      call(devices.updateEntityView, { entityViewId, keys: [], ...mask('keys') }, caller),
      call(devices.updateDevice, { deviceId, customerId, ...mask('customer_id') }, caller),
      call(devices.updateDevice, { deviceId, groupIds: [groupId], ...mask('group_ids') }, caller),
      call(devices.updateDevice, { deviceId, tags: { site: 'quay' }, ...mask('tags') }, caller),
      call(devices.addDevicesToGroup, { groupId, deviceIds: [deviceId] }, caller),
      call(devices.updateDeviceGroup, { groupId: queriedId, query: {}, ...mask('query') }, caller),
      changeAll(Action.add_to_group, groupId, caller),
      changeAll(Action.set_tags, { site: 'quay' }, caller),
    ]);
  });
});
