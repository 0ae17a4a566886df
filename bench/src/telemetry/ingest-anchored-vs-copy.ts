// ingest-anchored-vs-copy: the same as ingest-vs-copy while every batch is anchored on the local chain: signed, sent, mined,
// and its proof stored. After each round all of its points must be proven; the bundles of a few are verified independently.
import { setTimeout as sleep } from 'node:timers/promises';
import { fetchHeaders, pinsOfHeaders, verifyBundle } from '@kellet/verify';
import pg from 'pg';
import { type Environment, startEnvironment } from '../environment.ts';
import type { Benchmark } from '../harness.ts';
import { pointsPerRequest } from '../samples/request-bodies.ts';
import { copiedRows, copyRows } from './copied-rows.ts';
import { IngestLoad } from './ingest-load.ts';

const verifiedPerRound = 5;
/** A batch is sealed after two seconds, then sent, mined within one more, and confirmed by a callback. */
const patienceMilliseconds = 300_000;

/** The benchmark. */
export const ingestAnchoredVsCopy: Benchmark = {
  name: 'ingest-anchored-vs-copy',
  unit: 'points/s',
  baseline: 'binary COPY, 1,000 rows a commit',
  rounds: 5,
  prepare: async () => {
    const settings = { KELLET_BATCH_SECONDS: '2' };
    const environment = await startEnvironment((line) => console.error(line), 1000, { chain: true, settings });
    const load = await IngestLoad.open(environment);
    const client = new pg.Client({ connectionString: environment.databaseUrl });
    await client.connect();
    let points = 0;
    let remarks = {};
    return {
      baseline: () => copyRows(environment, 1000),
      ours: async () => {
        const perSecond = await load.run();
        const before = points;
        points += load.replies * pointsPerRequest;
        const provenAtEnd = (await provenPoints(client)) - before;
        const seconds = await untilProven(client, points);
        await verifySome(environment, client);
        remarks = {
          ...load.remarks(),
          'proven during the load, share': provenAtEnd / (points - before),
          'until all were proven s': seconds,
        };
        return perSecond;
      },
      beside: { 'in one commit': () => copyRows(environment, copiedRows) },
      remarks: () => remarks,
      close: async () => {
        await client.end();
        await load.close();
        await environment.close();
      },
    };
  },
};

async function provenPoints(client: pg.Client): Promise<number> {
  const { rows } = await client.query<{ points: number }>(
    `SELECT coalesce(sum(count), 0)::float8 AS points FROM anchor_batches WHERE status = 'confirmed'`,
  );
  return rows[0]!.points;
}

/** Waits until this many points are in confirmed batches. Returns the seconds. */
async function untilProven(client: pg.Client, points: number): Promise<number> {
  const started = performance.now();
  for (;;) {
    const proven = await provenPoints(client);
    const elapsed = performance.now() - started;
    if (proven === points) return elapsed / 1000;
    if (proven > points || elapsed > patienceMilliseconds) throw new Error(`${proven} of ${points} points are proven`);
    await sleep(200);
  }
}

/** Verifies bundles of random points against the chain's own headers. Throws unless they are proven. */
async function verifySome({ rest, apiKey, devchain }: Environment, client: pg.Client): Promise<void> {
  const pins = pinsOfHeaders(await fetchHeaders(devchain!, 0, 100_000), 'headers');
  const { rows } = await client.query<{ hash: string }>(
    `SELECT encode(data_hash, 'hex') AS hash FROM telemetry_points TABLESAMPLE SYSTEM (1) ORDER BY random() LIMIT $1`,
    [verifiedPerRound],
  );
  if (rows.length < verifiedPerRound) throw new Error('there are too few points to verify');
  for (const { hash } of rows) {
    const url = `http://${rest.host}:${rest.port}/api/v1/verify/hash/${hash}?include_bundle=true`;
    const response = await fetch(url, { headers: { 'X-API-Key': apiKey } });
    const { verdict, reason } = verifyBundle(await response.json(), { pins });
    if (verdict !== 'proven') throw new Error(`the point ${hash} is not proven: ${verdict} ${reason}`);
  }
}
