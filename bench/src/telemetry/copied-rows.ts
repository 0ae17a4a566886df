// The baseline of ingest: a binary COPY of the rows that a request's points become, without any of the work before it.
import { setTimeout as sleep } from 'node:timers/promises';
import pg from 'pg';
import { leafHash } from '../../../apiserver/src/telemetry/points/leaf-hashes.ts';
import { writePayload } from '../../../apiserver/src/telemetry/points/payload.ts';
import { parseTimestamp, toNanoseconds } from '../../../apiserver/src/telemetry/points/timestamp.ts';
import { WireBuffer } from '../../../apiserver/src/telemetry/write/wire-buffer.ts';
import { sendEncoded } from '../../../apiserver/src/telemetry/write/wire-query.ts';
import type { Environment } from '../environment.ts';
import { samplePoint } from '../samples/sample-points.ts';

/** Rows of a COPY. */
export const copiedRows = 200_000;

/** Returns the rows per second of a COPY in commits of this many rows. Encoding the rows is not included. */
export async function copyRows(
  { databaseUrl, tenantId, deviceIds }: Environment,
  rowsPerCommit: number,
): Promise<number> {
  const client = new pg.Client({ connectionString: databaseUrl });
  await client.connect();
  try {
    await client.query('CREATE TABLE copied (LIKE telemetry_points)');
    const commits = Array.from({ length: copiedRows / rowsPerCommit }, (_, commit) =>
      encodeRows(tenantId, deviceIds, commit * rowsPerCommit, rowsPerCommit),
    );
    // Work left over from the previous measurement must not count here.
    await sleep(500);
    const started = performance.now();
    for (const commit of commits) await sendEncoded(client, commit);
    const elapsed = (performance.now() - started) / 1000;
    const { rows } = await client.query<{ count: number }>('SELECT count(*)::int4 AS count FROM copied');
    if (rows[0]!.count !== copiedRows) throw new Error(`${rows[0]!.count} rows were copied, not ${copiedRows}`);
    return copiedRows / elapsed;
  } finally {
    await client.query('DROP TABLE IF EXISTS copied');
    await client.end();
  }
}

function encodeRows(tenantId: string, deviceIds: readonly string[], first: number, count: number): WireBuffer {
  const wire = new WireBuffer(count * 400);
  wire.query(
    'COPY copied (time, device_id, batch_id, leaf_index, tenant_id, data_hash, payload) FROM STDIN (FORMAT binary)',
  );
  wire.beginCopy();
  for (let n = first; n < first + count; n += 1) {
    const deviceId = deviceIds[n % deviceIds.length]!;
    const point = samplePoint(deviceId, n);
    const time = parseTimestamp(point.timestamp)!;
    const payload = writePayload({ numericValues: point.numeric_values, stringValues: point.string_values });
    wire.row(7);
    wire.int8(toNanoseconds(time));
    wire.uuid(deviceId);
    wire.uuid(deviceIds[Math.floor(n / 1000) % deviceIds.length]!);
    wire.int4(n % 1000);
    wire.text(tenantId);
    wire.binary(leafHash(tenantId, deviceId, time.seconds, payload));
    wire.text(payload);
  }
  wire.endCopy();
  return wire;
}
