// Leader election with a Lease. Each candidate trusts only its own monotonic clock: a lease is expired if it has not
// been observed to change for its duration, whatever timestamps it contains and however clocks are set.
import { failureOf, type KubernetesClient, type KubernetesObject, resourceFor } from '@kellet/kubernetes';
import { type Clock, sleep } from './clock.ts';
import type { Logger } from './logger.ts';
import type { Metrics } from './metrics.ts';

/** API resource of Leases. */
export const leases = resourceFor('coordination.k8s.io/v1', 'Lease');

interface LeaseSpec {
  holderIdentity?: string;
  leaseDurationSeconds?: number;
  acquireTime?: string;
  renewTime?: string;
  leaseTransitions?: number;
}

/** A Lease object. */
export interface Lease extends KubernetesObject {
  spec?: LeaseSpec;
}

/** Next action of a candidate. */
export type LeaseDecision = 'renew' | 'acquire' | 'wait';

/**
 * Decides what to do with a lease. `unchangedSince` is the monotonic time at which it was first observed in this state.
 */
export function decideLease(lease: Lease, identity: string, unchangedSince: number, now: number): LeaseDecision {
  const { holderIdentity, leaseDurationSeconds = 0 } = lease.spec ?? {};
  if (holderIdentity === identity) return 'renew';
  if (!holderIdentity) return 'acquire';
  return now - unchangedSince >= leaseDurationSeconds * 1000 ? 'acquire' : 'wait';
}

/** Options of an election. */
export interface LeaderElectionOptions {
  client: Pick<KubernetesClient, 'get' | 'create' | 'mergePatch'>;
  clock: Clock;
  logger: Logger;
  metrics: Pick<Metrics, 'leader'>;
  namespace: string;
  /** Name of the Lease. */
  name: string;
  /** Unique to this process. */
  identity: string;
  /** Seconds without renewal after which another candidate may take over (default 15). */
  leaseSeconds?: number;
  /** Seconds for which the leader tries to renew before it gives up (default 10). */
  renewSeconds?: number;
  /** Seconds between attempts (default 2). */
  retrySeconds?: number;
}

/** A candidate. */
export class LeaderElection {
  private readonly options: Required<LeaderElectionOptions>;
  private observed: { text: string; since: number } | undefined;
  private lease: Lease | undefined;

  constructor(options: LeaderElectionOptions) {
    this.options = { leaseSeconds: 15, renewSeconds: 10, retrySeconds: 2, ...options };
    options.metrics.leader.set({ name: options.name }, 0);
  }

  /** Waits until this process leads. Returns false if the signal aborts first. */
  async acquire(signal: AbortSignal): Promise<boolean> {
    const { logger, metrics, name, identity } = this.options;
    while (!signal.aborted) {
      if (await this.tryOnce()) {
        logger.info({ lease: name, identity }, 'leading');
        metrics.leader.set({ name }, 1);
        return true;
      }
      await this.pause(signal);
    }
    return false;
  }

  /** Renews until the signal aborts, then releases the lease. Returns false if the lease was lost. */
  async hold(signal: AbortSignal): Promise<boolean> {
    const { clock, logger, metrics, name, renewSeconds } = this.options;
    let renewed = clock.monotonic();
    while (!signal.aborted) {
      await this.pause(signal);
      if (signal.aborted) break;
      const started = clock.monotonic();
      if (await this.tryOnce(renewed + renewSeconds * 1000)) renewed = started;
      else if (this.heldByAnother() || clock.monotonic() - renewed >= renewSeconds * 1000) {
        metrics.leader.set({ name }, 0);
        logger.error({ lease: name }, 'lost the lease');
        return false;
      }
    }
    metrics.leader.set({ name }, 0);
    await this.release();
    return true;
  }

  private heldByAnother(): boolean {
    const holder = this.lease?.spec?.holderIdentity;
    return holder !== undefined && holder !== '' && holder !== this.options.identity;
  }

  private async pause(signal: AbortSignal): Promise<void> {
    const { clock, retrySeconds } = this.options;
    await sleep(clock, retrySeconds * 1000 * (1 + clock.random() * 0.2), signal);
  }

