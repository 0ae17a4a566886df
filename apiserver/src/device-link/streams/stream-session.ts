// One device's stream: takes the due commands of its device, and of a gateway's children, as fast as the device reads them.
import { create, type JsonObject } from '@bufbuild/protobuf';
import {
  type ConnectResponse,
  type ConnectResponse_Acknowledgement,
  ConnectResponseSchema,
} from '@kellet/proto/es/kellet/v1/device_link_pb';
import { KelletError } from '../../platform/errors.ts';
import type { CommandFeed } from '../commands/command-feed.ts';
import type { CommandRow } from '../commands/commands.ts';
import type { Delivery, Taken } from '../rpc/delivery.ts';
import { toRecord } from '../rpc/service.ts';

/** Maximum commands taken at a time: what a device that does not read holds in memory. */
const maxTaken = 5;

/** Maximum answers, which are acknowledgements and `ready`, that may wait for the device to read them. */
const maxAnswers = 16;

/** Pause after commands could not be read. */
const retryMilliseconds = 1000;
const minPauseMilliseconds = 100;
/** A timer cannot be set further ahead than 24 days. */
const maxPauseMilliseconds = 3_600_000;

/** A device whose commands the stream carries. */
interface Carried {
  readonly deviceId: string;
  /** The only method of its commands that the stream carries; undefined: all. */
  readonly method: string | undefined;
  /** Whether there may be due commands. */
  isDirty: boolean;
  /** What was delivered before this time is delivered again first; undefined once that is done. */
  deliveredBefore: Date | undefined;
  /** When more commands become due, by performance.now(). */
  dueAt: number;
  readonly stopWatching: () => void;
  /** What holds back its commands, by key of the feed; undefined if nothing ever has. */
  holders: Map<string, () => void> | undefined;
}

function stopWatching({ stopWatching: stop, holders }: Carried): void {
  stop();
  for (const stopHolder of holders?.values() ?? []) stopHolder();
}

/** The children whose commands a gateway takes whenever they are its children: these, or all. */
export type Following = 'all' | readonly string[];

/** Dependencies of a session. */
export interface SessionParts {
  readonly feed: CommandFeed;
  readonly delivery: Delivery;
  /** Called when commands could not be read; the session tries again. */
  readonly failed: (error: unknown) => void;
}

/** A command that the device has not read. Its parameters are text: as objects they take up to twenty times as much. */
interface WaitingCommand {
  readonly command: Omit<CommandRow, 'params'>;
  readonly params: string;
}

function commandMessage({ command, params }: WaitingCommand): ConnectResponse {
  const value = toRecord({ ...command, params: JSON.parse(params) as JsonObject });
  return create(ConnectResponseSchema, { event: { case: 'command', value } });
}

type Acknowledgement = Pick<ConnectResponse_Acknowledgement, 'correlationId' | 'code' | 'message'>;

/** The commands and acknowledgements of one stream. */
export class StreamSession {
  readonly tenantId: string;
  readonly deviceId: string;
  /** Of the stream; undefined until it is open. */
  epoch: number | undefined;
  /** Whether a newer stream of the device has ended this one. */
  isReplaced = false;
  /** Whether the stream has ended. */
  isOver = false;
  /** When a sign of life of its devices was last recorded. */
  aliveAt = -Infinity;
  /** Which commands to the device itself it carries. */
  own: 'all' | 'attributeChanges' | 'none' = 'all';
  /** The children that the gateway wants; undefined: none but those it has listed. */
  following: Following | undefined;
  /** When the stream was opened, by the database's clock. */
  openedAt: Date | undefined;
  private readonly parts: SessionParts;
  private readonly carried = new Map<string, Carried>();
  private readonly messages: (ConnectResponse | WaitingCommand)[] = [];
  private answers = 0;
  private failure: Error | undefined;
  private timer: NodeJS.Timeout | undefined;
  private timerAt = Infinity;
  private rouse: (() => void) | undefined;
  private makeRoom: (() => void) | undefined;

  constructor(tenantId: string, deviceId: string, parts: SessionParts) {
    this.tenantId = tenantId;
    this.deviceId = deviceId;
    this.parts = parts;
  }

  /** The devices whose commands the stream carries. */
  get deviceIds(): Iterable<string> {
    return this.carried.keys();
  }

  /**
   * Carries these devices, and no others, each with the only method of its commands or undefined for all. Commands of new
   * ones that were delivered before the stream was opened come first.
   */
  carry(devices: ReadonlyMap<string, string | undefined>): void {
    for (const [deviceId, { method }] of this.carried) {
      if (!devices.has(deviceId) || devices.get(deviceId) !== method) this.drop(deviceId);
    }
    for (const [deviceId, method] of devices) {
      if (this.isOver || this.carried.has(deviceId)) continue;
      const key = `${this.tenantId}/${deviceId}`;
      const carried: Carried = {
        ...{ deviceId, method, isDirty: true, deliveredBefore: this.openedAt, dueAt: Infinity },
        stopWatching: this.parts.feed.watch(key, () => this.markDirty(carried)),
        holders: undefined,
      };
      this.carried.set(deviceId, carried);
    }
    this.wake();
  }

  /** Carries a device no longer. */
  drop(deviceId: string): void {
    const carried = this.carried.get(deviceId);
    if (!carried) return;
    this.carried.delete(deviceId);
    stopWatching(carried);
  }

  /** Tells the device that the stream is open; resolves when there is room for another answer. */
  ready(): Promise<void> {
    return this.answer(create(ConnectResponseSchema, { event: { case: 'ready', value: {} } }));
  }

