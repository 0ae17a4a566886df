// The operator's metrics. The names follow controller-runtime, so that its dashboards and alerts work.
import type { KubernetesClientOptions } from '@kellet/kubernetes';
import { collectDefaultMetrics, Counter, Gauge, Histogram, Registry } from 'prom-client';

/** Result of a reconcile: the label `result`. */
export type ReconcileResult = 'success' | 'error' | 'requeue' | 'requeue_after';

/** All instruments of the operator. */
export interface Metrics {
  registry: Registry;
  reconciles: Counter<'controller' | 'result'>;
  reconcileErrors: Counter<'controller'>;
  terminalReconcileErrors: Counter<'controller'>;
  reconcilePanics: Counter<'controller'>;
  reconcileSeconds: Histogram<'controller'>;
  activeWorkers: Gauge<'controller'>;
  maxConcurrentReconciles: Gauge<'controller'>;
  queueDepth: Gauge<'name'>;
  queueAdds: Counter<'name'>;
  queueRetries: Counter<'name'>;
  queueSeconds: Histogram<'name'>;
  workSeconds: Histogram<'name'>;
  leader: Gauge<'name'>;
  clientRequests: Counter<'code' | 'method' | 'host'>;
  watchRestarts: Counter<'resource' | 'cause'>;
  eventsDropped: Counter;
  drift: Counter<'kind' | 'found'>;
}

/** Creates a registry with Node's metrics and the operator's instruments. */
export function createMetrics(): Metrics {
  const registry = new Registry();
  collectDefaultMetrics({ register: registry });
  const registers = [registry];
  const buckets = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60];
  const counter = <L extends string>(name: string, help: string, labelNames: L[] = []): Counter<L> =>
    new Counter({ name, help, labelNames, registers });
  const gauge = <L extends string>(name: string, help: string, labelNames: L[]): Gauge<L> =>
    new Gauge({ name, help, labelNames, registers });
  const histogram = <L extends string>(name: string, help: string, labelNames: L[]): Histogram<L> =>
    new Histogram({ name, help, labelNames, buckets, registers });
  return {
    registry,
    reconciles: counter('controller_runtime_reconcile_total', 'Reconciles by result', ['controller', 'result']),
    reconcileErrors: counter('controller_runtime_reconcile_errors_total', 'Reconciles that failed', ['controller']),
    terminalReconcileErrors: counter(
      'controller_runtime_terminal_reconcile_errors_total',
      'Reconciles that failed permanently',
      ['controller'],
    ),
    reconcilePanics: counter('controller_runtime_reconcile_panics_total', 'Reconciles that threw a programming error', [
      'controller',
    ]),
    reconcileSeconds: histogram('controller_runtime_reconcile_time_seconds', 'Duration of reconciles', ['controller']),
    activeWorkers: gauge('controller_runtime_active_workers', 'Running reconciles', ['controller']),
    maxConcurrentReconciles: gauge(
      'controller_runtime_max_concurrent_reconciles',
      'Maximum number of concurrent reconciles',
      ['controller'],
    ),
    queueDepth: gauge('workqueue_depth', 'Queued keys', ['name']),
    queueAdds: counter('workqueue_adds_total', 'Keys added', ['name']),
    queueRetries: counter('workqueue_retries_total', 'Keys added again after a failure', ['name']),
    queueSeconds: histogram('workqueue_queue_duration_seconds', 'Time keys spent in the queue', ['name']),
    workSeconds: histogram('workqueue_work_duration_seconds', 'Time spent processing keys', ['name']),
    leader: gauge('leader_election_master_status', '1 while this process leads', ['name']),
    clientRequests: counter('rest_client_requests_total', 'Requests to the Kubernetes API', ['code', 'method', 'host']),
    watchRestarts: counter('kellet_operator_watch_restarts_total', 'Restarted watches', ['resource', 'cause']),
    drift: counter('kellet_operator_drift_total', 'Working copies that differed from what was applied', [
      'kind',
      'found',
    ]),
    eventsDropped: counter('kellet_operator_events_dropped_total', 'Kubernetes Events that were not written'),
  };
}

/** Returns a wrapper of the Kubernetes client's requests that counts them by response. */
export function countRequests({ clientRequests }: Pick<Metrics, 'clientRequests'>): KubernetesClientOptions['around'] {
  return async ({ method, url: { host } }, exchange) => {
    let code = '<error>';
    try {
      const response = await exchange();
      code = String(response.statusCode);
      return response;
    } finally {
      clientRequests.inc({ code, method, host });
    }
  };
}
