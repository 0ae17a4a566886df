// Liveness of devices: signs of life are collected in memory and written in batches, those that change a status at once
// and the others before they are needed; a sweep takes silent devices offline. Times are written in the database's
// time, because rows of several processes are compared: each process knows the difference between the clocks.
import type { Clock } from '../../platform/clock.ts';
import { livenessLock, tryLock } from '../../platform/database/advisory-locks.ts';
import { offlineChannel, writerChannel } from '../../platform/database/channels.ts';
import { isLockTimeout } from '../../platform/database/connection/database-errors.ts';
import type { Database, Transaction } from '../../platform/database/database.ts';
import { enqueueAll } from '../../platform/events/outbox.ts';
import { statusSubject } from '../../platform/events/subjects.ts';
import type { Logger } from '../../platform/observability/logger.ts';
import type { DeviceFacts } from '../../policies/inheritance.ts';
import { lockedPlaces, prolong, writeAndDecide, type WrittenSigns } from './signs-of-life.ts';
import { type SilentDevice, SilentDevices, takeSilentOffline } from './silent-devices.ts';
import {
  clockDifference,
  type LifeSigns,
  notAfter,
  offlineAt,
  type SignOfLife,
  withClose,
  withSign,
  writeDelay,
} from './status.ts';

const tickMilliseconds = 400;
const sweepMilliseconds = 1000;
const batchSize = 1000;
/**
 * Blocks of the devices' table that a sweep looks at, some 9,000 devices: a pass over a larger fleet takes several sweeps. It finds
 * what no process expects, such as the devices of one that was killed.
 */
const blocksPerSweep = 512;
/** How long after its time a device is taken offline by the process that wrote its last sign. */
const endDelayMilliseconds = 500;
/** A device that may be silent for weeks is looked at meanwhile. */
const longestWaitMilliseconds = 600_000;
/** Transactions of a sweep. */
const stepsPerSweep = 5;
/**
 * How long a tick begins transactions of a kind. What is left is taken up by the next tick, in turns with what has come since: devices in
 * many groups take a hundred times as long, because the numbers of each group change with their status.
 */
const writingMilliseconds = 500;
/** A transaction that took longer is followed by one for half as many devices, down to the second number. */
const longMilliseconds = 250;
const leastBatch = 50;
/** Devices of a tenant in each turn. */
const devicesInTurn = 50;
/** Limit on devices in memory, each of about 450 bytes. Signs of a device beyond it are written at once. */
const maxEntries = 400_000;
const forgetMilliseconds = 60_000;
/** A clock that differs by so much from what it should show has been set. */
const clockStepMilliseconds = 100;
/** How long signs wait for the rows of devices that a transaction, of their tenant for example, has locked. */
const lockMilliseconds = 500;
/** For how long after that such rows are looked for first, so that the signs of other devices do not wait for them. */
const carefulMilliseconds = 10_000;
/** How long a process that stops may write. */
const stopMilliseconds = 2000;

class Entry {
  readonly tenantId: string;
  readonly deviceId: string;
  /** `tenant/device`. */
  readonly key: string;
  /** The entries to which it belongs; undefined once it is forgotten. */
  of: Map<string, Entry> | undefined;
  signs: LifeSigns = { lastSeen: 0, aliveAt: 0, closedAt: 0 };
  /** Until when the device is online according to the last write; 0: it may be offline. */
  onlineUntil = 0;
  /** The second in which that is looked at; 0: in none. */
  endSecond = 0;
  offlineAfterSeconds = 0;
  /** Whether a sign since the last write has told `offlineAfterSeconds`; otherwise the directory is asked. */
  isTold = false;
  writtenAt = 0;
  /** Whether a point has arrived that is not written yet. */
  hasNewPoint = false;
  /** Number of the first sign that is not written; 0: all are. */
  firstUnwritten = 0;
  /** Whether the point is of a device that may be offline: written at the next tick. */
  urgent = false;

