// Control: the internal service through which the operator, and REST creations, turn custom resources into the data plane's
// working copies. Construction and life cycle; each part is a file of its own.
import type { InternalServer } from '../internal/server.ts';
import { sleep } from '../platform/clock.ts';
import type { KubernetesApi } from '../platform/kubernetes/kubernetes.ts';
import type { Platform, ServiceModule } from '../config/module.ts';
import type { Appliers, RolloutDriver } from './applier.ts';
import { ChangeCoalescer, ChangeFeed } from './changes.ts';
import { Dispatcher } from './dispatcher.ts';
import { ResourceWriter } from '../resources/resource-writer.ts';
import { listWorkingCopies } from './working-copies.ts';
import { ControlServer } from './server.ts';

/** How often creations are looked for whose process died in the middle. */
const sweepMilliseconds = 10_000;

/** Control as main.ts wires it: services add their appliers before `start`. */
export interface ControlModule extends ServiceModule {
  readonly writer: ResourceWriter;
  readonly changes: ChangeCoalescer;
  addApplier<Case extends keyof Appliers>(specCase: Case, applier: Appliers[Case]): void;
  setRolloutDriver(driver: RolloutDriver): void;
}

/** Makes the control service, on the internal port. Without the Kubernetes API everything but writing custom resources works. */
export function createControl(platform: Platform, kubernetes: KubernetesApi, server: InternalServer): ControlModule {
  const { database } = platform;
  const logger = platform.logger.child({ service: 'control' });
  const dispatcher = new Dispatcher(database);
  const writer = new ResourceWriter({ database, kubernetes, dispatcher, logger });
  const changes = new ChangeCoalescer(database, logger);
  let rolloutDriver: RolloutDriver | undefined;
  new ControlServer(
    server,
    {
      dispatcher,
      changes: new ChangeFeed(database, logger),
      workingCopies: (signal) => listWorkingCopies(database, signal),
      rolloutDriver: () => rolloutDriver,
    },
    logger,
  );
  const closing = new AbortController();
  let sweeping: Promise<void> = Promise.resolve();

  const sweepLoop = async () => {
    while (!closing.signal.aborted) {
      await sleep(sweepMilliseconds, closing.signal);
      await writer.sweep().catch((error: unknown) => logger.debug({ err: error }, 'the sweep of creations waits'));
    }
  };

  return {
    writer,
    changes,
    addApplier: (specCase, applier) => dispatcher.addApplier(specCase, applier),
    setRolloutDriver: (driver) => (rolloutDriver = driver),
    // ControlService is internal: nothing of it is registered for the gateway.
    register: () => undefined,
    async start() {
      sweeping = sweepLoop();
    },
    async stop() {
      closing.abort();
      await changes.close();
      await sweeping;
      kubernetes.close();
    },
  };
}
