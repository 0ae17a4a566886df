// Implements kellet.v1.TelemetryService: ingest, latest values and history.
import { create } from '@bufbuild/protobuf';
import type { Timestamp } from '@bufbuild/protobuf/wkt';
import { MemoryService } from '@kellet/proto/es/kellet/internal/v1/memory_pb';
import {
  type GetHistoryRequest,
  GetHistoryRequest_AggregationSchema,
  GetHistoryRequest_OrderSchema,
  type GetHistoryResponse,
  type HistoryPoint,
  HistoryPointSchema,
  type IngestStreamRequest,
  type IngestStreamResponse,
  IngestStreamResponseSchema,
  type LatestTelemetry,
  LatestTelemetrySchema,
  TelemetryService,
} from '@kellet/proto/es/kellet/v1/telemetry_pb';
import type { Platform, ServiceModule } from '../config/module.ts';
import type { Peers } from '../internal/peers.ts';
import { Loop } from '../platform/background/loop.ts';
import { resultsChannel, sealChannel, sealTenantChannel } from '../platform/database/channels.ts';
import { failedPrecondition, invalidArgument, notFound, permissionDenied } from '../platform/errors.ts';
import { isId } from '../platform/ids.ts';
import { type Counter, counter, Histogram, readGauge } from '../platform/observability/metrics.ts';
import { enumFilter } from '../platform/requests/enums.ts';
import type { Page } from '../platform/requests/paging.ts';
import type { CallContext, ServiceRegistry } from '../platform/rpc.ts';
import { holdsInPart, isLimited, type Visibility, visibilityOf, type VisibleDevices } from '../platform/visibility.ts';
import type { BatchSettings } from '../policies/batch-seconds.ts';
import { FollowedTenants } from '../policies/followed-tenants.ts';
import { batchSettings, publicationChoices, retentionStarts } from '../policies/tenant-reader.ts';
import { type ColdStorage, openColdStorage } from './cold/cold-storage.ts';
import { doColdWork } from './cold/cold-work.ts';
import { pageSlots, readTurns } from './cold/slow-read.ts';
import { AnchorQuota } from './ingest/anchor-quota.ts';
import { anchorNextHeads, type AuditHeadParts, headsAtOnce } from './ingest/audit-heads.ts';
import { forgetOldResponses } from './ingest/idempotency.ts';
import { Ingest } from './ingest/ingest.ts';
import { KeptErrors } from './ingest/kept-errors.ts';
import { PointQuota } from './ingest/point-quota.ts';
import { GivenSubmission, type Submission, submissionOf } from './ingest/submission.ts';
import { anchorNextResults, type ResultParts } from './ingest/update-results.ts';
import { forgetReplacedRuns, mergeNextRuns, packLeaves, unpackNextTable } from './leaves/packing.ts';
import { byDevice, LiveHub, LiveRoom } from './live/live.ts';
import { publishPoints } from './live/publish.ts';
import { PublishedTenants } from './live/published-tenants.ts';
import type { Devices, FindEntityView, Liveness, TelemetryDevice } from './points/devices.ts';
import type { PointValues } from './points/payload.ts';
import { formatNanoseconds } from './points/timestamp.ts';
import { type AcceptedPoint, nameProblem } from './points/validate.ts';
import type { Aggregation } from './read/buckets.ts';
import { keyFilter, type PointCursor, type PointSource, readBuckets, readPoints } from './read/history.ts';
import type { HistoryRange } from './read/hot-points.ts';
import { readNextTail, TailKeeper } from './read/hot-tails.ts';
import {
  fromDocument,
  type LatestDocument,
  type LatestValues,
  toDocument,
  withoutReplaced,
} from './read/latest-values.ts';
import { measuredPoints } from './read/measured-point.ts';
import { newestOfDevices } from './read/newest-points.ts';
import { Rates } from './read/point-rate.ts';
import { snapshotDefaults, type SnapshotOptions, SnapshotStore } from './read/snapshot-store.ts';
import { forgetOldDays, Usage } from './read/usage.ts';
import { endOfTime, intersect, latestWithin, wholeOf, type Window } from './read/view-window.ts';
import { eachSegment } from './write/each-segment.ts';
import { TelemetryWriter, writerDefaults, type WriterOptions } from './write/group-commit.ts';
import { forgetSealed, recordNextSegment } from './write/open-batch-leaves.ts';
import { countHotSegments, expireNextSegment, indexNextSegment } from './write/segments.ts';
import { takeOverDeadWriters } from './write/writer-closing.ts';