  constructor(tenantId: string, deviceId: string, key: string, of: Map<string, Entry>) {
    this.tenantId = tenantId;
    this.deviceId = deviceId;
    this.key = key;
    this.of = of;
    of.set(key, this);
  }
}

/** Signs of a device that are being written. */
interface GivenSigns {
  readonly entry: Entry;
  readonly signs: LifeSigns;
  readonly hasNewPoint: boolean;
  readonly firstUnwritten: number;
}

/** What came of writing signs. */
interface Outcome {
  /** Of devices that are online afterwards. */
  readonly online: ReadonlySet<GivenSigns>;
  /** Not written, because the rows of their devices were locked. */
  readonly locked: ReadonlySet<GivenSigns>;
}

/** Returns the devices in the order in which their tenants take turns. */
function inTurns(entries: readonly Entry[]): Entry[] {
  let tenants = [...Map.groupBy(entries, ({ tenantId }) => tenantId).values()];
  if (tenants.length <= 1) return [...entries];
  const ordered: Entry[] = [];
  for (let from = 0; tenants.length > 0; from += devicesInTurn) {
    for (const ofTenant of tenants) ordered.push(...ofTenant.slice(from, from + devicesInTurn));
    // Those that have had all their turns are not looked at again: there may be very many tenants beside a large one.
    tenants = tenants.filter((ofTenant) => ofTenant.length > from + devicesInTurn);
  }
  return ordered;
}

/** Processes lock rows in the same order. */
const inOrder = (given: readonly GivenSigns[]): readonly GivenSigns[] =>
  given.toSorted((a, b) => (a.entry.key < b.entry.key ? -1 : 1));

/** What the sender of a sign knows about the device. */
interface ToldFacts {
  /** `tenant/device`. */
  readonly key?: string;
  /** Keeps the signs of the device, so that they are found without a search. */
  readonly memory?: { life: unknown };
  readonly offlineAfterSeconds?: number;
}

/** Returns the facts of those of the devices that exist in the tenant, by the id as requested. */
interface Directory {
  lookup(
    tenantId: string,
    deviceIds: readonly string[],
  ): Promise<ReadonlyMap<string, Pick<DeviceFacts, 'offlineAfterSeconds'>>>;
}

/** State in memory that is newer than the database. */
export interface LivenessOverlay {
  /** Milliseconds since 1970, by the database's clock, of the last point's arrival; 0 if unknown. */
  readonly lastSeen: number;
  /** Whether a point that makes the device online has arrived and is being written. */
  readonly online: boolean;
}

/** Combines what several processes know about a device. */
export function latestSign(signs: readonly (LivenessOverlay | undefined)[]): LivenessOverlay {
  return {
    lastSeen: Math.max(0, ...signs.map((sign) => sign?.lastSeen ?? 0)),
    online: signs.some((sign) => sign?.online === true),
  };
}

/**
 * Maintains status and last_seen of devices. A device goes online in the database within a second of its first point;
 * last_seen follows within a minute and is read with what is in memory. After a crash the points are read again
 * (telemetry/read/hot-tails.ts).
 */
