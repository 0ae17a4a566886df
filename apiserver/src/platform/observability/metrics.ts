// The process's metrics in Prometheus format.
import { collectDefaultMetrics, Counter, Registry } from 'prom-client';

/** Creates a registry with the runtime's metrics; each module adds its own instruments. */
export function createMetrics(): Registry {
  const registry = new Registry();
  collectDefaultMetrics({ register: registry });
  return registry;
}

/** Creates a counter. */
export const counter = <Label extends string = never>(
  metrics: Registry,
  name: string,
  help: string,
  labelNames: readonly Label[] = [],
): Counter<Label> => new Counter({ name, help, labelNames, registers: [metrics] });

export type { Registry } from 'prom-client';
export { Counter, Gauge, Histogram } from 'prom-client';