/** The telemetry service and what other services use of it. */
export interface TelemetryModule extends ServiceModule {
  /** The live feed of every device's committed points. */
  readonly live: LiveHub;
}

/** Options besides the configuration. */
export interface TelemetryOptions {
  readonly writer?: Partial<WriterOptions>;
  readonly snapshots?: Partial<SnapshotOptions>;
  /** The other processes that take points; undefined if this is the only one. */
  readonly peers?: Peers;
  /** The live hub, connected to the other processes. */
  readonly live?: LiveHub;
  /** Finds the entity views that may be read instead of devices; undefined if there are none. */
  readonly findView?: FindEntityView;
  /** Where cold points are stored; opened by the configuration if it is not shared with another service. */
  readonly cold?: ColdStorage;
  /** Milliseconds between rounds of turning points cold. */
  readonly coldMilliseconds?: number;
  /** Tells which devices limited callers reach; without it, they reach none. */
  readonly visibleDevices?: VisibleDevices;
  /** Milliseconds between checks for dead writers and complete segments. */
  readonly maintenanceMilliseconds?: number;
  /** Bytes of errors that are kept for the Idempotency-Keys of a tenant in a day. */
  readonly keptErrorBytes?: number;
  /** How long a process that stops writes latest values and signs of life. */
  readonly stopMilliseconds?: number;
}

/** Creates the service. */
export function createTelemetry(
  platform: Platform,
  devices: Devices,
  liveness: Liveness,
  options: TelemetryOptions = {},
): TelemetryModule {
  return new Telemetry(platform, devices, liveness, options);
}

/** What a caller reads, and the device that the response names: none for an entity view whose reader must not know it. */
interface Readable {
  readonly window: Window;
  readonly shownId: string;
}

const maxPointsPerPage = 10_000;
/** How long after a result of an update was written it becomes a point, so that several do together. */
const gatherMilliseconds = 500;
/** How often results are looked for that were not announced. */
const resultMilliseconds = 5000;
/** Interval between scans for audit logs with events to anchor. */
const auditMilliseconds = 5000;
/** What newest points that are not written may take of the memory for known devices. */
const snapshotShare = 2 / 3;
const sweepMilliseconds = 60_000;
/** How often segments are looked for that should turn cold. */
const coldMilliseconds = 30_000;
const packMilliseconds = 10_000;
const mergeMilliseconds = 60_000;
/** How long after its start a process moves what earlier versions wrote, which none of these that still runs would find then. */
const upgradeMilliseconds = 3_600_000;
const stopMilliseconds = 4000;
const nanosecondsPerSecond = 1_000_000_000n;

class Telemetry implements TelemetryModule {
  readonly live: LiveHub;
  private readonly platform: Platform;
  private readonly devices: Devices;
  private readonly liveness: Liveness;
  private readonly options: TelemetryOptions;
  private readonly cold: ColdStorage;
  private readonly turns = readTurns(8);
  private readonly pages = pageSlots();
  private readonly snapshots: SnapshotStore;
  private readonly usage: Usage;
  private readonly tail: TailKeeper;
  private readonly writer: TelemetryWriter;
  private readonly pointQuota: PointQuota;
  private readonly ingest: Ingest;
  private readonly resultParts: ResultParts;
  private readonly auditParts: AuditHeadParts;
  private readonly rates = new Rates();
  /** Tenants whose points are published as telemetry.points.{tenant}.{device}. */
  private readonly published: PublishedTenants;
  private readonly publication: FollowedTenants<boolean>;
  private readonly batchSettings: FollowedTenants<BatchSettings>;
  private readonly pointsTotal: Counter<'result'>;
  private readonly ingestSeconds: Histogram;
  private readonly coldPoints: Counter<never>;
  private readonly coldBytes: Counter<never>;
  private readonly coldFailures: Counter<never>;
  private isSealing = false;
  private loops: readonly Loop[] = [];

