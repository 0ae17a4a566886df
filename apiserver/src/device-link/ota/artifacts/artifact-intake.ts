// Fetches and receives artifacts into the content store, a limited number at a time, and removes those that no package refers to.
import { Loop } from '../../../platform/background/loop.ts';
import { FairSlots } from '../../../platform/concurrency/fair-slots.ts';
import type { Database, Transaction } from '../../../platform/database/database.ts';
import { KelletError, resourceExhausted, unavailable } from '../../../platform/errors.ts';
import type { Logger } from '../../../platform/observability/logger.ts';
import { type Counter, counter, Gauge, type Registry } from '../../../platform/observability/metrics.ts';
import type { OutboundGuard } from '../../../platform/outbound/outbound-guard.ts';
import type { Pace } from '../../../platform/outbound/pace.ts';
import { ArtifactError } from './artifact-error.ts';
import { type DeclaredArtifact, fetchArtifact, type FetchOptions } from './artifact-fetch.ts';
import { ArtifactReader } from './artifact-reader.ts';
import { removeRemains } from './artifact-remains.ts';
import { publishArtifact, removeArtifact, stageArtifact, touchArtifact } from './artifact-store.ts';
import type { ArtifactStores } from './artifact-stores.ts';
import { listUnusedArtifacts, lockUnusedArtifact, storedBytes } from './artifact-sweep-store.ts';
import { ArtifactWriter, writePlaces } from './artifact-writer.ts';
import type { S3Sources } from './s3-source.ts';
import type { SourceCredentials } from './source-credentials.ts';

/** Settings of the intake. */
export interface IntakeSettings {
  readonly guard: OutboundGuard;
  readonly stores: ArtifactStores;
  readonly s3: S3Sources;
  /** The greatest size of an artifact. */
  readonly maximumBytes: number;
  /** Artifacts that this process fetches at a time, and as many that it receives by upload. */
  readonly transfers: number;
  readonly transfersPerTenant: number;
  /** How long a request waits for a slot. */
  readonly waitMilliseconds?: number;
  /** How long a tenant waits before one with more transfers gives one up for it. */
  readonly askMilliseconds?: number;
  readonly pace?: Partial<Pace>;
  /** How long an artifact is kept without a package. */
  readonly unusedSeconds?: number;
}

/** How many transfers of a tenant may be queued; a queued upload holds a connection. */
const waitingPerTenant = { fetch: 1000, upload: 100 };
const defaultWaitMilliseconds = 30_000;
const defaultAskMilliseconds = 5000;
/** Longer than a request takes from its fetch to its package, so that its artifact is not removed in between. */
const defaultUnusedSeconds = 120;
const sweepMilliseconds = 5 * 60_000;
const artifactsPerSweep = 500;

/** Stores artifacts and removes unused ones. */
export class ArtifactIntake {
  readonly settings: IntakeSettings;
  readonly reader: ArtifactReader;
  private readonly database: Database;
  private readonly logger: Logger;
  private readonly slots: Readonly<Record<'fetch' | 'upload', FairSlots>>;
  private readonly places = writePlaces();
  private readonly closing = new AbortController();
  private readonly swept: Counter | undefined;
  private readonly removals = new Set<Promise<unknown>>();
  private readonly loop: Loop;

  constructor(database: Database, logger: Logger, settings: IntakeSettings, metrics?: Registry) {
    this.database = database;
    this.logger = logger;
    this.settings = settings;
    this.reader = new ArtifactReader(database, settings.stores);
    const { transfers: total, transfersPerTenant: perOwner } = settings;
    const refusal = (whose: 'own' | 'others') =>
      whose === 'others'
        ? unavailable('too many artifacts are on their way: try again')
        : resourceExhausted(
            `the tenant has ${perOwner} artifacts on their way already, the most at a time: try again`,
            5,
          );
    const askAfterMilliseconds = settings.askMilliseconds ?? defaultAskMilliseconds;
    const slots = (waitingPerOwner: number) =>
      new FairSlots({ total, perOwner, waitingPerOwner, askAfterMilliseconds, refusal });
    this.slots = { fetch: slots(waitingPerTenant.fetch), upload: slots(waitingPerTenant.upload) };
    this.loop = new Loop(logger, 'sweep of artifacts', sweepMilliseconds, () => this.sweep());
    this.swept = metrics && this.registerMetrics(metrics);
  }

