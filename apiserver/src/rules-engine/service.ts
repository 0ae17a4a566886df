// The rules engine: rules, their evaluation for committed points, and their actions.
import { RulesService } from '@kellet/proto/es/kellet/v1/rules_pb';
import type { Platform, ServiceModule } from '../config/module.ts';
import type { DeviceDirectory } from '../device-registry/devices/directory.ts';
import { visibleDevices } from '../device-registry/devices/visible-devices.ts';
import { parseOutboundHosts } from '../platform/outbound/outbound-addresses.ts';
import { OutboundGuard } from '../platform/outbound/outbound-guard.ts';
import type { TransactionalProfileReader } from '../policies/profile-reader.ts';
import { WebhookSecrets } from '../webhooks/sending/webhook-secrets.ts';
import { ActionWorker } from './actions/action-worker.ts';
import { RuleEngine } from './evaluation/engine.ts';
import { ruleHandlers } from './rule-handlers.ts';

/** Creates the service. */
export function createRulesEngine(
  platform: Pick<Platform, 'config' | 'database' | 'paging' | 'clock' | 'logger' | 'metrics'>,
  profiles: TransactionalProfileReader,
  devices: Pick<DeviceDirectory, 'lookup'>,
): ServiceModule {
  const { config, database, paging, clock } = platform;
  const guard = new OutboundGuard(parseOutboundHosts(config.webhookHosts));
  const secrets = new WebhookSecrets(config.controlSecret);
  const worker = new ActionWorker({ ...platform, guard, secrets });
  const engine = new RuleEngine({ ...platform, devices, queued: () => worker.wake() });
  return {
    register: (registry) =>
      registry.register(
        RulesService,
        ruleHandlers({
          ...{ database, paging, profiles, devices, guard, secrets, clock },
          visibleDevices: visibleDevices(database, devices),
        }),
      ),
    start: async () => {
      engine.start();
      worker.start();
    },
    stop: async () => {
      await engine.stop();
      await worker.stop();
    },
  };
}