  constructor(platform: Platform, devices: Devices, liveness: Liveness, options: TelemetryOptions) {
    this.platform = platform;
    this.devices = devices;
    this.liveness = liveness;
    this.options = options;
    this.live = options.live ?? new LiveHub();
    this.cold = options.cold ?? openColdStorage(platform);
    this.publication = new FollowedTenants(platform.database, platform.logger, publicationChoices);
    this.published = new PublishedTenants(platform.config.publishPoints, this.publication);
    this.batchSettings = new FollowedTenants(platform.database, platform.logger, batchSettings);
    const { database, logger, clock } = platform;
    const snapshotBytes = snapshotShare * platform.config.deviceCacheBytes;
    const snapshotOptions = { ...snapshotDefaults, maxBytes: snapshotBytes, ...options.snapshots };
    this.snapshots = new SnapshotStore(database, logger, clock, snapshotOptions);
    this.usage = new Usage(database, logger);
    const { batchPoints, batchSeconds } = platform.config;
    const address = options.peers?.address ?? '';
    const limits = { batchPoints, batchSeconds, batchSettings: this.batchSettings };
    const writerOptions = { ...writerDefaults, ...limits, address, ...options.writer };
    this.writer = new TelemetryWriter(platform, writerOptions, (points, received) => this.committed(points, received));
    this.tail = new TailKeeper(this.readers, this.writer.writerIds);
    this.pointsTotal = counter(platform.metrics, 'kellet_telemetry_points_total', 'Points by result.', ['result']);
    this.ingestSeconds = new Histogram({
      name: 'kellet_telemetry_ingest_seconds',
      help: 'Time from a request to its durable response.',
      buckets: [0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5],
      registers: [platform.metrics],
    });
    const { metrics } = platform;
    this.coldPoints = counter(metrics, 'kellet_cold_points_total', 'Points that this process has turned cold.');
    this.coldBytes = counter(metrics, 'kellet_cold_written_bytes_total', 'Bytes of the files in which they are.');
    this.coldFailures = counter(metrics, 'kellet_cold_failures_total', 'Failed rounds of turning points cold.');
    readGauge(platform, 'kellet_hot_segments', 'Segments of points in the database.', async () => {
      const { hot } = await database.systemRead((tx) => countHotSegments(tx));
      return hot;
    });
    const anchorQuota = new AnchorQuota(platform.database);
    this.pointQuota = new PointQuota(platform);
    this.auditParts = { database, clock, writer: this.writer };
    this.resultParts = { database, devices, writer: this.writer, quota: anchorQuota };
    this.ingest = new Ingest({
      database: platform.database,
      devices,
      writer: this.writer,
      clock: platform.clock,
      anchorQuota,
      pointQuota: this.pointQuota,
      keptErrors: new KeptErrors(clock, options.keptErrorBytes),
      rejected: (tenantId, deviceId) => {
        this.pointsTotal.inc({ result: 'rejected' });
        this.usage.reject(tenantId, deviceId);
      },
    });
  }

  register(registry: ServiceRegistry): void {
    registry.register(TelemetryService, {
      ingest: (request, context) => this.take(submissionOf(request, context.tenantId), context),
      ingestStream: (requests, context) => this.takeStream(requests, context),
      getMetrics: (request, context) => this.metrics(request.deviceId, context),
      getLatest: (request, context) => this.latest(request.deviceId, context),
      getHistory: (request, context) => this.history(request, context),
    });
    registry.register(MemoryService, {
      recallSigns: async ({ deviceIds }, { tenantId }) => ({
        signs: deviceIds.flatMap((deviceId) => {
          const sign = this.liveness.overlay(tenantId, deviceId);
          return sign ? [{ deviceId, ...sign }] : [];
        }),
      }),
      recallLatest: async ({ deviceId, mostBytes }, { tenantId }) => {
        if (mostBytes > 0 && this.snapshots.bytesOfDevice(tenantId, deviceId) > mostBytes)
          return { document: '', isLarge: true };
        const held = this.snapshots.held(tenantId, deviceId);
        return { document: held ? toDocument(held) : '' };
      },
    });
  }

