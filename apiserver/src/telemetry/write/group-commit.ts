// The group commit: one ordered connection, the points of many requests per flush, two flushes in flight. A request
// completes when the flush with its points and their places in anchor batches is committed.
import { type Clock, sleep } from '../../platform/clock.ts';
import { Tally } from '../../platform/concurrency/tally.ts';
import { batchChannel, rulePointsChannel } from '../../platform/database/channels.ts';
import type { Database } from '../../platform/database/database.ts';
import { newId } from '../../platform/ids.ts';
import type { Logger } from '../../platform/observability/logger.ts';
import { type Counter, counter, type Registry } from '../../platform/observability/metrics.ts';
import { batchSecondsFor, type BatchSettings } from '../../policies/batch-seconds.ts';
import type { HashText } from '../points/leaf-hashes.ts';
import type { AcceptedPoint } from '../points/validate.ts';
import { Append, type Appended, costOf, NotTaken, ownerOf, ownPoints, type Part } from './append.ts';
import { chainKey, genesisHead, OpenBatches, type Placement } from './batches.ts';
import { encodeFlush } from './flush.ts';
import { failureCause, failureCauses, type FlushFailure, flushFailure } from './flush-failure.ts';
import { type FlushGroup, FlushQueue, keyTaken } from './flush-queue.ts';
import { type IdempotencyRow, isKeyTaken, nameOfKey, takenKeys } from './idempotency-keys.ts';
import {
  completeAt,
  emptySegment,
  finished,
  type OpenSegment,
  type SegmentLimits,
  withPoints,
} from './open-segment.ts';
import { RuleFeed, type RuleFeedPart } from './rule-feed.ts';
import { WriterSession } from './writer-session.ts';

/** Settings of a writer. */
export interface WriterOptions extends SegmentLimits {
  /** KELLET_BATCH_POINTS and KELLET_BATCH_SECONDS. */
  readonly batchPoints: number;
  readonly batchSeconds: number;
  /** Settings of tenants whose batches stay open for longer. */
  readonly batchSettings?: { get(tenantId: string): BatchSettings | undefined };
  /** How long a request waits for the database before it fails with UNAVAILABLE. */
  readonly holdMilliseconds: number;
  /** Limit on the bytes of waiting points in memory, half of it for those of a tenant; requests beyond it fail with UNAVAILABLE at once. */
  readonly maxWaitingBytes: number;
  /** Heads of chains that are kept, each in some 150 bytes: every device that has been in the mode chain leaves one. */
  readonly mostHeads: number;
  /** host:port at which other processes read what is in this one's memory; empty: they cannot. */
  readonly address: string;
}

/** Defaults for what the configuration does not set. */
export const writerDefaults: Omit<WriterOptions, 'batchPoints' | 'batchSeconds'> = {
  segmentRows: 1_000_000,
  segmentSeconds: 600,
  segmentMostSeconds: 86_400,
  holdMilliseconds: 5000,
  maxWaitingBytes: 192 * 1024 * 1024,
  mostHeads: 200_000,
  address: '',
};

/** What a request that waits takes besides its points. */
const partBytes = 1024;

const flushesInFlight = 2;
/** A flush without a response for this long counts as lost; slightly longer than the server's statement timeout. */
const flushTimeoutMilliseconds = 12_000;
const retryMilliseconds = 200;

interface Flight {
  readonly number: bigint;
  readonly group: FlushGroup;
  readonly points: readonly AcceptedPoint[];
  readonly placement: Placement;
  /** Whether it hands points to the rules engine. */
  readonly hasRulePoints: boolean;
  readonly segmentBefore: OpenSegment | undefined;
  readonly sentAt: number;
  readonly received: number;
  /** Resolves with the reason of the failure, or undefined once the flush is committed. */
  readonly outcome: Promise<Failure | undefined>;
}

interface Failure {
  readonly error: unknown;
}

/** Receives the points of a committed flush and when they arrived, as stored with them. */
export type CommitListener = (points: readonly AcceptedPoint[], received: number) => void;

/** The state that belongs to one identity of the writer. */
interface Identity {
  readonly session: WriterSession;
  readonly batches: OpenBatches;
  lastNumber: bigint;
  segment: OpenSegment | undefined;
}

