// A process that only watches the operator's kinds, to measure the cost of receiving the same objects. It notifies its
// parent when the first lists are complete, and sends its figures on any message.
import { type Kind, plurals } from '@kellet/crds';
import { customResources, KubernetesClient, loadKubeConfig } from '@kellet/kubernetes';
import { systemClock } from '../../../operator/src/runtime/clock.ts';
import { createLogger } from '../../../operator/src/runtime/logger.ts';
import { createMetrics } from '../../../operator/src/runtime/metrics.ts';
import { Reflector } from '../../../operator/src/runtime/reflector.ts';

/** Figures of a follower. */
export interface FollowerFigures {
  /** Milliseconds from its start until everything was listed. */
  listed: number;
}

const client = new KubernetesClient({ config: loadKubeConfig(process.argv[2]), userAgent: 'kellet-bench' });
const started = performance.now();
const reflectors = (Object.keys(plurals) as Kind[]).map(
  (kind) =>
    new Reflector({
      client,
      resource: customResources[kind],
      clock: systemClock,
      logger: createLogger('silent'),
      metrics: createMetrics(),
      onChange: () => undefined,
    }),
);
const stop = new AbortController();
for (const reflector of reflectors) void reflector.run(stop.signal);
process.once('disconnect', () => process.exit());
await Promise.all(reflectors.map((reflector) => reflector.synced));
process.send!({ listed: performance.now() - started } satisfies FollowerFigures);