  async start(): Promise<void> {
    const { database, logger } = this.platform;
    const interval = this.options.maintenanceMilliseconds ?? 5000;
    this.writer.start();
    this.snapshots.start();
    this.usage.start();
    this.pointQuota.start();
    this.publication.start();
    this.batchSettings.start();
    const results = new Loop(
      logger,
      'anchoring of results',
      resultMilliseconds,
      async () => (await anchorNextResults(this.resultParts)) > 0,
    );
    const wakeResults = () => results.wakeIn(gatherMilliseconds);
    database.listen([resultsChannel], wakeResults, wakeResults);
    database.listen(
      [sealTenantChannel],
      (_channel, tenantId) => this.writer.sealTenant(tenantId),
      () => undefined,
    );
    this.loops = [
      new Loop(logger, 'takeover of dead telemetry writers', interval, (signal) =>
        takeOverDeadWriters(database, logger, signal),
      ),
      new Loop(logger, 'indexing of segments', interval, (signal) =>
        eachSegment((after) => indexNextSegment(database, after), logger, signal),
      ),
      new Loop(logger, 'recording of open batches', interval, (signal) =>
        eachSegment((after) => recordNextSegment(database, after), logger, signal),
      ),
      ...this.leafLoops(),
      new Loop(logger, 'reading of the tails of dead writers', interval, (signal) =>
        readNextTail(this.readers, signal),
      ),
      new Loop(logger, 'shortening of the tail', interval, () => this.tail.shorten()),
      results,
      new Loop(logger, 'anchoring of audit logs', auditMilliseconds, async () => {
        const before = this.platform.clock.now() - this.platform.config.auditAnchorSeconds * 1000;
        return (await anchorNextHeads(this.auditParts, before)) === headsAtOnce;
      }),
      new Loop(logger, 'expiry of points', sweepMilliseconds, async () =>
        expireNextSegment(database, await database.systemRead((tx) => retentionStarts(tx))),
      ),
      ...this.coldLoops(),
      new Loop(logger, 'sweep of telemetry', sweepMilliseconds, (signal) => {
        this.rates.turn(this.platform.clock.now());
        return Promise.all([forgetOldResponses(database, signal), forgetOldDays(database), forgetSealed(database)]);
      }),
    ];
    for (const loop of this.loops) loop.start();
  }

  check(): void {
    this.writer.check();
  }

  async stop(): Promise<void> {
    const stopped = this.loops.map((loop) => loop.stop());
    this.publication.stop();
    this.batchSettings.stop();
    await this.writer.stop();
    await Promise.all(stopped);
    await this.usage.stop();
    await this.pointQuota.stop().catch((error: unknown) => {
      this.platform.logger.warn({ err: error }, 'leased points could not be returned');
    });
    const isEnded = await this.tail.end(this.options.stopMilliseconds ?? stopMilliseconds).catch((error: unknown) => {
      this.platform.logger.warn({ err: error }, 'what follows from the last points was left to the next process');
      return true;
    });
    if (!isEnded) {
      this.platform.logger.info(
        'there was not enough time to write what follows from the last points; left to the next process',
      );
    }
  }

  /** Returns the loops that pack leaves. */
  private leafLoops(): Loop[] {
    const { database, logger, clock } = this.platform;
    const movesFrom = clock.now() + upgradeMilliseconds;
    return [
      new Loop(logger, 'packing of leaves', packMilliseconds, (signal) => packLeaves(database, signal)),
      new Loop(logger, 'merging of packed leaves', mergeMilliseconds, (signal) => mergeNextRuns(database, signal)),
      new Loop(logger, 'deletion of merged leaves', mergeMilliseconds, () => forgetReplacedRuns(database)),
      new Loop(
        logger,
        'moving of leaf tables',
        mergeMilliseconds,
        // Lookups search what waits to be packed one by one.
        async (signal) =>
          clock.now() >= movesFrom && ((await packLeaves(database, signal)) || unpackNextTable(database)),
      ),
    ];
  }

  /** Returns the loop of cold storage, if there is any. */
  private coldLoops(): Loop[] {
    const { cold } = this;
    const { database, logger, config } = this.platform;
    if (!cold.store) return [];
    const { store, files } = cold;
    database.listen(
      [sealChannel],
      () => void this.seal(),
      () => undefined,
    );
    const turned = (points: number, bytes: number) => {
      this.coldPoints.inc(points);
      this.coldBytes.inc(bytes);
    };
    const parts = { database, logger, store, files, hotSeconds: config.hotHours * 3600, turned };
    const interval = this.options.coldMilliseconds ?? coldMilliseconds;
    return [
      new Loop(logger, 'cold storage', interval, async (signal) => {
        // Everything that is due is done at once: the loop need not be told to go on.
        await doColdWork(parts, signal).catch((error: unknown) => {
          if (!signal.aborted) this.coldFailures.inc();
          throw error;
        });
      }),
    ];
  }