/** Appends points durably. */
export class TelemetryWriter {
  private readonly database: Database;
  private readonly logger: Logger;
  private readonly clock: Clock;
  private readonly options: WriterOptions;
  private readonly committed: CommitListener;
  private readonly flushFailures: Counter<'cause'>;
  private readonly ruleFeed: RuleFeed;
  private readonly queue = new FlushQueue();
  /** Every identity this process has had. */
  readonly writerIds: string[] = [];
  private waitingBytes = 0;
  /** The same by owner. */
  private readonly waitingOf = new Tally();
  /** Arrival of the last flush. Rises with each, so that it tells which points of a segment are written on. */
  private received = 0;
  private flights: Flight[] = [];
  private failed = false;
  /** Whether the next flush completes the segment and seals batches. */
  private isSealing = false;
  /** Identities abandoned since the last commit. */
  private fruitlessIdentities = 0;
  private identity: Identity | undefined;
  /** Since when nothing could be stored, in milliseconds since 1970; undefined while storing works. */
  private troubledSince: number | undefined;
  private wake: () => void = () => undefined;
  private stopping = false;
  private running: Promise<void> | undefined;
  private sweeper: NodeJS.Timeout | undefined;
  private sweptAt = 0;

  /** `committed` is called with the points of each committed flush, in order. */
  constructor(
    dependencies: { database: Database; logger: Logger; clock: Clock; metrics: Registry },
    options: WriterOptions,
    committed: CommitListener,
  ) {
    this.flushFailures = counter(
      dependencies.metrics,
      'kellet_telemetry_flush_failures_total',
      'Flushes of points that the database did not take, by cause: disk_full, connection, data or other.',
      ['cause'],
    );
    // Prometheus sees the first failure only of a series that it knows.
    for (const cause of failureCauses) this.flushFailures.inc({ cause }, 0);
    this.database = dependencies.database;
    this.logger = dependencies.logger;
    this.clock = dependencies.clock;
    this.options = options;
    this.ruleFeed = new RuleFeed(dependencies.database);
    this.committed = committed;
  }

  start(): void {
    this.running = this.run();
    this.sweeper = setInterval(() => this.sweep(), 250);
  }

  /**
   * Resolves once the points are durable. Rejects with UNAVAILABLE if they could not be stored in time (they may still
   * be, unless it is a {@link NotTaken}), and with ALREADY_EXISTS if another process has just stored a response under the same
   * Idempotency-Key.
   */
  async append(points: readonly AcceptedPoint[], idempotency?: IdempotencyRow): Promise<Appended> {
    if (this.stopping) throw new NotTaken('the server is shutting down');
    const owner = ownerOf(points, idempotency);
    const cost = costOf(points);
    // A response to be kept waits as a point does.
    const weight = cost.weight + (idempotency ? 1 : 0);
    const bytes = cost.memory + partBytes + (idempotency?.response.length ?? 0);
    const most = this.options.maxWaitingBytes;
    const ofOwner = this.waitingOf.of(owner) + bytes;
    if (this.waitingBytes + bytes > most || (owner !== ownPoints && ofOwner > most / 2)) {
      throw new NotTaken('too many points are waiting to be stored');
    }
    const append = new Append(this.clock.now() + this.options.holdMilliseconds);
    this.countWaiting(owner, bytes);
    this.queue.add({ append, owner, weight, points, offset: 0, idempotency });
    this.wake();
    try {
      return await append.done;
    } finally {
      this.countWaiting(owner, -bytes);
    }
  }

  private countWaiting(owner: string, bytes: number): void {
    this.waitingBytes += bytes;
    this.waitingOf.add(owner, bytes);
  }

  /**
   * Flushes what is waiting, seals open batches and ends the identity. Gives up after the hold time if the database is
   * unavailable or rejects the flushes.
   */
  async stop(): Promise<void> {
    this.stopping = true;
    this.wake();
    await this.running;
    clearInterval(this.sweeper);
  }

  /** Completes the open segment and seals open batches now, as far as there are points in them. */
  seal(): void {
    const { segment, batches } = this.identity ?? {};
    this.isSealing = (segment?.rows ?? 0) > 0 || batches?.isEmpty === false;
    this.wake();
  }

  /** Seals the open batches of a tenant now. */
  sealTenant(tenantId: string): void {
    this.identity?.batches.makeDue(tenantId, this.clock.now());
    this.wake();
  }

  /** Throws if points have not been stored for longer than a request waits. */
  check(): void {
    const since = Math.min(this.troubledSince ?? Infinity, this.flights[0]?.sentAt ?? Infinity);
    if (this.clock.now() - since > this.options.holdMilliseconds) throw new Error('points cannot be stored');
  }

  /** Counts a flush that the database did not take. */
  private countFailure(kind: FlushFailure, error: unknown): void {
    const cause = failureCause(kind, error);
    if (cause) this.flushFailures.inc({ cause });
  }