  /** Attempts once to acquire or renew the lease. Fails on a timeout or at the deadline. */
  private async tryOnce(deadline = Infinity): Promise<boolean> {
    const { clock, logger, name, renewSeconds } = this.options;
    try {
      const attempt = this.attempt();
      // A hanging connection must leave time for another attempt.
      const limit = Math.min(deadline, clock.monotonic() + renewSeconds * 500);
      const done = new AbortController();
      const late = sleep(clock, Math.max(0, limit - clock.monotonic()), done.signal).then(() => {
        if (!done.signal.aborted) logger.warn({ lease: name }, 'the lease request timed out');
        return false;
      });
      return await Promise.race([attempt, late]).finally(() => done.abort());
    } catch (error) {
      if (failureOf(error) !== 'conflict' && failureOf(error) !== 'alreadyExists') {
        logger.warn(
          { lease: name, error: error instanceof Error ? error.message : String(error) },
          'could not acquire the lease',
        );
      }
      return false;
    }
  }

  private async attempt(): Promise<boolean> {
    const { client, clock, namespace, name, identity } = this.options;
    const now = new Date(clock.now()).toISOString().replace('Z', '000Z');
    const ours = { holderIdentity: identity, leaseDurationSeconds: this.options.leaseSeconds, renewTime: now };
    if (this.lease && (await this.renewUnread(this.lease, ours))) return true;
    let lease: Lease;
    try {
      lease = await client.get<Lease>(leases, namespace, name);
    } catch (error) {
      if (failureOf(error) !== 'notFound') throw error;
      const fresh: Lease = {
        apiVersion: 'coordination.k8s.io/v1',
        kind: 'Lease',
        metadata: { namespace, name },
        spec: { ...ours, acquireTime: now, leaseTransitions: 0 },
      };
      this.observe(await client.create<Lease>(leases, fresh));
      return true;
    }
    this.observe(lease);
    const decision = decideLease(lease, identity, this.observed!.since, clock.monotonic());
    if (decision === 'wait') return false;
    const spec =
      decision === 'renew'
        ? ours
        : { ...ours, acquireTime: now, leaseTransitions: (lease.spec?.leaseTransitions ?? 0) + 1 };
    // The resourceVersion ensures that only one of two concurrent candidates wins.
    const patch = { metadata: { resourceVersion: lease.metadata.resourceVersion }, spec };
    this.observe(await client.mergePatch<Lease>(leases, namespace, name, patch));
    return true;
  }

  /** Renews a lease as it was last seen. Returns false if it has changed since: then it has to be read. */
  private async renewUnread({ metadata, spec }: Lease, ours: LeaseSpec): Promise<boolean> {
    const { client, namespace, name, identity } = this.options;
    if (spec?.holderIdentity !== identity) return false;
    const patch = { metadata: { resourceVersion: metadata.resourceVersion }, spec: ours };
    try {
      this.observe(await client.mergePatch<Lease>(leases, namespace, name, patch));
      return true;
    } catch (error) {
      if (failureOf(error) === 'conflict' || failureOf(error) === 'notFound') return false;
      throw error;
    }
  }

  private observe(lease: Lease): void {
    this.lease = lease;
    const text = JSON.stringify(lease.spec ?? {});
    if (this.observed?.text !== text) this.observed = { text, since: this.options.clock.monotonic() };
  }

  /** Releases the lease, so that the next candidate need not wait for its expiry. */
  private async release(): Promise<void> {
    const { client, namespace, name, logger } = this.options;
    if (!this.lease || this.heldByAnother()) return;
    const patch = {
      metadata: { resourceVersion: this.lease.metadata.resourceVersion },
      spec: { holderIdentity: '', leaseDurationSeconds: 1 },
    };
    try {
      await client.mergePatch<Lease>(leases, namespace, name, patch);
    } catch (error) {
      logger.warn({ error: error instanceof Error ? error.message : String(error) }, 'failed to release the lease');
    }
  }
}