  /** Acknowledges a response; resolves when there is room for another answer. */
  acknowledge(acknowledgement: Acknowledgement): Promise<void> {
    return this.answer(create(ConnectResponseSchema, { event: { case: 'acknowledgement', value: acknowledgement } }));
  }

  private async answer(message: ConnectResponse): Promise<void> {
    this.answers += 1;
    this.messages.push(message);
    this.wake();
    if (this.answers < maxAnswers) return;
    await new Promise<void>((resolve) => (this.isOver ? resolve() : (this.makeRoom = resolve)));
  }

  /** Ends the stream because the device has opened a newer one. */
  replace(): void {
    this.isReplaced = true;
    this.fail(new KelletError('ABORTED', 'the device has opened a newer stream'));
  }

  /** Ends the stream with an error. */
  fail(error: Error): void {
    this.failure ??= error;
    this.end();
  }

  /** Ends the stream. */
  end(): void {
    if (this.isOver) return;
    this.isOver = true;
    clearTimeout(this.timer);
    for (const carried of this.carried.values()) stopWatching(carried);
    this.makeRoom?.();
    this.wake();
  }

  /**
   * Returns the next message to the device; undefined if there is none yet, or the stream has ended. Throws the error with
   * which it ended.
   */
  next(): ConnectResponse | undefined {
    if (!this.hasNext()) return undefined;
    const message = this.messages.shift()!;
    if ('params' in message) return commandMessage(message);
    this.left();
    return message;
  }

  /** Reports whether there is a next message. Throws the error with which the stream ended. */
  hasNext(): boolean {
    if (this.failure) throw this.failure;
    return !this.isOver && this.messages.length > 0;
  }

  /** Takes due commands, or waits for something to do. There may be a message afterwards. */
  changed(): Promise<void> {
    const dirty = this.nextDirty();
    return dirty ? this.take(dirty) : new Promise((resolve) => (this.rouse = resolve));
  }

  private left(): void {
    this.answers -= 1;
    this.makeRoom?.();
    this.makeRoom = undefined;
  }

  private wake(): void {
    this.rouse?.();
    this.rouse = undefined;
  }

  private markDirty(carried: Carried): void {
    carried.isDirty = true;
    this.wake();
  }

  /** Children take turns, because each that was taken from is put last. */
  private nextDirty(): Carried | undefined {
    for (const carried of this.carried.values()) {
      if (!carried.isDirty) continue;
      if (this.carried.size > 1) {
        this.carried.delete(carried.deviceId);
        this.carried.set(carried.deviceId, carried);
      }
      return carried;
    }
    return undefined;
  }

  private async take(carried: Carried): Promise<void> {
    const { deviceId, deliveredBefore, method } = carried;
    carried.isDirty = false;
    try {
      const options = { deliveredBefore, limit: maxTaken, method };
      const taken = await this.parts.delivery.take(this.tenantId, deviceId, options);
      // What is watched once the stream has ended would be watched for ever.
      if (this.isOver || this.carried.get(deviceId) !== carried) return;
      for (const { params, ...command } of taken.commands) {
        this.messages.push({ command, params: JSON.stringify(params) });
      }
      if (!deliveredBefore) return this.plan(carried, taken);
      if (taken.commands.length === 0) carried.deliveredBefore = undefined;
      carried.isDirty = true;
    } catch (error) {
      this.parts.failed(error);
      this.lookAgain(carried, retryMilliseconds);
    }
  }

  /** Decides when to look for more commands of a device. */
  private plan(carried: Carried, taken: Taken): void {
    if (carried.holders || taken.heldBy.length > 0) this.watchHolders(carried, taken.heldBy);
    carried.dueAt = Infinity;
    if (taken.nextMilliseconds !== undefined) this.lookAgain(carried, taken.nextMilliseconds);
  }

  private watchHolders(carried: Carried, rolloutIds: readonly string[]): void {
    const watched = (carried.holders ??= new Map<string, () => void>());
    const holders = new Set(rolloutIds.map((rolloutId) => `${this.tenantId}/${rolloutId}`));
    for (const [key, stop] of watched) {
      if (holders.has(key)) continue;
      stop();
      watched.delete(key);
    }
    for (const key of holders) {
      if (watched.has(key)) continue;
      watched.set(
        key,
        this.parts.feed.watch(key, () => this.markDirty(carried)),
      );
      // It may have released the commands before it was watched.
      carried.isDirty = true;
    }
  }

  private lookAgain(carried: Carried, milliseconds: number): void {
    carried.dueAt = performance.now() + Math.max(milliseconds, minPauseMilliseconds);
    this.setTimer(carried.dueAt);
  }

  /** Keeps one timer, for the device whose commands become due first. */
  private setTimer(at: number): void {
    if (this.isOver || at >= this.timerAt) return;
    clearTimeout(this.timer);
    this.timerAt = at;
    this.timer = setTimeout(() => this.lookAtDue(), Math.min(at - performance.now(), maxPauseMilliseconds));
  }

  private lookAtDue(): void {
    const now = performance.now();
    this.timerAt = Infinity;
    let next = Infinity;
    for (const carried of this.carried.values()) {
      // A timer may fire a fraction of a millisecond early.
      if (carried.dueAt <= now + 1) {
        carried.dueAt = Infinity;
        carried.isDirty = true;
      } else next = Math.min(next, carried.dueAt);
    }
    if (next < Infinity) this.setTimer(next);
    this.wake();
  }
}