  private async run(): Promise<void> {
    let giveUpAt = Infinity;
    for (;;) {
      // A database that responds but rejects every flush is as good as unavailable.
      if (this.stopping) giveUpAt = Math.min(giveUpAt, this.clock.now() + this.options.holdMilliseconds);
      if (this.clock.now() > giveUpAt) return this.identity?.session.abandon();
      try {
        if (this.stopping && this.isIdle() && !this.identity) return;
        const identity = (this.identity ??= await this.openIdentity());
        if (this.failed) await this.recover(identity);
        else if (!(await this.step(identity))) {
          await identity.session.close(this.database);
          return;
        }
      } catch (error) {
        this.troubledSince ??= this.clock.now();
        this.countFailure(flushFailure(error), error);
        this.logger.warn({ err: error }, 'the telemetry writer is waiting for the database');
        await sleep(retryMilliseconds);
      }
    }
  }

  private isIdle(): boolean {
    return this.queue.isEmpty && this.flights.length === 0;
  }

  private async openIdentity(): Promise<Identity> {
    const session = await WriterSession.open(this.database, this.clock, this.options.address);
    this.writerIds.push(session.writerId);
    this.logger.info({ writerId: session.writerId }, 'telemetry writer started');
    const { batchPoints: maxLeaves, batchSeconds, batchSettings, mostHeads } = this.options;
    const secondsOf = (tenantId: string) => {
      const settings = batchSettings?.get(tenantId);
      return settings ? batchSecondsFor(batchSeconds, settings) : batchSeconds;
    };
    const batches = new OpenBatches(newId, { maxLeaves, secondsOf, mostHeads });
    return { session, batches, lastNumber: 0n, segment: undefined };
  }

  /** Sends one flush or waits until one is due. Returns false when nothing is left to do and the writer is stopping. */
  private async step(identity: Identity): Promise<boolean> {
    const room = this.queue.hasSuspects || this.flights.some((flight) => flight.group.suspect) ? 1 : flushesInFlight;
    if (this.flights.length >= room) {
      await this.flights[0]!.outcome;
      return true;
    }
    // Requests that arrive in the same event-loop turn share a flush.
    if (!this.queue.isEmpty) await new Promise((resolve) => setImmediate(resolve));
    const group = this.queue.take();
    const draining = this.stopping && group.parts.length === 0;
    if (draining && this.flights.length > 0) await this.flights[0]!.outcome;
    else if (draining && identity.batches.isEmpty) return false;
    else if (draining || group.parts.length > 0 || this.dueIn(identity) <= 0) await this.flush(identity, group);
    else {
      if (this.isIdle()) this.troubledSince = undefined;
      await this.waitForWork(this.dueIn(identity));
    }
    return true;
  }

  /** Returns the milliseconds until a batch must be sealed or the segment completed. */
  private dueIn({ batches, segment }: Identity): number {
    if (this.isSealing) return 0;
    const segmentDue = segment ? completeAt(segment, this.options) : Infinity;
    return Math.min(batches.dueAt(), segmentDue) - this.clock.now();
  }

