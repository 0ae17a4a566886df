// OtaService: packages, rollouts, and the device's side of an update.
import { OtaService } from '@kellet/proto/es/kellet/v1/ota_pb';
import { s3SettingsOf } from '../../config/config.ts';
import type { Platform, ServiceModule } from '../../config/module.ts';
import { invalidArgument, permissionDenied } from '../../platform/errors.ts';
import { parseOutboundHosts } from '../../platform/outbound/outbound-addresses.ts';
import { OutboundGuard } from '../../platform/outbound/outbound-guard.ts';
import type { ServiceRegistry } from '../../platform/rpc.ts';
import type { TransactionalProfileReader } from '../../policies/profile-reader.ts';
import type { ResourceWriter } from '../../resources/resource-writer.ts';
import { ArtifactStores } from './artifacts/artifact-stores.ts';
import { ChunkCache } from './artifacts/chunk-cache.ts';
import { Chunks } from './delivery/chunks.ts';
import { assignedPackage } from './delivery/effective-packages.ts';
import { Overrides } from './delivery/overrides.ts';
import { Packages } from './packages/packages.ts';
import type { RolloutMembership } from './rollouts/membership.ts';
import { Reports } from './rollouts/reports.ts';
import { RolloutApplier } from './rollouts/rollout-applier.ts';
import { RolloutDriver } from './rollouts/rollout-driver.ts';
import { Rollouts } from './rollouts/rollouts.ts';
import { recountRollouts } from './rollouts/stores/rollout-store.ts';
import { rolloutSweep } from './rollouts/work/rollout-sweep.ts';
import { RolloutWork } from './rollouts/work/rollout-work.ts';
import { SigningKeys } from './signing-keys.ts';

/** The OTA part of device-link. */
export interface OtaModule extends ServiceModule {
  readonly packages: Packages;
  readonly rolloutApplier: RolloutApplier;
  readonly rolloutDriver: RolloutDriver;
}

/** Returns the entries of a list that is separated by commas. */
const splitList = (text: string): string[] =>
  text
    .split(',')
    .map((entry) => entry.trim())
    .filter((entry) => entry !== '');

/** Creates the OTA services. */
export function createOta(
  platform: Pick<Platform, 'database' | 'clock' | 'paging' | 'logger' | 'config' | 'metrics'>,
  profiles: TransactionalProfileReader,
  writer: ResourceWriter,
  membership: RolloutMembership,
): OtaModule {
  const { database, clock, paging, logger, config } = platform;
  const packages = new Packages({
    ...{ database, writer, paging, logger, metrics: platform.metrics },
    artifacts: {
      guard: new OutboundGuard(parseOutboundHosts(config.artifactHosts)),
      stores: new ArtifactStores(config.artifactStore, s3SettingsOf(config)),
      s3: {
        settings: s3SettingsOf(config),
        buckets: splitList(config.artifactBuckets),
        reserved: [config.artifactStore, config.coldUrl].filter((url) => url.startsWith('s3://')),
      },
      maximumBytes: config.artifactMaxBytes,
      transfers: config.artifactTransfers,
      transfersPerTenant: config.artifactTransfersPerTenant,
    },
    compatibilityChanged: recountRollouts,
  });
  const rolloutApplier = new RolloutApplier(database, profiles, clock);
  const rolloutDriver = new RolloutDriver(database, profiles, clock);
  const rollouts = new Rollouts({ database, profiles, writer, paging, clock });
  const sweep = rolloutSweep(database, logger, config.rolloutRetentionDays);
  const rolloutWork = new RolloutWork({ database, profiles, clock, logger });
  const signingKeys = new SigningKeys({ database, packages, membership, logger });
  const reports = new Reports(database, membership, clock);
  const chunks = new Chunks(database, new ChunkCache(packages.reader, config.artifactCacheBytes), clock);
  const overrides = new Overrides(database, profiles, membership);

  const register = (registry: ServiceRegistry): void =>
    registry.register(OtaService, {
      createPackage: (request, context) => packages.create(request, context),
      getPackage: (request, context) => packages.get(context.tenantId, request.packageId),
      listPackages: (request, context) => packages.list(request, context.tenantId),
      updatePackage: (request, context) => packages.update(request, context),
      deletePackage: async (request, context) => {
        await packages.delete(request.packageId, context);
        return {};
      },
      uploadArtifact: (requests, context) => packages.upload(requests, context),
      createRollout: (request, context) => rollouts.create(request, context),
      planRollout: (request, context) => rollouts.plan(request, context),
      getRollout: (request, context) => rollouts.get(context.tenantId, request.rolloutId),
      listRollouts: (request, context) => rollouts.list(request, context.tenantId),
      listRolloutDevices: (request, context) => rollouts.listDevices(request, context.tenantId),
      updateRollout: async (request, context) => {
        if (request.canaryPercent === undefined) throw invalidArgument('canary_percent is required');
        return rollouts.raise(context, request.rolloutId, request.canaryPercent);
      },
      pauseRollout: (request, context) => rollouts.pause(context, request.rolloutId),
      resumeRollout: (request, context) => rollouts.resume(context, request.rolloutId, request.canaryPercent),
      rollbackRollout: (request, context) => rollouts.rollback(context, request.rolloutId),
      approveRollout: (request, context) => rollouts.approve(context, request.rolloutId),
      cancelRollout: (request, context) => rollouts.cancel(context, request.rolloutId),
      retryRollout: (request, context) => rollouts.retry(context, request.rolloutId, request.deviceIds),
      skipRollout: (request, context) => rollouts.skip(context, request.rolloutId, request.deviceIds),
      getAssignedPackage: (request, context) => assignedPackage(database, clock, context.tenantId, request.deviceId),
      getChunk: (request, context) => chunks.get(context.tenantId, request),
      reportOta: async (request, context) => {
        if (!request.report) throw invalidArgument('a report is required');
        const named = request.report.deviceId.toLowerCase();
        if (named !== '' && named !== request.deviceId.toLowerCase()) {
          throw permissionDenied('device_id is not the device of the request');
        }
        return reports.report(context.tenantId, request.deviceId, request.report);
      },
      setAssignment: (request, context) => overrides.set(context.tenantId, request.deviceId, request.packageId),
      deleteAssignment: async (request, context) => {
        await overrides.remove(context.tenantId, request.deviceId);
        return {};
      },
    });
  return {
    register,
    start: async () => {
      signingKeys.start();
      rolloutWork.start();
      sweep.start();
      await packages.start();
    },
    stop: async () => {
      await signingKeys.stop();
      await Promise.all([rolloutWork.stop(), sweep.stop()]);
      await packages.stop();
    },
    packages,
    rolloutApplier,
    rolloutDriver,
  };
}