  /** Completes the open segment and writes what follows from its points, so that it can turn cold. */
  private async seal(): Promise<void> {
    this.writer.seal();
    if (this.isSealing) return;
    this.isSealing = true;
    try {
      // The first call records what has been received by now; once that is written, the second one shortens the tail to it.
      await this.tail.shorten();
      await Promise.all([this.snapshots.writeAll(), this.liveness.writeAll()]);
      await this.tail.shorten();
    } catch (error) {
      this.platform.logger.warn(
        { err: error },
        'latest values and signs of life of the last points could not be written',
      );
    } finally {
      this.isSealing = false;
    }
  }

  /** Where history is read. */
  private get source(): PointSource {
    return { database: this.platform.database, cold: this.cold.files, turns: this.turns, pages: this.pages };
  }

  private get readers() {
    const { database, clock } = this.platform;
    return { database, clock, snapshots: this.snapshots, liveness: this.liveness };
  }

  private async take(points: Submission, context: CallContext) {
    const end = this.ingestSeconds.startTimer();
    await this.snapshots.roomFor(context.tenantId);
    const result = await this.ingest.take(points, context);
    end();
    const { caller, tenantId } = context;
    // A gateway that sends only for its children is alive too.
    if (caller.kind === 'device' && points.deviceIds.some((deviceId) => deviceId !== caller.deviceId)) {
      this.liveness.seen(tenantId, caller.deviceId, this.platform.clock.now(), 'poll');
    }
    return { ...result, errors: [...result.errors] };
  }

  private async *takeStream(
    requests: AsyncIterable<IngestStreamRequest>,
    context: CallContext,
  ): AsyncIterable<IngestStreamResponse> {
    for await (const request of requests) {
      const result = await this.take(new GivenSubmission(request.points), context);
      yield create(IngestStreamResponseSchema, { ...result, sequence: request.sequence });
    }
  }

  /** Runs after the commit: updates latest values, liveness, the live feed and events. */
  private committed(points: readonly AcceptedPoint[], received: number): void {
    const { broker, clock } = this.platform;
    const now = clock.now();
    this.pointsTotal.inc({ result: 'accepted' }, points.length);
    const devices = newestOfDevices(points);
    this.snapshots.accept(measuredPoints(devices), received);
    const counts = new Map<string, number>();
    for (const { tenantId, device, key, count, isSent } of devices) {
      // The result of an update is written when its turn comes, not when the device was there.
      if (isSent) this.liveness.seen(tenantId, device.deviceId, now, 'telemetry', device);
      this.rates.add(key, count, now);
      counts.set(tenantId, (counts.get(tenantId) ?? 0) + count);
    }
    for (const [tenantId, count] of counts) this.rates.add(tenantId, count, now);
    const isPublished = (tenantId: string) => this.live.isWatched || this.published.has(tenantId);
    if (![...counts.keys()].some(isPublished)) return;
    const rooms = new Map<string, LiveRoom>();
    for (const group of byDevice(points.filter(({ isOwn }) => !isOwn))) {
      const { tenantId, device } = group[0]!;
      const room = rooms.get(tenantId) ?? new LiveRoom();
      rooms.set(tenantId, room);
      if (this.live.isWatched) this.live.publish(tenantId, device.deviceId, group, room);
      if (this.published.has(tenantId)) publishPoints(broker, tenantId, device.deviceId, group, { room, now });
    }
  }

  private async device(deviceId: string, context: CallContext): Promise<TelemetryDevice> {
    const device = (await this.devices.lookup(context.tenantId, [deviceId])).get(deviceId);
    if (!device) throw notFound('device');
    return device;
  }

