// The load of the ingest benchmarks: requests of 100 points over 32 connections, and a check that all of them are stored.
import { cpuMicroseconds } from '../cpu-time.ts';
import type { Environment } from '../environment.ts';
import { costOf } from '../gateway/cost.ts';
import { HttpLoad, type LoadResult, postRequest } from '../gateway/http-load.ts';
import type { Remarks } from '../harness.ts';
import { pointsPerRequest, telemetryBodies } from '../samples/request-bodies.ts';
import { StoredPoints } from './stored-points.ts';

/** Distinct requests of a round. A server that handles more of them receives them again. */
const requests = 4000;
const secondsPerRound = 5;

/** Names of processes in results, where they differ. */
const titles: Readonly<Record<string, string>> = { postgres: 'PostgreSQL', devchain: 'the test chain' };

/** Sends points that differ from those of all rounds before. */
export class IngestLoad {
  private readonly environment: Environment;
  private readonly stored: StoredPoints;
  private readonly generator = new HttpLoad();
  private firstPoint = 0;
  private last: LoadResult | undefined;
  /** CPU time of each process per point of the last run, in microseconds. */
  private cost: Remarks = {};

  private constructor(environment: Environment, stored: StoredPoints) {
    this.environment = environment;
    this.stored = stored;
  }

  static async open(environment: Environment): Promise<IngestLoad> {
    return new IngestLoad(environment, await StoredPoints.open(environment));
  }

  /**
   * Returns the points per second that were acknowledged: as many as the server takes, or at most `pointsPerSecond`. Throws
   * unless they are stored.
   */
  async run(pointsPerSecond?: number): Promise<number> {
    const { rest, apiKey, deviceIds } = this.environment;
    const bodies = telemetryBodies(deviceIds, requests, this.firstPoint);
    const measured = ['apiserver', 'postgres', 'devchain'].filter((name) => name in this.environment.pids);
    const processes = measured.map((name) => () => cpuMicroseconds(this.environment.pids[name]!));
    const { microseconds, ...last } = await costOf(
      this.generator,
      {
        ...rest,
        requests: bodies.map((body) => postRequest('/api/v1/telemetry', { 'X-API-Key': apiKey }, body)),
        expected: `"accepted":${pointsPerRequest}`,
        connections: 32,
        seconds: secondsPerRound,
        ...(pointsPerSecond !== undefined && { perSecond: pointsPerSecond / pointsPerRequest }),
      },
      processes,
    );
    this.last = last;
    // Continues with the next devices.
    this.firstPoint += Math.min(last.replies, requests) * pointsPerRequest;
    this.cost = Object.fromEntries(
      measured.map((name, index) => [`${titles[name] ?? name} µs per point`, microseconds[index]! / pointsPerRequest]),
    );
    await this.stored.expect(this.last.replies * pointsPerRequest);
    return this.last.perSecond * pointsPerRequest;
  }

  /** Requests of the last run. */
  get replies(): number {
    return this.last!.replies;
  }

  remarks(): Remarks {
    const { p50, p99, cores } = this.last!;
    return { 'p50 ms': p50, 'p99 ms': p99, ...this.cost, "the load generator's cores": cores };
  }

  async close(): Promise<void> {
    this.generator.close();
    await this.stored.close();
  }
}
