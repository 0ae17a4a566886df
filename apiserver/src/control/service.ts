// Creates control, the internal service that turns custom resources into the data plane's working copies. The operator calls
// it over gRPC; REST creations (resources/) call its dispatcher in the same process.
import type { Kind } from '@kellet/crds';
import type { Platform, ServiceModule } from '../config/module.ts';
import type { InternalServer } from '../internal/server.ts';
import type { Appliers, RolloutDriver } from './applier.ts';
import { ChangeCoalescer, ChangeFeed } from './changes.ts';
import { Dispatcher } from './dispatcher.ts';
import { ControlServer } from './server.ts';
import { listWorkingCopies } from './working-copies.ts';

/** Control as create-services.ts wires it. Services add their appliers before `start`. */
export interface ControlModule extends ServiceModule {
  readonly dispatcher: Dispatcher;
  readonly changes: ChangeCoalescer;
  addApplier<K extends Kind>(kind: K, applier: Appliers[K]): void;
  setRolloutDriver(driver: RolloutDriver): void;
}

/** Creates the control service and adds it to the internal server. */
export function createControl(platform: Platform, server: InternalServer): ControlModule {
  const { database } = platform;
  const logger = platform.logger.child({ service: 'control' });
  const dispatcher = new Dispatcher(database);
  const changes = new ChangeCoalescer(database, logger);
  let rolloutDriver: RolloutDriver | undefined;
  new ControlServer(
    server,
    {
      dispatcher,
      changes: new ChangeFeed(database, logger),
      workingCopies: (request, signal) => listWorkingCopies(database, request, signal),
      rolloutDriver: () => rolloutDriver,
    },
    logger,
  );
  return {
    dispatcher,
    changes,
    addApplier: (kind, applier) => dispatcher.addApplier(kind, applier),
    setRolloutDriver: (driver) => (rolloutDriver = driver),
    // ControlService is internal, so the gateway gets no handlers.
    register: () => undefined,
    stop: () => changes.close(),
  };
}
