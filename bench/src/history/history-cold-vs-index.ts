// history-cold-vs-index: a day of a device read from cold files, compared with the same day of another tenant read from indexed
// segments of the same database. Also prints what a point takes in either.
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { Database } from '../../../apiserver/src/platform/database/database.ts';
import { migrate } from '../../../apiserver/src/platform/database/migrate.ts';
import { newId } from '../../../apiserver/src/platform/ids.ts';
import { openStore } from '../../../apiserver/src/platform/object-store/open-store.ts';
import { createLogger } from '../../../apiserver/src/platform/observability/logger.ts';
import { createMetrics } from '../../../apiserver/src/platform/observability/metrics.ts';
import { ColdFiles } from '../../../apiserver/src/telemetry/cold/cold-files.ts';
import { doColdWork } from '../../../apiserver/src/telemetry/cold/cold-work.ts';
import { pageSlots, readTurns } from '../../../apiserver/src/telemetry/cold/slow-read.ts';
import { mergeNextRuns, packLeaves } from '../../../apiserver/src/telemetry/leaves/packing.ts';
import { readPoints } from '../../../apiserver/src/telemetry/read/history.ts';
import { indexNextSegment } from '../../../apiserver/src/telemetry/write/segments.ts';
import { startDatabase } from '../environment.ts';
import { type Benchmark, median } from '../harness.ts';

/** Points a day of each device: one a minute. */
const pointsPerDay = 1440;
const devices = 1000;
/** Days of each tenant; 35 are 100 million points. */
const days = Number(process.env['KELLET_BENCH_DAYS'] ?? 2);
const readsPerRound = 100;
/** Of the hash in a cold file, which is proof material; a batch has it once more in its vector of leaves. */
const hashBytes = 32;
const day = 86_400_000_000_000n;
const firstDay = BigInt(Date.UTC(2026, 0, 1)) * 1_000_000n;

/** The benchmark. */
export const historyColdVsIndex: Benchmark = {
  name: 'history-cold-vs-index',
  unit: 'ms',
  baseline: 'the same day in an indexed segment',
  rounds: 5,
  prepare: async () => {
    const { databaseUrl, close } = await startDatabase((line) => console.log(line));
    const folder = await mkdtemp(join(tmpdir(), 'kellet-bench-cold-'));
    const logger = createLogger('silent');
    const database = new Database(databaseUrl, logger);
    await migrate(database, logger);
    const deviceIds = Array.from({ length: devices }, () => newId());
    const store = openStore(pathToFileURL(folder).href, { endpoint: '', region: '', accessKey: '', secretKey: '' });
    const cold = new ColdFiles(store, { logger, metrics: createMetrics() });
    let [points, bytes] = [0, 0];
    for (const tenantId of ['cold', 'hot']) {
      await database.system((tx) =>
        tx.query('INSERT INTO tenants (tenant_id, name, namespace) VALUES ($1, $1, $1)', [tenantId]),
      );
      for (let number = 0; number < days; number += 1) await fillDay(database, tenantId, deviceIds, number);
      while (await indexNextSegment(database));
      while (await packLeaves(database));
      while (await mergeNextRuns(database));
      const turned = (morePoints: number, moreBytes: number) => {
        points += morePoints;
        bytes += moreBytes;
      };
      const parts = { database, logger, store, files: cold, hotSeconds: 0, turned };
      if (tenantId === 'cold') await doColdWork(parts, new AbortController().signal);
    }
    await database.pool.query('DELETE FROM leaf_runs WHERE replaced_at IS NOT NULL');
    // Without the space of deleted rows, which new ones take.
    await database.pool.query('VACUUM FULL leaf_blocks');
    const { rows } = await database.system((tx) =>
      tx.query<{ points: number; leaves: number }>(
        `SELECT sum(pg_total_relation_size('telemetry_segment_' || segment_id))::float8 AS points,
           (SELECT sum(pg_total_relation_size(name)) FROM unnest(ARRAY['leaf_blocks', 'leaf_runs']) AS name)::float8 AS leaves
         FROM telemetry_segments WHERE state = 'indexed'`,
      ),
    );
    const ofTenant = devices * pointsPerDay * days;
    const perPoint = {
      'bytes per cold point without its hash': bytes / points - hashBytes,
      'bytes per hot point': rows[0]!.points / ofTenant,
      'bytes per point of the index of leaves': rows[0]!.leaves / (2 * ofTenant),
    };
    const measure = (tenantId: string) => async () => {
      const milliseconds: number[] = [];
      for (let read = 0; read < readsPerRound; read += 1) {
        const deviceId = deviceIds[Math.floor(Math.random() * devices)]!;
        const start = firstDay + BigInt(Math.floor(Math.random() * days)) * day;
        const range = { tenantId, deviceId, start, end: start + day, keys: [], descending: false, limit: 10_000 };
        const begun = performance.now();
        const page = await readPoints({ database, cold, turns: readTurns(8), pages: pageSlots() }, range, undefined);
        milliseconds.push(performance.now() - begun);
        if (page.rows.length !== pointsPerDay) throw new Error(`${page.rows.length} points`);
      }
      return median(milliseconds);
    };
    return {
      ours: measure('cold'),
      baseline: measure('hot'),
      remarks: () => ({ ...perPoint, points: ofTenant }),
      close: async () => {
        store.close();
        await database.close();
        await close();
        await rm(folder, { recursive: true, force: true });
      },
    };
  },
};