export class Liveness {
  private readonly database: Pick<Database, 'listen' | 'system'>;
  private readonly directory: Directory;
  private readonly clock: Clock;
  private readonly logger: Logger;
  private readonly peersChanged: () => void;
  private readonly entries = new Map<string, Entry>();
  /** Entries with unwritten signs, in order of the first of them. */
  private dirty = new Set<Entry>();
  /** Those of them to be written at the next tick. */
  private soon = new Set<Entry>();
  /** The others, by the second of this process's clock in which they are due. May contain some that are written. */
  private readonly due = new Map<number, Entry[]>();
  /**
   * Online devices by the second of this process's clock in which they may be silent. The last of a device counts, and the others are
   * gone within ten minutes, so that this does not grow with the signs that are written until a device may be silent.
   */
  private readonly ends = new Map<number, Entry[]>();
  /** Those whose time has come. */
  private ended: Entry[] = [];
  /** Devices of the next transaction. */
  private size = batchSize;
  private signs = 0;
  /** Number of the first sign of the batch that is being written. */
  private beingWritten = Infinity;
  private timer: NodeJS.Timeout | undefined;
  private running: Promise<void> | undefined;
  /** Ends all writing after the current transaction. */
  private ending: AbortSignal | undefined;
  private forgottenAt = 0;
  private sweptAt = 0;
  /** Until when rows that are locked are looked for before signs are written. */
  private carefulUntil = 0;
  private readonly silent = new SilentDevices(blocksPerSweep);
  /** Milliseconds by which this process's clock is ahead of the database's. */
  private ahead = 0;
  /** By how many milliseconds this process's clock was ahead of its monotonic one when it was compared. */
  private comparedAt = NaN;

  /** `peersChanged` is called when another process may have begun to take points. */
  constructor(
    database: Pick<Database, 'listen' | 'system'>,
    directory: Directory,
    clock: Clock,
    logger: Logger,
    peersChanged: () => void = () => undefined,
  ) {
    this.database = database;
    this.directory = directory;
    this.clock = clock;
    this.logger = logger;
    this.peersChanged = peersChanged;
  }

  /**
   * Records a sign of life at a time of this process's clock. Costs a map lookup; called per device of a request, not
   * per point. `device` is the directory's entry, if it is at hand.
   */
  seen(tenantId: string, deviceId: string, atMilliseconds: number, kind: SignOfLife, device?: ToldFacts): void {
    const entry = this.entry(tenantId, deviceId, device);
    if (device?.offlineAfterSeconds !== undefined) {
      entry.offlineAfterSeconds = device.offlineAfterSeconds;
      entry.isTold = true;
    }
    // After a close a sign must be written soon to keep the device online.
    const isReturn = entry.signs.closedAt > 0;
    entry.signs = withSign(entry.signs, kind, atMilliseconds);
    if (kind === 'telemetry') entry.hasNewPoint = true;
    if (kind === 'telemetry' && atMilliseconds >= entry.onlineUntil) entry.urgent = true;
    this.mark(entry, isReturn || entry.urgent);
  }

  /** Records that the device has opened a stream, which another process may have seen closed a moment ago. */
  streamOpened(tenantId: string, deviceId: string, atMilliseconds: number): void {
    const entry = this.entry(tenantId, deviceId);
    entry.signs = withSign(entry.signs, 'poll', atMilliseconds);
    this.mark(entry, true);
  }

  /** Records that the device's stream has closed: without another sign of life it goes offline after ten seconds. */
  streamClosed(tenantId: string, deviceId: string, atMilliseconds: number): void {
    const entry = this.entry(tenantId, deviceId);
    entry.signs = withClose(entry.signs, atMilliseconds);
    this.mark(entry, true);
  }

  /** How many signs were recorded so far. */
  get position(): number {
    return this.signs;
  }

  /** Up to which of them all are written. */
  get writtenPosition(): number {
    const oldest = this.dirty.values().next().value?.firstUnwritten ?? Infinity;
    return Math.min(this.signs, this.beingWritten - 1, oldest - 1);
  }

  /** How often devices are to be looked at whether they are silent. */
  get expectedEnds(): number {
    return [...this.ends.values()].reduce((sum, entries) => sum + entries.length, 0);
  }

  /** Returns the state of a device that is newer than the database, or undefined. */
  overlay(tenantId: string, deviceId: string): LivenessOverlay | undefined {
    const entry = this.entries.get(`${tenantId}/${deviceId}`);
    if (!entry) return undefined;
    const { lastSeen } = entry.signs;
    return { lastSeen: lastSeen === 0 ? 0 : lastSeen - this.ahead, online: entry.urgent };
  }

