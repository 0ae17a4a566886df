// Preloaded into a process (node --import) to write every registered metric as a JSON line to
// $KELLET_TEST_METRICS_FILE, because /metrics does not show the labels of metrics without a value.
import { appendFileSync } from 'node:fs';
import { Registry } from 'prom-client';

/** A registered metric. */
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
