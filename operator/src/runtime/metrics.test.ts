import { expect } from 'chai';
import { createMetrics } from './metrics.ts';

describe('createMetrics', () => {
  // The metric names of controller-runtime and client-go, on which dashboards and alerts depend.
  const wanted: [name: string, type: string, labels: string[]][] = [
    ['controller_runtime_reconcile_total', 'counter', ['controller', 'result']],
    ['controller_runtime_reconcile_errors_total', 'counter', ['controller']],
    ['controller_runtime_terminal_reconcile_errors_total', 'counter', ['controller']],
    ['controller_runtime_reconcile_panics_total', 'counter', ['controller']],
    ['controller_runtime_reconcile_time_seconds', 'histogram', ['controller']],
    ['controller_runtime_active_workers', 'gauge', ['controller']],
    ['controller_runtime_max_concurrent_reconciles', 'gauge', ['controller']],
    ['workqueue_depth', 'gauge', ['name']],
    ['workqueue_adds_total', 'counter', ['name']],
    ['workqueue_retries_total', 'counter', ['name']],
    ['workqueue_queue_duration_seconds', 'histogram', ['name']],
    ['workqueue_work_duration_seconds', 'histogram', ['name']],
    ['leader_election_master_status', 'gauge', ['name']],
    ['rest_client_requests_total', 'counter', ['code', 'host', 'method']],
  ];

  it('uses the metric names of controller-runtime', async () => {
    const made = await createMetrics().registry.getMetricsAsJSON();
    for (const [name, type, labels] of wanted) {
      const metric = made.find((each) => each.name === name) as { type: string } | undefined;
      expect(metric?.type, name).to.equal(type);
      const { registry } = createMetrics();
      const { labelNames } = registry.getSingleMetric(name) as unknown as { labelNames: string[] };
      expect(labelNames.toSorted(), name).to.deep.equal(labels);
    }
    const others = made
      .map(({ name }) => name)
      .filter((name) => /^(controller_runtime|workqueue|rest_client|leader)/.test(name));
    expect(others.toSorted()).to.deep.equal(wanted.map(([name]) => name).toSorted());
  });
});
