// The process's metrics in Prometheus format.
import { collectDefaultMetrics, Counter, Gauge, Registry } from 'prom-client';
import type { Logger } from './logger.ts';

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

/**
 * Creates a gauge that calls `read` at each scrape. It is absent while that fails, so that the other metrics remain
 * readable. With a label, `read` returns a number for each of its values.
 */
export function readGauge<Label extends string = never>(
  { metrics, logger }: { readonly metrics: Registry; readonly logger: Logger },
  name: string,
  help: string,
  read: () => number | ReadonlyMap<string, number> | Promise<number | ReadonlyMap<string, number>>,
  label?: Label,
): void {
  const gauge: Gauge = new Gauge({
    name,
    help,
    labelNames: label === undefined ? [] : [label],
    registers: [metrics],
    async collect() {
      try {
        const found = await read();
        if (typeof found === 'number') return gauge.set(found);
        for (const [value, count] of found) gauge.set({ [label!]: value }, count);
      } catch (error) {
        logger.debug({ err: error, metric: name }, 'failed to read a metric');
        gauge.reset();
        if (label === undefined) gauge.remove();
      }
    },
  });
}

export type { Registry } from 'prom-client';
export { Counter, Gauge, Histogram } from 'prom-client';