/** Adds a segment with a day of all devices, as a writer leaves it. */
async function fillDay(database: Database, tenantId: string, deviceIds: readonly string[], number: number) {
  await database.maintenance(async (tx) => {
    const { rows } = await tx.query<{ id: bigint }>('SELECT telemetry_open_hot_segment($1) AS id', [newId()]);
    const { id } = rows[0]!;
    const start = firstDay / 1_000_000_000n + BigInt(number) * 86_400n;
    await tx.query(
      `INSERT INTO telemetry_segment_${id} (time, device_id, batch_id, leaf_index, tenant_id, data_hash, payload, received)
       SELECT seconds * 1000000000, device, md5($1 || seconds)::uuid, place - 1, $1, kellet_sha256d('\\x01'::bytea
         || int2send(length($1)::int2) || convert_to($1, 'UTF8') || int2send(36::int2) || convert_to(device::text, 'UTF8')
         || int8send(seconds) || convert_to(payload, 'UTF8')), payload, seconds * 1000
       FROM generate_series(0, ${pointsPerDay - 1}) AS n
       CROSS JOIN unnest($2::uuid[]) WITH ORDINALITY AS of_device (device, place)
       CROSS JOIN LATERAL (SELECT $3::int8 + n * 60 AS seconds,
         format('{"numeric_values":{"humidity":%s,"pressure":%s,"temperature":%s,"voltage":3.3},"string_values":{"firmware":"1.4.2","state":"%s"}}',
           40 + (n + place * 7) % 200, 1000 + (n * 3 + place) % 371, 20 + (n + place) % 97,
           CASE WHEN n % 2 = 0 THEN 'heating' ELSE 'idle' END) AS payload) AS made`,
      [tenantId, deviceIds, start],
    );
    // A batch has the points of a minute.
    await tx.query(
      `INSERT INTO anchor_batches (tenant_id, batch_id, anchor_mode, status, writer_id, count, leaves)
       SELECT tenant_id, batch_id, 'merkle', 'confirmed', batch_id, count(*), string_agg(data_hash, '' ORDER BY leaf_index)
       FROM telemetry_segment_${id} GROUP BY tenant_id, batch_id`,
    );
    await tx.query(
      `INSERT INTO unpacked_leaves (tenant_id, batch_id, is_proven, devices)
       SELECT tenant_id, batch_id, true, string_agg(uuid_send(device_id), '' ORDER BY leaf_index)
       FROM telemetry_segment_${id} GROUP BY tenant_id, batch_id`,
    );
    await tx.query(
      `UPDATE telemetry_segments SET state = 'sealed', sealed_at = now(), rows = $2, least_time = $3, greatest_time = $4
       WHERE segment_id = $1`,
      [id, devices * pointsPerDay, start * 1_000_000_000n, (start + 86_399n) * 1_000_000_000n],
    );
  });
}
