// ingest-vs-copy: durable telemetry ingest over HTTP, 100 points per request with anchor batches, compared with a plain
// binary COPY of the same rows into the same table.
import pg from 'pg';
import { leafHash } from '../../apiserver/src/telemetry/points/leaf-hashes.ts';
import { writePayload } from '../../apiserver/src/telemetry/points/payload.ts';
import { parseTimestamp, toNanoseconds } from '../../apiserver/src/telemetry/points/timestamp.ts';
import { uuidBytes, WireBuffer } from '../../apiserver/src/telemetry/write/wire-buffer.ts';
import { sendEncoded } from '../../apiserver/src/telemetry/write/wire-query.ts';
import { startEnvironment, type Environment } from './environment.ts';
import { HttpLoad, postRequest, type LoadResult } from './gateway/http-load.ts';
import { pointsPerRequest, telemetryBodies } from './gateway/samples.ts';
import type { Benchmark } from './harness.ts';
import { samplePoint } from './sample-points.ts';

const requests = 2000;
const secondsPerRound = 5;
const copyRows = 200_000;

/** The benchmark. */
export const ingestVsCopy: Benchmark = {
  name: 'ingest-vs-copy',
  unit: 'points/s',
  baseline: 'binary COPY',
  rounds: 5,
  prepare: async () => {
    const environment = await startEnvironment((line) => console.error(line));
    const generator = new HttpLoad();
    const { rest, apiKey, deviceIds } = environment;
    let firstPoint = 0;
    let last: LoadResult | undefined;
    return {
      ours: async () => {
        const bodies = telemetryBodies(deviceIds, requests, firstPoint);
        firstPoint += requests * pointsPerRequest;
        last = await generator.run({
          ...rest,
          requests: bodies.map((body) => postRequest('/api/v1/telemetry', { 'X-API-Key': apiKey }, body)),
          expected: `"accepted":${pointsPerRequest}`,
          connections: 16,
          seconds: secondsPerRound,
        });
        return last.perSecond * pointsPerRequest;
      },
      baseline: () => copy(environment),
      remarks: () => `p50 ${last?.p50.toFixed(1)} ms, p99 ${last?.p99.toFixed(1)} ms`,
      close: async () => {
        generator.close();
        await environment.close();
      },
    };
  },
};

/** Returns the rows per second of a COPY. Encoding the rows is not included. */
async function copy({ databaseUrl, tenantId, deviceIds }: Environment): Promise<number> {
  const client = new pg.Client({ connectionString: databaseUrl });
  await client.connect();
  try {
    await client.query('CREATE TABLE copied (LIKE telemetry_points)');
    const rows = encodeRows(tenantId, deviceIds);
    const started = performance.now();
    await sendEncoded(client, rows);
    const elapsed = (performance.now() - started) / 1000;
    await client.query('DROP TABLE copied');
    return copyRows / elapsed;
  } finally {
    await client.end();
  }
}

function encodeRows(tenantId: string, deviceIds: readonly string[]): Buffer {
  const wire = new WireBuffer(copyRows * 400);
  wire.query(
    'COPY copied (time, device_id, batch_id, leaf_index, tenant_id, data_hash, payload) FROM STDIN (FORMAT binary)',
  );
  wire.beginCopy();
  for (let n = 0; n < copyRows; n += 1) {
    const deviceId = deviceIds[n % deviceIds.length]!;
    const point = samplePoint(deviceId, n);
    const time = parseTimestamp(point.timestamp)!;
    const payload = writePayload({ numericValues: point.numeric_values, stringValues: point.string_values });
    wire.row(7);
    wire.int8(toNanoseconds(time));
    wire.binary(uuidBytes(deviceId));
    wire.binary(uuidBytes(deviceIds[Math.floor(n / 1000) % deviceIds.length]!));
    wire.int4(n % 1000);
    wire.text(tenantId);
    wire.binary(leafHash(tenantId, deviceId, time.seconds, payload));
    wire.text(payload);
  }
  wire.endCopy();
  return wire.bytes();
}