  start(): void {
    this.database.listen(
      [offlineChannel, writerChannel],
      (channel, payload) => {
        if (channel === writerChannel) this.peersChanged();
        else this.doubt(this.entries.get(payload));
      },
      (lost) => {
        this.peersChanged();
        if (lost) for (const entry of this.entries.values()) this.doubt(entry);
      },
    );
    this.timer = setInterval(() => {
      this.running ??= this.tick().finally(() => (this.running = undefined));
    }, tickMilliseconds);
    this.timer.unref();
  }

  /** Writes what is in memory and stops; begins no further transaction after two seconds. */
  async stop(): Promise<void> {
    clearInterval(this.timer);
    const isWritten = await this.writeAll(AbortSignal.timeout(stopMilliseconds)).catch((error: unknown) => {
      this.logger.warn({ err: error }, 'the last signs of life could not be written');
      return true;
    });
    if (!isWritten) this.logger.warn('there was not enough time to write the last signs of life');
  }

  /**
   * Writes what is in memory, and returns whether all of it is written: once the signal is aborted, no further transaction begins.
   * Rejects if something cannot be written. What is not written stays in memory.
   */
  async writeAll(signal?: AbortSignal): Promise<boolean> {
    if (signal) this.ending = signal;
    await this.running;
    await (this.running = this.write([...this.dirty]).finally(() => (this.running = undefined)));
    return signal?.aborted !== true || this.dirty.size === 0;
  }

  private entry(tenantId: string, deviceId: string, device?: ToldFacts): Entry {
    const memory = device?.memory;
    const known = memory?.life;
    if (known instanceof Entry && known.of === this.entries) return known;
    const key = device?.key ?? `${tenantId}/${deviceId}`;
    const entry = this.entries.get(key) ?? new Entry(tenantId, deviceId, key, this.entries);
    if (memory) memory.life = entry;
    return entry;
  }

  private mark(entry: Entry, isSoon: boolean): void {
    this.signs += 1;
    if (isSoon) this.soon.add(entry);
    if (entry.firstUnwritten > 0) return;
    entry.firstUnwritten = this.signs;
    this.dirty.add(entry);
    if (!isSoon) this.schedule(entry);
  }

  /** Spreads the devices, so that a fleet that starts at once is not always written at once. */
  private schedule(entry: Entry): void {
    const share = (1 + parseInt(entry.deviceId.slice(-2), 16) / 255) / 2;
    const second = Math.floor((entry.writtenAt + writeDelay(entry.offlineAfterSeconds) * share) / 1000);
    const others = this.due.get(second);
    if (others) others.push(entry);
    else this.due.set(second, [entry]);
  }

  /** Another process may have taken the device offline: write its next point at once. */
  private doubt(entry: Entry | undefined): void {
    if (entry) entry.onlineUntil = 0;
  }

  private async tick(): Promise<void> {
    try {
      const now = this.clock.now();
      await this.write(this.takeDue(now), writingMilliseconds);
      await this.endSilent(now);
      // After the clock was put back, the sweep must not wait until it has caught up.
      if (now < this.sweptAt || now - this.sweptAt >= sweepMilliseconds) {
        this.sweptAt = now;
        await this.sweep();
      }
      if (now - this.forgottenAt > forgetMilliseconds) this.forgetSilent(now);
    } catch (error) {
      this.logger.debug({ err: error }, 'signs of life could not be written; retrying');
    }
  }

  private takeDue(now: number): Entry[] {
    const taken = new Set([...this.soon].filter((entry) => entry.firstUnwritten > 0));
    this.soon.clear();
    for (const [second, entries] of this.due) {
      // One that is too far ahead was scheduled before the clock was put back.
      if (second * 1000 > now && second * 1000 <= now + 2 * writeDelay(Infinity)) continue;
      this.due.delete(second);
      for (const entry of entries) if (entry.firstUnwritten > 0) taken.add(entry);
    }
    return [...taken];
  }

