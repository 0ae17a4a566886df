// Preloaded into a process (node --import), it writes down every metric that the process registers, a JSON line each, in the
// file that KELLET_TEST_METRICS_FILE names: /metrics alone does not say the labels of a metric that has no value yet.
import { appendFileSync } from 'node:fs';
import { Registry } from 'prom-client';

/** A metric as it was registered. */
export interface RegisteredMetric {
  readonly name: string;
  readonly type: string;
  readonly labels: readonly string[];
  readonly help: string;
}

const file = process.env['KELLET_TEST_METRICS_FILE'];
// eslint-disable-next-line @typescript-eslint/unbound-method -- it is called with its registry below
const { registerMetric } = Registry.prototype;
if (file !== undefined) {
  Registry.prototype.registerMetric = function (metric) {
    const { name, help, labelNames } = metric as unknown as { name: string; help: string; labelNames: string[] };
    const registered: RegisteredMetric = {
      name,
      help,
      labels: labelNames,
      type: metric.constructor.name.toLowerCase(),
    };
    appendFileSync(file, `${JSON.stringify(registered)}\n`);
    registerMetric.call(this, metric);
  };
}
