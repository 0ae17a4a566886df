// Counts and times calls by method and outcome, on all public ports.
import type { DescMethod } from '@bufbuild/protobuf';
import type { ErrorCode } from '../../platform/errors.ts';
import { type Counter, counter, Histogram, type Registry } from '../../platform/observability/metrics.ts';

/** Metrics of the gateway's calls. */
export class CallMetrics {
  private readonly calls: Counter;
  private readonly seconds: Histogram;

  constructor(metrics: Registry) {
    this.calls = counter(metrics, 'kellet_gateway_calls_total', 'Calls by method, transport and outcome.', [
      'service',
      'method',
      'transport',
      'code',
    ]);
    this.seconds = new Histogram({
      name: 'kellet_gateway_call_seconds',
      help: 'Time from the first byte of a call to its response.',
      labelNames: ['service', 'method', 'transport'],
      buckets: [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60],
      registers: [metrics],
    });
  }

  /** Records a call. `started` is performance.now() at its start; no method means the route was unknown. */
  observe(
    method: DescMethod | undefined,
    transport: 'rest' | 'grpc' | 'mqtt',
    code: ErrorCode | 'OK',
    started: number,
  ): void {
    const labels = { service: method?.parent.name ?? 'none', method: method?.name ?? 'none', transport };
    this.calls.inc({ ...labels, code });
    this.seconds.observe(labels, (performance.now() - started) / 1000);
  }
}