  private expectEnd(entry: Entry, now: number): void {
    const at = Math.min(entry.onlineUntil + endDelayMilliseconds, now + longestWaitMilliseconds);
    const second = Math.ceil(at / 1000);
    // Looked at before, it is expected again.
    if (entry.endSecond > 0 && entry.endSecond <= second) return;
    entry.endSecond = second;
    const others = this.ends.get(second);
    if (others) others.push(entry);
    else this.ends.set(second, [entry]);
  }

  /** Takes the devices offline whose last sign this process wrote, unless there was another one. */
  private async endSilent(now: number): Promise<void> {
    for (const [second, entries] of this.ends) {
      if (second * 1000 > now) continue;
      this.ends.delete(second);
      for (const entry of entries) {
        if (entry.endSecond !== second) continue;
        entry.endSecond = 0;
        const isOver = entry.onlineUntil <= now;
        if (isOver && entry.onlineUntil > 0) this.ended.push(entry);
        // One that is forgotten meanwhile is left to the sweep of all.
        if (!isOver && entry.of) this.expectEnd(entry, now);
      }
    }
    this.ended = inTurns(this.ended);
    const until = performance.now() + writingMilliseconds;
    while (this.ended.length > 0 && this.ending?.aborted !== true && performance.now() < until) {
      const entries = this.ended.slice(0, this.size);
      await this.timed(() =>
        this.database.system(async (tx) => this.announceSilent(tx, await takeSilentOffline(tx, entries))),
      );
      this.ended = this.ended.slice(entries.length);
    }
  }

  /** Runs a transaction for `size` devices. */
  private async timed<T>(work: () => Promise<T>): Promise<T> {
    const began = performance.now();
    let isLong = true;
    try {
      const result = await work();
      isLong = performance.now() - began > longMilliseconds;
      return result;
    } finally {
      this.size = isLong ? Math.max(leastBatch, this.size >> 1) : Math.min(batchSize, this.size * 2);
    }
  }

  private forgetSilent(now: number): void {
    this.forgottenAt = now;
    for (const entry of this.entries.values()) {
      const isOld = now - entry.writtenAt > forgetMilliseconds && now > entry.onlineUntil;
      if (isOld && entry.firstUnwritten === 0) this.forget(entry);
    }
  }

  /** Writes signs in turns, for about as long as given. */
  private async write(given: readonly Entry[], milliseconds = Infinity): Promise<void> {
    const until = performance.now() + milliseconds;
    const due = inTurns(given);
    let written = 0;
    try {
      while (written < due.length && this.ending?.aborted !== true && performance.now() < until) {
        const some = due.slice(written, written + this.size);
        await this.timed(() => this.writeBatch(some));
        written += some.length;
      }
    } finally {
      // Before those of their tenants that have come since.
      this.soon = new Set([...due.slice(written), ...this.soon]);
    }
  }

  private async writeBatch(entries: readonly Entry[]): Promise<void> {
    await this.refreshOfflineAfter(entries.filter((entry) => !entry.isTold));
    const now = this.clock.now();
    this.beingWritten = entries.reduce((least, entry) => Math.min(least, entry.firstUnwritten), Infinity);
    const given = entries.map((entry): GivenSigns => {
      const { hasNewPoint, firstUnwritten } = entry;
      entry.signs = notAfter(entry.signs, now);
      // A sign that arrives during the write marks its entry again.
      entry.firstUnwritten = 0;
      entry.hasNewPoint = false;
      entry.isTold = false;
      entry.writtenAt = now;
      this.dirty.delete(entry);
      return { entry, signs: entry.signs, hasNewPoint, firstUnwritten };
    });
    try {
      const { online, locked } = await this.writeFree(inOrder(given));
      this.putBack([...locked]);
      for (const { entry } of locked) this.soon.add(entry);
      for (const one of given) {
        if (locked.has(one)) continue;
        const { entry, signs } = one;
        entry.onlineUntil = online.has(one) ? offlineAt(signs, entry.offlineAfterSeconds) : 0;
        if (entry.onlineUntil > 0) this.expectEnd(entry, now);
        // A point that arrived meanwhile finds the device online now.
        entry.urgent = entry.urgent && entry.firstUnwritten > 0 && entry.signs.lastSeen >= entry.onlineUntil;
        const isClosing = signs.closedAt > 0 || entry.signs.closedAt > 0;
        if (entry.firstUnwritten > 0 && !entry.urgent && !isClosing && this.soon.delete(entry)) this.schedule(entry);
      }
      this.limit();
    } catch (error) {
      this.putBack(given);
      throw error;
    } finally {
      this.beingWritten = Infinity;
    }
  }

