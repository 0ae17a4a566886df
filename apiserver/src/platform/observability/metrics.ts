// The process's metrics in Prometheus' format.
import { collectDefaultMetrics, Registry } from 'prom-client';

/** A registry of its own with the runtime's metrics in it; each module adds its own instruments to it. */
export function createMetrics(): Registry {
  const registry = new Registry();
  collectDefaultMetrics({ register: registry });
  return registry;
}

export type { Registry } from 'prom-client';
export { Counter, Gauge, Histogram } from 'prom-client';
