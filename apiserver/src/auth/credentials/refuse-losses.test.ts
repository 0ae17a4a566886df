// Calls that have waited since before their caller lost its rights.
import { create, type MessageInitShape, type MessageShape } from '@bufbuild/protobuf';
import { User_Role } from '@kellet/proto/es/kellet/v1/auth_pb';
import { RulesService } from '@kellet/proto/es/kellet/v1/rules_pb';
import { WebhookService } from '@kellet/proto/es/kellet/v1/webhook_pb';
import { expect } from 'chai';
import { createProfileReader } from '../../device-link/provisioning/profiles.ts';
import { parseOutboundHosts } from '../../platform/outbound/outbound-addresses.ts';
import { OutboundGuard } from '../../platform/outbound/outbound-guard.ts';
import { type Caller, internalContext } from '../../platform/rpc.ts';
import { outcomeOf } from '../../platform/testing/refusals.ts';
import { ruleHandlers } from '../../rules-engine/rule-handlers.ts';
import { WebhookSecrets } from '../../webhooks/sending/webhook-secrets.ts';
import { createWebhooks } from '../../webhooks/service.ts';
import { method as authMethod, TestAuth } from '../testing/test-auth.ts';
import { testPlatform } from '../testing/test-platform.ts';

const webhooks = WebhookService.method;
const rules = RulesService.method;
type Method = (typeof webhooks)[keyof typeof webhooks] | (typeof rules)[keyof typeof rules];

describe('a caller that has lost rights while its call waited', () => {
  const at = TestAuth.define();

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
    const call = <M extends Method>(of: M, request: MessageInitShape<M['input']>, caller: Caller) =>
      at.registry.unary(of, create(of.input, request) as MessageShape<M['input']>, internalContext(caller));
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
    const [deleted, demoted] = [await at.signedIn(), await at.signedIn()];
    await at.call(authMethod.deleteUser, { userId: deleted.user.user_id }, defender);
    const demotion = { userId: demoted.user.user_id, role: User_Role.viewer, updateMask: { paths: ['role'] } };
    await at.call(authMethod.updateUser, demotion, defender);

    expect(await outcomes(deleted.caller)).to.deep.equal(new Set(['UNAUTHENTICATED']));
    expect(await outcomes(demoted.caller)).to.deep.equal(new Set(['PERMISSION_DENIED']));
    expect((await call(webhooks.listWebhooks, {}, defender)).webhooks.map(({ url }) => url)).to.deep.equal([
      'https://example.com/',
    ]);
    expect((await call(rules.listRules, {}, defender)).rules).to.have.length(1);
    expect(await outcomes(defender)).to.deep.equal(new Set(['OK']));
  });
});
