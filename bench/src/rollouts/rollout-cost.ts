// rollout-cost: CPU time per device of a rollout to fleets of several sizes, in the data plane alone: the order, a canary of a
// tenth, then the rest. Small fleets are repeated, so that each size schedules at least ten thousand devices a round. Compared with
// the smallest size.
//
//   KELLET_BENCH_DEVICES   sizes of the fleets (1000,10000,100000)
//   KELLET_BENCH_ROUNDS    rounds of all sizes (3)
import { create } from '@bufbuild/protobuf';
import { ObjectMetaSchema } from '@kellet/proto/es/kellet/control/v1/control_pb';
import { RolloutApplier } from '../../../apiserver/src/device-link/ota/rollouts/rollout-applier.ts';
import { RolloutWork } from '../../../apiserver/src/device-link/ota/rollouts/work/rollout-work.ts';
import { createProfileReader } from '../../../apiserver/src/device-link/provisioning/profiles.ts';
import { systemClock } from '../../../apiserver/src/platform/clock.ts';
import { Database } from '../../../apiserver/src/platform/database/database.ts';
import { migrate } from '../../../apiserver/src/platform/database/migrate.ts';
import { namedId, newId } from '../../../apiserver/src/platform/ids.ts';
import { createLogger } from '../../../apiserver/src/platform/observability/logger.ts';
import { cpuMicroseconds } from '../cpu-time.ts';
import { startDatabase } from '../environment.ts';
import { describeRound, resultOf, type Round, type Suite } from '../harness.ts';

const tenantId = 'bench';
const sizes = (process.env['KELLET_BENCH_DEVICES'] ?? '1000,10000,100000').split(',').map(Number);
const rounds = Number(process.env['KELLET_BENCH_ROUNDS'] ?? 3);
const devicesPerRound = 10_000;

/** CPU time in microseconds, of PostgreSQL and of this process, and seconds. */
interface Cost {
  readonly postgres: number;
  readonly process: number;
  readonly seconds: number;
}

const total = (costs: readonly Cost[]): Cost => ({
  postgres: costs.reduce((sum, cost) => sum + cost.postgres, 0),
  process: costs.reduce((sum, cost) => sum + cost.process, 0),
  seconds: costs.reduce((sum, cost) => sum + cost.seconds, 0),
});

/** The suite. */
export const rolloutCost: Suite = {
  name: 'rollout-cost',
  run: async (report) => {
    const { databaseUrl, supervisor, close } = await startDatabase(report);
    const database = new Database(databaseUrl, createLogger('fatal'));
    try {
      await migrate(database, createLogger('fatal'));
      const fleets = new Fleets(database, supervisor.pids()['postgres']!);
      await fleets.prepare();
      // Compiles the code.
      for (let number = 0; number < 3; number += 1) await fleets.measure(1000);
      const measured = new Map<number, Round[]>(sizes.map((size) => [size, []]));
      const figureOf = (size: number) => ({
        ...{ name: `rollout-cost-${size}`, unit: 'µs per device', baseline: `${sizes[0]} devices` },
      });
      for (let number = 1; number <= rounds; number += 1) {
        let smallest: number | undefined;
        for (const size of sizes) {
          const { ours, remarks } = await round(fleets, size);
          smallest ??= ours;
          const result = { ours, baseline: smallest, remarks };
          measured.get(size)!.push(result);
          report(`rollout-cost-${size}: round ${number}/${rounds}: ${describeRound(figureOf(size), result)}`);
        }
      }
      return sizes.map((size) => resultOf(figureOf(size), measured.get(size)!));
    } finally {
      await database.close();
      await close();
    }
  },
};