  /**
   * Returns what the caller may read under an id: that of a device or of an entity view. Throws PERMISSION_DENIED for a device
   * that the caller may read without its points, as the gateway does in calls that always name a device, otherwise NOT_FOUND.
   */
  private async readable(id: string, { tenantId, caller }: CallContext): Promise<Readable> {
    const visibility = visibilityOf(caller, 'telemetry:read');
    const device = (await this.devices.lookup(tenantId, [id])).get(id);
    if (device) {
      const isVisible = async (to: Visibility) =>
        !isLimited(to) || (await this.options.visibleDevices?.(tenantId, [id], to))?.has(id);
      if (await isVisible(visibility)) return { window: wholeOf(device.deviceId), shownId: device.deviceId };
      if (holdsInPart(caller, 'devices:read') && (await isVisible(visibilityOf(caller, 'devices:read'))))
        throw permissionDenied('the scope telemetry:read is limited to device groups that this device is not in');
    }
    // Entity views are shown to customers, not to device groups.
    const mayBeView = isId(id) && visibility.deviceGroupIds === null;
    const view = mayBeView ? await this.options.findView?.(tenantId, id, visibility.customerId) : undefined;
    if (!view) throw notFound('device');
    const { deviceId, seesDevice, keys, start, end } = view;
    if (deviceId === null) throw failedPrecondition('the entity view shows an asset, which has no telemetry');
    if (!(await this.devices.lookup(tenantId, [deviceId])).has(deviceId)) throw notFound('device');
    const window = { deviceId, keys, start: start ?? 0n, end: end ?? endOfTime };
    return { window, shownId: seesDevice ? deviceId : '' };
  }

  private async metrics(deviceId: string, context: CallContext) {
    const device = deviceId === '' ? undefined : await this.device(deviceId, context);
    const { tenantId } = context;
    const key = device ? `${tenantId}/${device.deviceId}` : tenantId;
    const usage = await this.usage.of(tenantId, device?.deviceId);
    return {
      deviceId: device?.deviceId ?? '',
      ...usage,
      pointsPerSecond: this.rates.perSecond(key, this.platform.clock.now()),
    };
  }

  private async latest(deviceId: string, context: CallContext): Promise<LatestTelemetry> {
    const { window, shownId } = await this.readable(deviceId, context);
    const { tenantId } = context;
    const response = create(LatestTelemetrySchema, { deviceId: shownId });
    const shown = await this.snapshots.latest(
      tenantId,
      window.deviceId,
      (mostBytes) => this.elsewhere(tenantId, window.deviceId, mostBytes),
      (newest) => this.shownOf(window, tenantId, newest),
    );
    if (!shown || shown.time < 0n) return response;
    const latest = withoutReplaced(shown);
    const timestamp = (response.timestamp = formatNanoseconds(latest.time));
    const updated = new Map<string, bigint>();
    for (const [key, { value, time }] of latest.numeric) {
      setOwn(response.numericValues, key, value);
      updated.set(key, time);
    }
    for (const [key, { value, time }] of latest.text) {
      setOwn(response.stringValues, key, value);
      if (time > (updated.get(key) ?? -1n)) updated.set(key, time);
    }
    // Most values come from the newest point.
    const textOf = (time: bigint) => (time === latest.time ? timestamp : formatNanoseconds(time));
    for (const [key, time] of updated) setOwn(response.updated, key, textOf(time));
    return response;
  }

  private async shownOf(window: Window, tenantId: string, latest: LatestValues): Promise<LatestValues> {
    const isWhole = window.keys.length === 0 && window.start === 0n && window.end === endOfTime;
    return isWhole ? latest : latestWithin(this.source, tenantId, window, latest);
  }

  /** Returns what other processes hold of the latest values, 'large' for one that has more than so many bytes (0: no limit). */
  private async elsewhere(tenantId: string, deviceId: string, mostBytes = 0): Promise<(LatestValues | 'large')[]> {
    const { peers } = this.options;
    const responses = (await peers?.ask(tenantId, MemoryService.method.recallLatest, { deviceId, mostBytes })) ?? [];
    return responses.flatMap(({ document, isLarge }): (LatestValues | 'large')[] => {
      if (isLarge) return ['large'];
      return document === '' ? [] : [fromDocument(JSON.parse(document) as LatestDocument)];
    });
  }

  private async history(
    request: GetHistoryRequest,
    context: CallContext,
  ): Promise<Omit<GetHistoryResponse, '$typeName'>> {
    const { window, shownId } = await this.readable(request.deviceId, context);
    const { aggregation, descending, start, end } = historyArguments(request);
    const scope = [
      context.tenantId,
      'telemetry',
      ...[request.deviceId.toLowerCase(), window.deviceId, String(window.start), String(window.end), window.keys],
      String(start),
      String(end),
      request.keys,
      descending,
      request.intervalSeconds,
      aggregation,
    ];
    const page = this.platform.paging.open<PointCursor>(request, scope, { maximumSize: maxPointsPerPage });
    const part = intersect(window, { start, end, keys: request.keys });
    if (!part) return { points: [], nextPageToken: '' };
    const range: HistoryRange = { tenantId: context.tenantId, ...part, descending, limit: page.size + 1 };
    const found = aggregation
      ? await this.buckets(range, page, BigInt(request.intervalSeconds) * nanosecondsPerSecond, aggregation)
      : await this.points(range, page);
    const closed = this.platform.paging.close(found.rows, page, scope, (row) => row.cursor, found.isCut);
    const points = closed.rows.map((row) => row.point);
    for (const point of points) {
      point.deviceId = shownId;
      // The hash covers the values that the view does not show, which could be guessed from it, and the id of its device.
      if (window.keys.length > 0 || shownId === '') point.dataHash = '';
    }
    return { points, nextPageToken: closed.nextPageToken };
  }