  /**
   * Acquires a transfer slot of this process, for which a request waits up to half a minute, and does work in it. The work gets a
   * signal that aborts with UNAVAILABLE once it must give way to a tenant with fewer transfers. Throws RESOURCE_EXHAUSTED if the
   * tenant's own transfers take its slots, UNAVAILABLE if those of others do.
   */
  async inTurn<T>(
    kind: 'fetch' | 'upload',
    tenantId: string,
    given: { readonly signal: AbortSignal; readonly isPatient?: boolean },
    work: (others: AbortSignal) => Promise<T>,
  ): Promise<T> {
    const milliseconds = given.isPatient ? undefined : (this.settings.waitMilliseconds ?? defaultWaitMilliseconds);
    const others = new AbortController();
    const giveWay = (): void =>
      others.abort(unavailable(`the ${kind} has given way to another tenant, which has fewer: try again`));
    const { signal } = given;
    let leave: () => void;
    try {
      leave = await this.slots[kind].acquire(tenantId, { signal, milliseconds, giveWay });
    } catch (error) {
      throw signal.aborted ? new KelletError('CANCELLED', 'the request was broken off') : error;
    }
    try {
      return await work(others.signal);
    } finally {
      leave();
    }
  }

  /**
   * Fetches an artifact and stores it if it is the declared one; one that is already stored is only compared. Throws what
   * `fetchArtifact`, `enter` and the quota throw, and then keeps nothing.
   */
  async fetch(
    tenantId: string,
    uri: string,
    declared: DeclaredArtifact,
    given: {
      readonly signal: AbortSignal;
      readonly isPatient?: boolean;
      readonly credentials?: SourceCredentials | undefined;
    },
  ): Promise<void> {
    const { signal } = given;
    try {
      await this.inTurn('fetch', tenantId, given, async (others) => {
        const options = this.fetchOptions(tenantId, { ...given, signal: AbortSignal.any([signal, others]) });
        try {
          await this.fetchUnlessStored(tenantId, uri, declared, options);
        } catch (error) {
          if (!others.aborted || (error instanceof ArtifactError && error.permanent)) throw error;
          throw others.reason as Error;
        }
      });
    } catch (error) {
      if (!signal.aborted || error instanceof KelletError) throw error;
      throw new ArtifactError('the fetch was broken off', false, error);
    }
  }

  /** Returns a writer for a staged artifact that has `held` bytes. */
  writer(tenantId: string, key: Buffer, held: number): ArtifactWriter {
    const { database, places, settings } = this;
    return new ArtifactWriter({ database, places, stores: settings.stores }, tenantId, key, held);
  }

  /** Stages an artifact in the store of new ones (see stageArtifact). */
  stage(tx: Transaction, tenantId: string, sizeBytes: number): Promise<Buffer> {
    return stageArtifact(tx, tenantId, sizeBytes, this.settings.stores.current);
  }

  /** Reports whether the artifact is stored, and if so keeps it from being removed for a while. */
  private async isStored(tenantId: string, sha256: Buffer): Promise<boolean> {
    return (await this.database.tenant(tenantId, (tx) => touchArtifact(tx, tenantId, sha256))) !== undefined;
  }

  /**
   * Removes an artifact in the background if no package refers to it. The sweep removes what this leaves: after a failure, and
   * an artifact touched within `unusedSeconds`, because a request may be about to create its package.
   */
  removeUnused(tenantId: string, sha256: Buffer): void {
    const removal = this.sweepOne(tenantId, sha256)
      .then((isRemoved) => (isRemoved ? this.removeRemains() : undefined))
      .catch((error: unknown) => this.logger.warn({ err: error }, 'an unused artifact could not be removed yet'))
      .finally(() => this.removals.delete(removal));
    this.removals.add(removal);
  }

  /** Sweeps now and every few minutes. */
  start(): void {
    this.loop.start();
  }

  /** Stops the sweep. */
  async stop(): Promise<void> {
    this.closing.abort();
    await Promise.all([this.loop.stop(), ...this.removals]);
    this.settings.stores.close();
  }