  /** Marks signs that could not be written. */
  private putBack(given: readonly GivenSigns[]): void {
    if (given.length === 0) return;
    for (const { entry, hasNewPoint, firstUnwritten } of given) {
      entry.hasNewPoint ||= hasNewPoint;
      entry.firstUnwritten = firstUnwritten;
    }
    const entries = given.map(({ entry }) => entry);
    this.dirty = new Set([...this.dirty, ...entries].sort((a, b) => a.firstUnwritten - b.firstUnwritten));
  }

  /**
   * Writes signs, which are in order. A transaction may keep the rows of devices locked for minutes, such as the deletion of devices
   * with very many alarms: signs of other devices, of all tenants, wait for it only once.
   */
  private async writeFree(given: readonly GivenSigns[]): Promise<Outcome> {
    const write = (isCareful: boolean): Promise<Outcome> =>
      this.database.system(async (tx) => {
        await tx.query(`SET LOCAL lock_timeout = ${lockMilliseconds}`);
        // Otherwise each sweep does.
        if (!(Math.abs(this.sinceStart() - this.comparedAt) < clockStepMilliseconds)) await this.compareClocks(tx);
        const places = isCareful ? await lockedPlaces(tx, this.columnsOf(given)) : [];
        const locked = new Set(places.map((place) => given[place]!));
        const free = isCareful ? given.filter((one) => !locked.has(one)) : given;
        return { online: await this.writeSigns(tx, free), locked };
      });
    if (this.clock.now() < this.carefulUntil) return write(true);
    try {
      return await write(false);
    } catch (error) {
      if (!isLockTimeout(error)) throw error;
      this.carefulUntil = this.clock.now() + carefulMilliseconds;
      return write(true);
    }
  }

  /** Forgets devices beyond the limit, those known for longest first. Looks at few each time, for all of them may have to stay. */
  private limit(): void {
    let left = Math.min(this.entries.size, 2 * batchSize);
    for (const [key, entry] of this.entries) {
      if (this.entries.size <= maxEntries || left === 0) break;
      left -= 1;
      if (entry.firstUnwritten === 0) this.forget(entry);
      else {
        // It gets another turn.
        this.entries.delete(key);
        this.entries.set(key, entry);
      }
    }
  }

  private forget(entry: Entry): void {
    this.entries.delete(entry.key);
    entry.of = undefined;
  }

  private async refreshOfflineAfter(entries: readonly Entry[]): Promise<void> {
    for (const [tenantId, ofTenant] of Map.groupBy(entries, (entry) => entry.tenantId)) {
      const ids = ofTenant.map((entry) => entry.deviceId);
      const facts = await this.directory.lookup(tenantId, ids);
      for (const entry of ofTenant) {
        entry.offlineAfterSeconds = facts.get(entry.deviceId)?.offlineAfterSeconds ?? entry.offlineAfterSeconds;
      }
    }
  }