  private async waitForWork(milliseconds: number): Promise<void> {
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, Math.min(milliseconds, 3600_000));
      this.wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
    this.wake = () => undefined;
  }

  private async flush(identity: Identity, group: FlushGroup): Promise<void> {
    const points = group.parts.flatMap((part) => part.points);
    const now = this.clock.now();
    const segmentBefore = identity.segment;
    const { isSealing } = this;
    this.isSealing = false;
    const isComplete = segmentBefore && (completeAt(segmentBefore, this.options) <= now || isSealing);
    const complete = isComplete && segmentBefore.rows > 0 ? segmentBefore : undefined;
    let segment = complete ? undefined : segmentBefore;
    let ruleFeed: RuleFeedPart;
    try {
      if (points.length > 0) segment ??= await this.openSegment(identity.session.writerId);
      if (identity.batches.hasManyHeads) await this.forgetHeads(identity.batches);
      await this.loadChains(identity.batches, points);
      ruleFeed = await this.ruleFeed.partOf(points);
    } catch (error) {
      this.queue.putBack(group);
      if (flushFailure(error) !== 'fenced') throw error;
      await Promise.all(this.flights.map((flight) => flight.outcome));
      return this.changeIdentity(identity);
    }
    const placement = identity.batches.place(points, now, this.stopping || isSealing);
    identity.segment = segment && points.length > 0 ? withPoints(segment, points) : segment;
    identity.lastNumber += 1n;
    const received = (this.received = Math.max(this.received + 1, now - identity.session.ahead));
    const bytes = encodeFlush({
      writerId: identity.session.writerId,
      epoch: identity.session.epoch,
      number: identity.lastNumber,
      points,
      received,
      placement,
      segmentId: segment?.segmentId,
      finishedSegment: complete && finished(complete),
      idempotency: group.parts.flatMap((part) => part.idempotency ?? []),
      ruleFeed,
    });
    const outcome = identity.session.send(bytes).then(
      () => undefined,
      (error: unknown): Failure => ({ error }),
    );
    const number = identity.lastNumber;
    const hasRulePoints = ruleFeed.rows.length > 0;
    const flight = { number, group, points, placement, hasRulePoints, segmentBefore, sentAt: now, received, outcome };
    this.flights.push(flight);
    void outcome.then((failure) => this.landed(flight, failure));
  }

  private async openSegment(writerId: string): Promise<OpenSegment> {
    const { rows } = await this.database.system((tx) =>
      tx.query<{ segment_id: bigint }>('SELECT telemetry_open_hot_segment($1) AS segment_id', [writerId]),
    );
    return emptySegment(rows[0]!.segment_id, this.clock.now());
  }

  /** Drops the heads of chains, which are read again when they are needed, unless what is in flight may have moved them. */
  private async forgetHeads(batches: OpenBatches): Promise<void> {
    await Promise.all(this.flights.map(({ outcome }) => outcome));
    if (!this.failed) batches.forgetHeads();
  }

  private async loadChains(batches: OpenBatches, points: readonly AcceptedPoint[]): Promise<void> {
    const unknown = batches.unknownChains(points);
    if (unknown.length === 0) return;
    const heads = await this.headsOf(unknown);
    for (const { tenantId, deviceId } of unknown) {
      batches.knowHead(tenantId, deviceId, heads.get(chainKey(tenantId, deviceId)));
    }
  }

  /** Returns the heads of chains by their keys, of those that have points. */
  private async headsOf(chains: readonly { tenantId: string; deviceId: string }[]): Promise<Map<string, HashText>> {
    const { rows } = await this.database.system((tx) =>
      tx.query<{ tenant_id: string; device_id: string; head: Buffer }>(
        `SELECT tenant_id, device_id, head FROM device_chain
         JOIN unnest($1::text[], $2::uuid[]) AS wanted (tenant, device) ON tenant_id = tenant AND device_id = device`,
        [chains.map(({ tenantId }) => tenantId), chains.map(({ deviceId }) => deviceId)],
      ),
    );
    return new Map(rows.map((row) => [chainKey(row.tenant_id, row.device_id), row.head.toString('latin1')]));
  }

  private landed(flight: Flight, failure: Failure | undefined): void {
    if (failure) this.failed = true;
    // After a failure, recovery decides in order what became of the later flushes.
    else if (this.flights[0] === flight) this.commit(flight);
    this.wake();
  }

  /** Completes the requests of the first flight. */
  private commit(flight: Flight): void {
    this.flights.shift();
    this.fruitlessIdentities = 0;
    this.troubledSince = undefined;
    const { opened, continued } = flight.placement;
    if ([...opened, ...continued.keys()].some((batch) => batch.sealed)) this.database.hint(batchChannel);
    if (flight.hasRulePoints) this.database.hint(rulePointsChannel);
    try {
      if (flight.points.length > 0) this.committed(flight.points, flight.received);
    } catch (error) {
      // The points are durable whatever the callback does.
      this.logger.error({ err: error }, 'failed to pass on committed points');
    }
    for (const part of flight.group.parts) part.append.partCommitted();
  }

  /** Recovers from a failed flush: determines what was committed and requeues the rest. */
  private async recover(identity: Identity): Promise<void> {
    const outcomes = await Promise.all(this.flights.map((flight) => flight.outcome));
    while (this.flights.length > 0 && outcomes[0] === undefined) {
      this.commit(this.flights[0]!);
      outcomes.shift();
    }
    const failure = outcomes[0];
    if (failure) {
      const kinds = outcomes.map((outcome) => (outcome ? flushFailure(outcome.error) : 'lost'));
      const kind = kinds.includes('lost') || identity.session.lost ? 'lost' : kinds[0]!;
      this.countFailure(kind, failure.error);
      const level = kind === 'rules_changed' ? 'debug' : 'warn';
      this.logger[level]({ err: failure.error, kind, flushes: outcomes.length }, 'a telemetry flush failed');
      if (kind !== 'data' && kind !== 'chain_moved' && kind !== 'rules_changed')
        this.troubledSince ??= this.clock.now();
      if (kind === 'lost' || kind === 'fenced' || kind === 'behind') await this.changeIdentity(identity);
      else await this.goBack(identity, kind, failure.error);
    }
    this.failed = false;
  }

  /** Asks the database which flushes were committed and places the others again under a new identity. */
  private async changeIdentity(identity: Identity): Promise<void> {
    if (identity.session.lost) {
      identity.session.abandon();
      this.database.doubt();
    }
    const last = await identity.session.end(this.database);
    while (this.flights.length > 0 && this.flights[0]!.number <= last) this.commit(this.flights[0]!);
    this.putBackFlights();
    this.identity = undefined;
    if (this.fruitlessIdentities > 0) await sleep(Math.min(retryMilliseconds * this.fruitlessIdentities, 1000));
    this.fruitlessIdentities += 1;
  }

  /**
   * Handles a failure in which nothing was committed: undoes the flushes and retries them, or splits them to find the
   * bad row.
   */
  private async goBack(
    identity: Identity,
    kind: 'chain_moved' | 'rules_changed' | 'later' | 'data',
    error: unknown,
  ): Promise<void> {
    const first = this.flights[0]!;
    for (const flight of this.flights.toReversed()) flight.placement.undo();
    identity.segment = first.segmentBefore;
    identity.lastNumber = first.number - 1n;
    if (kind === 'chain_moved') identity.batches.forgetHeads();
    if (kind === 'rules_changed') this.ruleFeed.forget();
    if (kind === 'data' && isKeyTaken(error)) {
      this.flights.shift();
      this.putBackFlights();
      await this.settled(first.group, () => this.refuseTaken(first.group, error));
    } else if (kind === 'chain_moved') {
      this.flights.shift();
      this.putBackFlights();
      await this.settled(first.group, () => this.setMovedApart(first));
    } else if (kind === 'data' && first.group.parts.length > 0) {
      this.flights.shift();
      this.putBackFlights();
      this.queue.takeApart(first.group, error, this.logger);
    } else {
      this.putBackFlights();
      if (kind === 'later') await sleep(retryMilliseconds);
    }
  }

  /**
   * Fails those parts of a group whose Idempotency-Key is in use. They are not searched for, because that would take two flushes for
   * each, which those of others would wait for.
   */
  private async refuseTaken(group: FlushGroup, error: unknown): Promise<void> {
    const keyed = group.parts.flatMap(({ append, idempotency }) => (idempotency ? [{ append, idempotency }] : []));
    const taken = await this.database.systemRead((tx) =>
      takenKeys(
        tx,
        keyed.map(({ idempotency }) => idempotency),
      ),
    );
    for (const { append, idempotency } of keyed) if (taken.has(nameOfKey(idempotency))) append.fail(keyTaken(error));
    if (taken.size > 0) this.queue.putBack(group);
    // It was deleted meanwhile, or the group has a key twice.
    else this.queue.takeApart(group, error, this.logger);
  }

  /**
   * Has others go before the tenants whose chains another writer has moved: one that extends them all the time, which takes their
   * rows again as soon as it has committed, would make every flush with them fail.
   */
  private async setMovedApart({ group, placement }: Flight): Promise<void> {
    const heads = await this.headsOf(placement.chains);
    const moved = placement.chains.filter(
      ({ tenantId, deviceId, before }) => (heads.get(chainKey(tenantId, deviceId)) ?? genesisHead) !== before,
    );
    const tenants = new Set(moved.map(({ tenantId }) => tenantId));
    this.queue.setApart(group, ({ owner, points }) =>
      owner === ownPoints ? points.some(({ tenantId }) => tenants.has(tenantId)) : tenants.has(owner),
    );
  }

  /** Does something with a group that is neither in flight nor waiting. Puts it back if that fails. */
  private async settled(group: FlushGroup, settle: () => Promise<void>): Promise<void> {
    try {
      await settle();
    } catch (error) {
      this.queue.putBack(group);
      throw error;
    }
  }

  private putBackFlights(): void {
    for (const flight of this.flights.toReversed()) this.queue.putBack(flight.group);
    this.flights = [];
  }

  /** Fails requests that have waited too long and abandons an unresponsive connection. */
  private sweep(): void {
    const now = this.clock.now();
    // Batches that are due by a clock that has been set back would wait as much longer.
    if (now < this.sweptAt) this.seal();
    this.sweptAt = now;
    const parts: Part[] = [...this.queue.parts(), ...this.flights.flatMap((flight) => flight.group.parts)];
    for (const part of parts) part.append.expire(now);
    const oldest = this.flights[0];
    if (oldest && now > oldest.sentAt + flushTimeoutMilliseconds) this.identity?.session.abandon();
    else this.identity?.session.check(now);
  }
}