  /**
   * Removes unused artifacts of all tenants, each in its own transaction: those of killed processes, abandoned uploads, and those
   * that could not be removed with their package. Returns how many.
   */
  async sweep(): Promise<number> {
    let count = 0;
    let after: { tenant_id: string; sha256: Buffer } | undefined;
    do {
      const from = after;
      const page = await this.database.system((tx) =>
        listUnusedArtifacts(tx, this.unusedSeconds, from, artifactsPerSweep),
      );
      for (const { tenant_id, sha256 } of page.unused) {
        if (this.closing.signal.aborted) return count;
        if (await this.sweepOne(tenant_id, sha256)) count += 1;
      }
      after = page.last;
    } while (after && !this.closing.signal.aborted);
    await this.removeRemains();
    return count;
  }

  private async removeRemains(): Promise<void> {
    await removeRemains(this.database, this.settings.stores, this.logger, this.closing.signal);
  }

  private get unusedSeconds(): number {
    return this.settings.unusedSeconds ?? defaultUnusedSeconds;
  }

  private async sweepOne(tenantId: string, key: Buffer): Promise<boolean> {
    const bytes = await this.database.system(async (tx) => {
      const found = await lockUnusedArtifact(tx, this.unusedSeconds, tenantId, key);
      if (found !== undefined) await removeArtifact(tx, tenantId, key);
      return found;
    });
    if (bytes !== undefined) this.swept?.inc(bytes);
    return bytes !== undefined;
  }

  private async fetchUnlessStored(
    tenantId: string,
    uri: string,
    declared: DeclaredArtifact,
    options: FetchOptions,
  ): Promise<void> {
    if (await this.isStored(tenantId, declared.sha256)) {
      await fetchArtifact(uri, declared, options, async () => async () => undefined);
      if (await this.isStored(tenantId, declared.sha256)) return;
      // Its last package was deleted meanwhile.
    }
    await this.fetchAndStore(tenantId, uri, declared, options);
  }

  private async fetchAndStore(
    tenantId: string,
    uri: string,
    declared: DeclaredArtifact,
    options: FetchOptions,
  ): Promise<void> {
    const { database } = this;
    let key: Buffer | undefined;
    try {
      let writer: ArtifactWriter | undefined;
      const size = await fetchArtifact(uri, declared, options, async (stated = 0) => {
        const staged = await database.tenant(tenantId, (tx) => this.stage(tx, tenantId, declared.sizeBytes || stated));
        key = staged;
        const made = (writer = this.writer(tenantId, staged, 0));
        return (piece) => made.write(piece);
      });
      await writer!.flush();
      await database.tenant(tenantId, (tx) => publishArtifact(tx, tenantId, key!, declared.sha256, size));
    } catch (error) {
      const left = key;
      if (left) {
        await database
          .tenant(tenantId, (tx) => removeArtifact(tx, tenantId, left))
          .catch((failure: unknown) => this.logger.warn({ err: failure }, 'a broken-off artifact waits for the sweep'));
      }
      throw error;
    }
  }

  private fetchOptions(
    tenantId: string,
    { signal, credentials }: { readonly signal: AbortSignal; readonly credentials?: SourceCredentials | undefined },
  ): FetchOptions {
    const { guard, maximumBytes, pace, s3 } = this.settings;
    return { guard, maximumBytes, s3, tenantId, signal, credentials, ...(pace ? { pace } : {}) };
  }

  private registerMetrics(metrics: Registry): Counter {
    const stored: Gauge = new Gauge({
      name: 'kellet_artifact_bytes',
      help: 'Bytes of artifacts in the content store, room kept for those on their way, and removed ones that a store still holds.',
      labelNames: ['state'],
      registers: [metrics],
      // A database that is away must not keep the other metrics from being read.
      collect: () =>
        this.database.system(storedBytes).then(
          (bytes) => {
            stored.set({ state: 'stored' }, bytes.stored);
            stored.set({ state: 'arriving' }, bytes.arriving);
            stored.set({ state: 'removed' }, bytes.removed);
          },
          () => stored.reset(),
        ),
    });
    const transfers: Gauge = new Gauge({
      name: 'kellet_artifact_transfers',
      help: 'Artifacts that are fetched or uploaded now, and those that wait for their turn.',
      labelNames: ['kind', 'state'],
      registers: [metrics],
      collect: () => {
        for (const kind of ['fetch', 'upload'] as const) {
          transfers.set({ kind, state: 'running' }, this.slots[kind].running);
          transfers.set({ kind, state: 'waiting' }, this.slots[kind].waiting);
        }
      },
    });
    return counter(
      metrics,
      'kellet_artifact_swept_bytes_total',
      'Bytes of artifacts removed because no package refers to them.',
    );
  }
}
