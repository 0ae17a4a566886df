// report-crossing-vs-plain: the report that crosses the failure threshold pauses the rollout before its response.
// Compared with the report before it, which is only counted.
import { create } from '@bufbuild/protobuf';
import { ObjectMetaSchema } from '@kellet/proto/es/kellet/control/v1/control_pb';
import { OtaReport_Status, OtaReportSchema } from '@kellet/proto/es/kellet/v1/ota_pb';
import { RolloutMembership } from '../../../apiserver/src/device-link/ota/rollouts/membership.ts';
import { Reports } from '../../../apiserver/src/device-link/ota/rollouts/reports.ts';
import { RolloutApplier } from '../../../apiserver/src/device-link/ota/rollouts/rollout-applier.ts';
import { createProfileReader } from '../../../apiserver/src/device-link/provisioning/profiles.ts';
import { Database } from '../../../apiserver/src/platform/database/database.ts';
import { migrate } from '../../../apiserver/src/platform/database/migrate.ts';
import { namedId, newId } from '../../../apiserver/src/platform/ids.ts';
import { createLogger } from '../../../apiserver/src/platform/observability/logger.ts';
import { startDatabase } from '../environment.ts';
import { type Benchmark, median } from '../harness.ts';

const tenantId = 'bench';
const devices = 1000;
const rolloutsPerRound = 20;

/** The benchmark. */
export const reportCrossing: Benchmark = {
  name: 'report-crossing-vs-plain',
  unit: 'ms',
  baseline: 'a report that is counted',
  rounds: 5,
  prepare: async () => {
    const { database, close } = await openDatabase();
    const clock = { now: () => Date.now() };
    const applier = new RolloutApplier(database, createProfileReader(database), clock);
    const reports = new Reports(database, new RolloutMembership(clock), clock);
    const profileId = namedId(tenantId, 'profile', 'sensor');
    const packageId = namedId(tenantId, 'package', 'two');
    await database.system(async (tx) => {
      await tx.query('INSERT INTO tenants (tenant_id, name, namespace) VALUES ($1, $1, $1)', [tenantId]);
      await tx.query(
        `INSERT INTO profiles (tenant_id, profile_id, namespace, resource_name, name, document)
         VALUES ($1, $2, $1, 'sensor', 'sensor', '{"type": "sensor"}')`,
        [tenantId, profileId],
      );
      await tx.query(
        `INSERT INTO ota_packages (tenant_id, package_id, name, display_name, type, version, artifact_uri, sha256, signature,
           size_bytes, status, checksum_verified)
         VALUES ($1, $2, 'two', 'two', 'fw', '2.0.0', 'https://x', sha256(''), '', 1, 'available', true)`,
        [tenantId, packageId],
      );
      await tx.query(
        `INSERT INTO devices (tenant_id, device_id, name, hardware_id, profile_id)
         SELECT $1, gen_random_uuid(), 'd', n::text, $2 FROM generate_series(1, $3::int4) AS n`,
        [tenantId, profileId, devices],
      );
    });

    const report = async (rolloutId: string, deviceId: string, success = false): Promise<number> => {
      const status = success ? OtaReport_Status.success : OtaReport_Status.failure;
      const firmwareVersion = success ? '2.0.0' : '1.0.0';
      const begun = performance.now();
      await reports.report(tenantId, deviceId, create(OtaReportSchema, { rolloutId, status, firmwareVersion }));
      return performance.now() - begun;
    };
    const expectPhase = async (id: string, phase: string): Promise<void> => {
      const { rows } = await database.read(tenantId, (tx) =>
        tx.query<{ phase: string }>('SELECT phase FROM ota_rollouts WHERE rollout_id = $1', [id]),
      );
      if (rows[0]?.phase !== phase) throw new Error(`the rollout is ${rows[0]?.phase}, not ${phase}`);
    };
    /** Applies a rollout to half of the fleet; the second failure pauses it. */
    const begin = async () => {
      const meta = create(ObjectMetaSchema, { tenantId, namespace: tenantId, name: newId(), uid: newId() });
      const policy = { canaryPercent: 50, failureThresholdPercent: 0, minFailures: 2 };
      const spec = { packageRef: { name: 'two' }, targetProfileRef: { name: 'sensor' }, ...policy };
      const { id } = await applier.apply(meta, spec);
      const { rows } = await database.read(tenantId, (tx) =>
        tx.query<{ device_id: string }>('SELECT device_id FROM ota_rollout_devices WHERE rollout_id = $1', [id]),
      );
      return { meta, id, members: rows.map((row) => row.device_id) };
    };

    let crossing: number[] = [];
    let perSecond = 0;
    return {
      // Both in the same rollouts: the first failure is counted, the second one pauses.
      baseline: async () => {
        const plain: number[] = [];
        crossing = [];
        for (let count = 0; count < rolloutsPerRound; count += 1) {
          const { meta, id, members } = await begin();
          plain.push(await report(id, members[0]!));
          await expectPhase(id, 'active');
          crossing.push(await report(id, members[1]!));
          await expectPhase(id, 'paused');
          if (count === 0) {
            const begun = performance.now();
            await Promise.all(members.slice(2).map((member) => report(id, member, true)));
            perSecond = (members.length - 2) / ((performance.now() - begun) / 1000);
            await database.system((tx) => tx.query(`UPDATE devices SET firmware_version = ''`));
          }
          await applier.remove(meta, false);
        }
        return median(plain);
      },
      ours: async () => median(crossing),
      remarks: () => ({ 'reports at once, per second': perSecond }),
      close,
    };
  },
};

/** Starts PostgreSQL with the schema of the data plane. */
async function openDatabase(): Promise<{ database: Database; close: () => Promise<void> }> {
  const { databaseUrl, close } = await startDatabase((line) => console.error(line));
  const logger = createLogger('silent');
  const database = new Database(databaseUrl, logger);
  await migrate(database, logger);
  return { database, close: () => database.close().then(close) };
}