  private async points(range: HistoryRange, page: Page<PointCursor>) {
    const { rows, isCut } = await readPoints(this.source, range, page.after);
    const isWanted = keyFilter(range.keys);
    const found = rows.map((row) => {
      const dataHash = row.dataHash.toString('hex');
      const values = JSON.parse(row.payload) as { numeric_values: object; string_values: object };
      const point = historyPoint(
        range.deviceId,
        row.time,
        {
          numericValues: values.numeric_values as PointValues['numericValues'],
          stringValues: values.string_values as PointValues['stringValues'],
        },
        isWanted,
      );
      point.dataHash = dataHash;
      point.anchored = row.anchored;
      return { point, cursor: { time: String(row.time), hash: dataHash } };
    });
    return { rows: found, isCut };
  }

  private async buckets(range: HistoryRange, page: Page<PointCursor>, width: bigint, aggregation: Aggregation) {
    const after = page.after && BigInt(page.after.time);
    const rest = { ...range };
    // The next page starts with a whole bucket.
    if (after !== undefined && range.descending) rest.end = after > range.start ? after : range.start;
    else if (after !== undefined) rest.start = after + width > range.start ? after + width : range.start;
    const { rows, isCut } = await readBuckets(this.source, rest, width, aggregation);
    const found = rows.map((bucket) => ({
      point: historyPoint(range.deviceId, bucket.time, { numericValues: bucket.numeric, stringValues: bucket.text }),
      cursor: { time: String(bucket.time), hash: '' },
    }));
    return { rows: found, isCut };
  }
}

/** Sets a key of any name, including `__proto__`. */
function setOwn<T>(values: Record<string, T>, key: string, value: T): void {
  if (key !== '__proto__') values[key] = value;
  // An assignment would set the prototype.
  else Object.defineProperty(values, key, { value, enumerable: true, configurable: true, writable: true });
}

function historyPoint(
  deviceId: string,
  time: bigint,
  values: PointValues,
  isWanted: (key: string) => boolean = () => true,
): HistoryPoint {
  const point = create(HistoryPointSchema, { deviceId, timestamp: formatNanoseconds(time) });
  for (const [key, value] of Object.entries(values.numericValues))
    if (isWanted(key)) setOwn(point.numericValues, key, value);
  for (const [key, value] of Object.entries(values.stringValues))
    if (isWanted(key)) setOwn(point.stringValues, key, value);
  return point;
}

function historyArguments(request: GetHistoryRequest) {
  const start = request.start ? nanosecondsOf(request.start) : 0n;
  const end = request.end ? nanosecondsOf(request.end) : endOfTime;
  const asked = enumFilter<Aggregation>('aggregation', GetHistoryRequest_AggregationSchema, request.aggregation);
  const order = enumFilter('order', GetHistoryRequest_OrderSchema, request.order);
  if (asked && request.intervalSeconds === 0) throw invalidArgument('aggregation needs interval_seconds');
  if (request.keys.length > 256) throw invalidArgument('keys: at most 256');
  for (const key of request.keys) {
    // An empty one matches nothing.
    const problem = key === '' ? undefined : nameProblem(key);
    if (problem !== undefined) throw invalidArgument(`keys: ${problem}`);
  }
  // Buckets hold averages unless an aggregation is given.
  const aggregation = request.intervalSeconds > 0 ? (asked ?? 'avg') : undefined;
  return { start, end, aggregation, descending: order === 'desc' };
}

function nanosecondsOf(time: Timestamp): bigint {
  const nanoseconds = time.seconds * nanosecondsPerSecond + BigInt(time.nanos);
  if (nanoseconds < 0n) return 0n;
  return nanoseconds > endOfTime ? endOfTime : nanoseconds;
}
