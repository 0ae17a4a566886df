// Creates the writer of custom resources, and cleans up after creations whose process died.
import type { ServiceModule, Platform } from '../config/module.ts';
import type { Dispatcher } from '../control/dispatcher.ts';
import { sleep } from '../platform/clock.ts';
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
  const closing = new AbortController();
  let sweeping: Promise<void> = Promise.resolve();

  const sweepLoop = async () => {
    while (!closing.signal.aborted) {
      await sleep(sweepMilliseconds, closing.signal);
      await writer
        .sweep()
        .catch((error: unknown) => logger.debug({ err: error }, 'the sweep of creations failed, will retry'));
    }
  };

  return {
    writer,
    // The writer serves no API.
    register: () => undefined,
    async start() {
      sweeping = sweepLoop();
    },
    async stop() {
      closing.abort();
      await sweeping;
      await kubernetes.close();
    },
  };
}
