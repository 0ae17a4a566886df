// Tests requests that carry the same Idempotency-Key at a time.
import { expect } from 'chai';
import { testDeviceId } from '../testing/test-devices.ts';
import { TestIngest } from '../testing/test-ingest.ts';

describe('Idempotency-Keys that are used many times at once', function () {
  this.timeout(60_000);
  let ingest: TestIngest;
  before(async () => (ingest = await TestIngest.start()));
  after(() => ingest?.stop());

  const points = [{ deviceId: testDeviceId(2), timestamp: '2026-05-01T00:00:00Z', numericValues: { n: 1 } }];
  const post = (key: string, process = 0) => ingest.post(points, process, 'acme', { 'idempotency-key': key });
  const rejectedFlushes = async (process: number): Promise<number> => {
    const metric = ingest.processes[process]!.platform.metrics.getSingleMetric(
      'kellet_telemetry_flush_failures_total',
    )!;
    const { values } = (await metric.get()) as { values: { value: number; labels: { cause?: string } }[] };
    return values.find(({ labels }) => labels.cause === 'data')!.value;
  };

  it('share one response, and no flush of their process is rejected because of them', async () => {
    const results = await Promise.all(Array.from({ length: 300 }, (_, n) => post(`key-${Math.floor(n / 10)}`)));
    expect(results.every(({ accepted }) => accepted === 1)).to.equal(true);
    const { rows } = await ingest.test.database.system((tx) =>
      tx.query<{ points: number }>('SELECT count(*)::int4 AS points FROM telemetry_points'),
    );
    expect(rows).to.deep.equal([{ points: 30 }]);
    expect(await rejectedFlushes(0)).to.equal(0);
  });

  it('wait for a few others, and are refused beyond them', async () => {
    const results = await Promise.allSettled(Array.from({ length: 40 }, () => post('crowded')));
    const refused = results.flatMap((result) => (result.status === 'rejected' ? [result.reason as unknown] : []));
    expect(refused).to.have.length(24);
    for (const error of refused) expect(error).to.include({ code: 'RESOURCE_EXHAUSTED', retryAfterSeconds: 1 });
  });
});
