// Creates the writer of custom resources, and cleans up after creations whose process died.
import type { Platform, ServiceModule } from '../config/module.ts';
import type { Dispatcher } from '../control/dispatcher.ts';
import { Loop } from '../platform/background/loop.ts';
import type { KubernetesApi } from '../platform/kubernetes/kubernetes.ts';
import { ResourceWriter } from './resource-writer.ts';

/** Interval between sweeps. */
const sweepMilliseconds = 10_000;

/** The writer and its sweep loop. */
export interface ResourcesModule extends ServiceModule {
  readonly writer: ResourceWriter;
}

/**
 * Creates the writer, which applies resources through `dispatcher` in this process. If the Kubernetes API is unavailable,
 * only writes fail. Closes `kubernetes` on stop.
 */
export function createResources(
  { database, ...platform }: Platform,
  kubernetes: KubernetesApi,
  dispatcher: Dispatcher,
): ResourcesModule {
  const logger = platform.logger.child({ service: 'control' });
  const writer = new ResourceWriter({ database, kubernetes, dispatcher, logger });
  const sweep = new Loop(logger, 'sweep of creations', sweepMilliseconds, () => writer.sweep());
  return {
    writer,
    // The writer serves no API.
    register: () => undefined,
    async start() {
      sweep.start();
    },
    async stop() {
      await sweep.stop();
      await kubernetes.close();
    },
  };
}
