// The process's metrics in Prometheus format.
import { collectDefaultMetrics, Registry } from 'prom-client';

/** Creates a registry with the runtime's metrics; each module adds its own instruments. */
export function createMetrics(): Registry {
  const registry = new Registry();
  collectDefaultMetrics({ register: registry });
  return registry;
}

export type { Registry } from 'prom-client';
export { Counter, Gauge, Histogram } from 'prom-client';
