// Repairs drift: re-applies what differs or is missing in the data plane, and removes what no longer has a resource.
import { customResources, type KubernetesClient, parseKey } from '@kellet/kubernetes';
import type { Cluster } from './cluster.ts';
import type { ControlClient } from './data-plane.ts';
import { type DriftCheck, type Orphan, toRemoveRequest, toWithdrawRequest } from './drift.ts';
import { type Clock, sleep } from './runtime/clock.ts';
import type { Logger } from './runtime/logger.ts';
import type { Metrics } from './runtime/metrics.ts';
import type { Target } from './triggers.ts';

/** Options of the repair loop. */
export interface DriftRepairOptions {
  client: Pick<KubernetesClient, 'find'>;
  cluster: Pick<Cluster, 'get' | 'namespace' | 'tenancyOf'>;
  dataPlane: Pick<ControlClient, 'apply' | 'remove' | 'listWorkingCopies'>;
  check: DriftCheck;
  /** Queues a resource for reconciliation. */
  add: (target: Target) => void;
  clock: Clock;
  logger: Logger;
  metrics: Pick<Metrics, 'drift'>;
  /** Milliseconds between the beginnings of two turns through all working copies, unless a turn takes longer. */
  intervalMilliseconds: number;
}

/** Working copies that are compared at once. */
export const driftPageSize = 500;

/** Pages in an interval, at most: what the check costs is bounded, and a turn takes longer if there are more. */
const pagesPerInterval = 20;

/** A namespace younger than this many intervals may still be filling from Git, so it has no orphans yet. */
const settledIntervals = 60;

/** Compares and repairs until the signal aborts. Never throws: after a failure, the next turn begins. */
export async function repairDrift(options: DriftRepairOptions, signal: AbortSignal): Promise<void> {
  const { clock, logger, intervalMilliseconds } = options;
  const pause = intervalMilliseconds / pagesPerInterval;
  let next = clock.monotonic() + intervalMilliseconds;
  let pageToken = '';
  while (!signal.aborted) {
    const wait = pageToken === '' ? Math.max(next - clock.monotonic(), pause) : pause;
    await sleep(clock, wait * (0.9 + clock.random() * 0.2), signal);
    if (signal.aborted) return;
    if (pageToken === '') next = clock.monotonic() + intervalMilliseconds;
    try {
      pageToken = await repairPage(options, pageToken);
    } catch (error) {
      pageToken = '';
      logger.debug({ err: error }, 'the drift check failed');
    }
  }
}

/** Compares and repairs the page of a token. Returns the token of the next one, which is empty at the end. */
async function repairPage(options: DriftRepairOptions, pageToken: string): Promise<string> {
  const { check, cluster, dataPlane, logger, metrics, add } = options;
  check.begin(pageToken === '');
  const page = await dataPlane.listWorkingCopies(pageToken, driftPageSize);
  const drift = check.compare(page, (kind, key) => cluster.get(kind, parseKey(key)) !== undefined);
  for (const found of ['changed', 'missing'] as const) {
    for (const target of drift[found]) {
      metrics.drift.inc({ kind: target.kind, found });
      logger.info({ ...target, found }, 'the working copy differs from what was applied: applying it again');
      add(target);
    }
  }
  // One that cannot be removed or changed must not keep the pages that follow from being compared.
  for (const orphan of drift.orphans) {
    await removeOrphan(options, orphan).catch((error: unknown) =>
      logger.debug({ err: error, ...orphan }, 'an orphan stays'),
    );
  }
  for (const tenantId of drift.abandoned) {
    await withdrawNamespace(options, tenantId).catch((error: unknown) =>
      logger.debug({ err: error, tenantId }, 'a tenant without a resource keeps its namespace'),
    );
  }
  return page.nextPageToken;
}

/**
 * Takes the namespace from a tenant without a Tenant, whose finalizer was removed by force, or whose data is from another cluster: its
 * namespace is gone, and whoever makes another of its name must not act for the tenant.
 */
async function withdrawNamespace({ client, dataPlane, logger }: DriftRepairOptions, tenantId: string): Promise<void> {
  if (await client.find(customResources.Tenant, '', tenantId)) return;
  const { refusal } = await dataPlane.apply(toWithdrawRequest(tenantId));
  logger.debug({ tenantId, refusal: refusal?.message }, 'a tenant without a resource has no namespace');
}

/**
 * Removes a working copy whose resource was deleted unnoticed: its finalizer was removed while no operator was running.
 */
async function removeOrphan(options: DriftRepairOptions, orphan: Orphan): Promise<void> {
  const { client, cluster, dataPlane, clock, logger, metrics, intervalMilliseconds } = options;
  const { kind, tenantId, namespace, name } = orphan;
  const tenancy = cluster.tenancyOf(namespace);
  if (!('tenantId' in tenancy) || tenancy.tenantId !== tenantId) return;
  const made = Date.parse(cluster.namespace(namespace)?.metadata.creationTimestamp ?? '');
  if (!(clock.now() - made > settledIntervals * intervalMilliseconds)) return;
  if (await client.find(customResources[kind], namespace, name)) return;
  metrics.drift.inc({ kind, found: 'orphan' });
  const { refusal } = await dataPlane.remove(toRemoveRequest(orphan));
  logger.info({ ...orphan, refusal: refusal?.message }, 'removed a working copy without a resource');
}