async function round(fleets: Fleets, size: number): Promise<Omit<Round, 'baseline'>> {
  const times = Math.max(1, Math.ceil(devicesPerRound / size));
  const begins: Cost[] = [];
  const rests: Cost[] = [];
  for (let time = 0; time < times; time += 1) {
    const [begin, rest] = await fleets.measure(size);
    begins.push(begin);
    rests.push(rest);
  }
  const [begin, rest, all] = [total(begins), total(rests), total([...begins, ...rests])];
  const devices = size * times;
  const memory = process.memoryUsage();
  return {
    ours: (all.postgres + all.process) / devices,
    remarks: {
      'PostgreSQL µs': all.postgres / devices,
      'process µs': all.process / devices,
      'µs of the order and a tenth': (begin.postgres + begin.process) / devices,
      'µs of the rest': (rest.postgres + rest.process) / devices,
      's of a rollout': all.seconds / times,
      'MB of the process': memory.rss / 2 ** 20,
    },
  };
}

/** Loads fleets, each with a profile of its own, and rolls out to them. */
class Fleets {
  private readonly database: Database;
  private readonly postgres: number;
  private readonly applier: RolloutApplier;
  private readonly work: RolloutWork;

  constructor(database: Database, postgres: number) {
    this.database = database;
    this.postgres = postgres;
    const profiles = createProfileReader(database);
    this.applier = new RolloutApplier(database, profiles, systemClock);
    this.work = new RolloutWork({ database, profiles, clock: systemClock, logger: createLogger('fatal') });
  }

  async prepare(): Promise<void> {
    await this.database.system(async (tx) => {
      await tx.query('INSERT INTO tenants (tenant_id, name, namespace) VALUES ($1, $1, $1)', [tenantId]);
      await tx.query(
        `INSERT INTO ota_packages (tenant_id, package_id, name, display_name, type, version, artifact_uri, sha256, signature,
           size_bytes, status, checksum_verified)
         VALUES ($1, $2, 'two', 'two', 'fw', '2.0.0', 'https://x', sha256(''), '', 1, 'available', true)`,
        [tenantId, namedId(tenantId, 'package', 'two')],
      );
    });
  }

  /** Returns what the creation with the canary costs, and what the rest does. */
  async measure(size: number): Promise<[Cost, Cost]> {
    const name = newId();
    await this.load(name, size);
    const meta = create(ObjectMetaSchema, { tenantId, namespace: tenantId, name, uid: newId() });
    const spec = { packageRef: { name: 'two' }, targetProfileRef: { name } };
    const roll = (canaryPercent: number) =>
      this.cost(async () => {
        await this.applier.apply(meta, { ...spec, canaryPercent });
        await this.work.finish();
      });
    const costs: [Cost, Cost] = [await roll(10), await roll(100)];
    const { rows } = await this.database.read(tenantId, (tx) =>
      tx.query<{ scheduled: number }>('SELECT scheduled FROM ota_rollouts WHERE name = $1', [name]),
    );
    if (rows[0]?.scheduled !== size) throw new Error(`${rows[0]?.scheduled} of ${size} devices were scheduled`);
    return costs;
  }

  private async load(name: string, size: number): Promise<void> {
    const profileId = namedId(tenantId, 'profile', name);
    await this.database.maintenance(async (tx) => {
      await tx.query(
        `INSERT INTO profiles (tenant_id, profile_id, namespace, resource_name, name, document)
         VALUES ($1, $2, $1, $3, $3, '{"type": "sensor"}')`,
        [tenantId, profileId, name],
      );
      await tx.query(
        `INSERT INTO devices (tenant_id, device_id, name, hardware_id, profile_id)
         SELECT $1, gen_random_uuid(), 'd', $2 || n, $3 FROM generate_series(1, $4::int4) AS n`,
        [tenantId, name, profileId, size],
      );
    });
  }

  private async cost(work: () => Promise<void>): Promise<Cost> {
    const [own, postgres, begun] = [process.cpuUsage(), cpuMicroseconds(this.postgres), performance.now()];
    await work();
    const { user, system } = process.cpuUsage(own);
    const seconds = (performance.now() - begun) / 1000;
    return { postgres: cpuMicroseconds(this.postgres) - postgres, process: user + system, seconds };
  }
}