  /** Writes signs of life, which are in order, and returns those of the devices that are online afterwards. */
  private async writeSigns(tx: Transaction, given: readonly GivenSigns[]): Promise<Set<GivenSigns>> {
    const online = new Set(given);
    // Most devices are online and stay so.
    const likely = given.filter(({ entry }) => entry.onlineUntil > 0);
    for (const place of await prolong(tx, this.columnsOf(likely))) online.delete(likely[place]!);
    for (const one of given) if (one.entry.onlineUntil === 0) online.delete(one);
    if (online.size === given.length) return online;
    const others = new Map(given.filter((one) => !online.has(one)).map((one) => [one.entry.key, one]));
    const rows = await writeAndDecide(tx, this.columnsOf([...others.values()]));
    await this.announce(
      tx,
      rows.filter((row) => row.before !== row.after),
    );
    for (const { tenant_id, device_id, after } of rows)
      if (after === 'online') online.add(others.get(`${tenant_id}/${device_id}`)!);
    return online;
  }

  /** Returns signs of life as columns, in the database's time. */
  private columnsOf(given: readonly GivenSigns[]): unknown[][] {
    const inDatabase = (milliseconds: number) => (milliseconds === 0 ? null : (milliseconds - this.ahead) / 1000);
    return [
      given.map(({ entry }) => entry.tenantId),
      given.map(({ entry }) => entry.deviceId),
      given.map(({ signs, hasNewPoint }) => (hasNewPoint ? inDatabase(signs.lastSeen) : null)),
      given.map(({ signs }) => inDatabase(signs.aliveAt)),
      given.map(({ entry, signs }) => inDatabase(offlineAt(signs, entry.offlineAfterSeconds))),
      given.map(({ signs }) => inDatabase(signs.closedAt)),
    ];
  }

  /** Takes overdue devices offline; one process at a time. */
  private async sweep(): Promise<void> {
    const until = performance.now() + writingMilliseconds;
    for (let step = 0; step < stepsPerSweep && performance.now() < until; step += 1) {
      if (await this.timed(() => this.database.system((tx) => this.sweepStep(tx)))) return;
    }
    this.silent.leavePage();
  }

  /** Returns whether there is nothing more to do now. */
  private async sweepStep(tx: Transaction): Promise<boolean> {
    const [isAlone] = await Promise.all([tryLock(tx, livenessLock), this.compareClocks(tx)]);
    if (!isAlone) return true;
    const { devices, isEnd } = await this.silent.takeOffline(tx, this.size);
    await this.announceSilent(tx, devices);
    return isEnd;
  }

  private async announceSilent(tx: Transaction, devices: readonly SilentDevice[]): Promise<void> {
    if (devices.length === 0) return;
    await this.announce(
      tx,
      devices.map((device) => ({ ...device, before: 'online', after: 'offline' })),
    );
    await tx.query(`SELECT pg_notify('${offlineChannel}', device) FROM unnest($1::text[]) AS device`, [
      devices.map((device) => `${device.tenant_id}/${device.device_id}`),
    ]);
  }

  /** Corrects the difference between the clocks, if the database's time shows that it is wrong. */
  private async compareClocks(tx: Transaction): Promise<void> {
    const sent = this.clock.now();
    const { rows } = await tx.query<{ now: number }>(
      'SELECT extract(epoch FROM clock_timestamp())::float8 * 1000 AS now',
    );
    this.ahead = clockDifference(this.ahead, { sent, received: this.clock.now(), theirs: rows[0]!.now });
    this.comparedAt = this.sinceStart();
  }

  /** Changes when the clock is set. */
  private sinceStart(): number {
    return this.clock.now() - performance.now();
  }

  private async announce(tx: Transaction, rows: readonly WrittenSigns[]): Promise<void> {
    const events = rows.map((row) => ({
      tenantId: row.tenant_id,
      subject: statusSubject(row.tenant_id, row.device_id),
      resource: row.device_id,
      data: { device_id: row.device_id, status: row.after, last_seen: row.last_seen?.toISOString() },
    }));
    await enqueueAll(tx, events, this.clock);
  }
}
