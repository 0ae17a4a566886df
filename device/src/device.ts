// A device: sends points, carries out commands, follows its attributes and updates itself, over any protocol.
import { type Backoff, defaultBackoff, insist, type Insisting, pause, pauseMilliseconds } from './backoff.ts';
import { CommandMemory } from './commands/command-memory.ts';
import { DeviceError, reactionTo } from './errors.ts';
import type { AttributeChange, Child, Command, Identity, JsonObject, Point, PointError, Response } from './messages.ts';
import { MemoryBuffer, type TelemetryBuffer } from './telemetry/buffer.ts';
import { TelemetrySender } from './telemetry/sender.ts';
import type { Transport } from './transports/transport.ts';
import type { SlotStore } from './update/slot-store.ts';
import { Updater } from './update/updater.ts';

/** The functions of a device. All of them are optional. */
export interface DeviceBehaviour {
  /** Carries out a command. Returns the response; an error is reported as a failure. */
  onCommand?: ((command: Command) => Promise<JsonObject | void> | JsonObject | void) | undefined;
  /** Called when shared attributes have changed, and when they are read for the first time. */
  onAttributes?: ((change: AttributeChange) => void) | undefined;
  /** Throws if the image on trial is not healthy. It must also reach the platform to be confirmed. */
  checkHealth?: (() => Promise<void> | void) | undefined;
  /** Called when the platform will never store a point. Over MQTT the point is unknown. */
  onRejected?: ((error: Omit<PointError, 'index'>, point: Point | undefined) => void) | undefined;
  /** Called for an error after which the device continues, such as a lost connection. */
  onError?: ((error: unknown) => void) | undefined;
}

/** Parts and limits of a device. */
export interface DeviceParts extends DeviceBehaviour {
  identity: Identity;
  transport: Transport;
  /** 10,000 points in memory if it is not given. */
  buffer?: TelemetryBuffer | undefined;
  /** Without slots the device has no updates, and responds to `ota_start` with a failure. */
  slots?: SlotStore | undefined;
  /** Points in one request at most; 500 if it is not given. */
  batchPoints?: number | undefined;
  /** Time after which an image on trial that is not confirmed is rolled back; 600 if it is not given. */
  confirmSeconds?: number | undefined;
  backoff?: Backoff | undefined;
}

/** Parts of a child of a gateway. */
export type ChildParts = Omit<DeviceParts, 'identity' | 'transport'> & {
  /** Ends the attempts to connect it. */
  signal?: AbortSignal | undefined;
};

/** Values of a point: numbers and strings by key. */
export type Values = Readonly<Record<string, number | string>>;

/** Returns the point of some values. Throws TypeError for values that no point can have. */
export function pointOf(values: Values, time: Date): Point {
  const numeric: Record<string, number> = {};
  const strings: Record<string, string> = {};
  for (const [key, value] of Object.entries(values)) {
    if (typeof value === 'string') strings[key] = value;
    else if (Number.isFinite(value)) numeric[key] = value;
    else throw new TypeError(`${key} is ${String(value)}: a value is a finite number or a string`);
  }
  if (Object.keys(values).length === 0) throw new TypeError('a point has at least one value');
  return {
    timestamp: time.toISOString(),
    ...(Object.keys(numeric).length > 0 && { numeric_values: numeric }),
    ...(Object.keys(strings).length > 0 && { string_values: strings }),
  };
}

/** A device with an identity. */
export class Device {
  readonly identity: Identity;
  private readonly parts: DeviceParts;
  private readonly backoff: Backoff;
  private readonly buffer: TelemetryBuffer;
  private readonly sender: TelemetrySender;
  private readonly memory = new CommandMemory();
  private readonly shared = new Map<string, unknown>();
  private changes: JsonObject = {};
  private waitingForChanges: { resolve: () => void; reject: (error: unknown) => void }[] = [];
  private sendingChanges: Promise<void> = Promise.resolve();
  private stop = new AbortController();
  /** Commands are carried out in order; updates beside them, because they take long. */
  private commands: Promise<void> = Promise.resolve();
  private updates: Promise<void> = Promise.resolve();
  private isFirstReady = true;
  private isConnected = false;

  constructor(parts: DeviceParts) {
    this.parts = parts;
    this.identity = parts.identity;
    this.backoff = parts.backoff ?? defaultBackoff;
    this.buffer = parts.buffer ?? new MemoryBuffer();
    this.sender = new TelemetrySender({
      buffer: this.buffer,
      send: (points, key, signal) => parts.transport.send(points, key, signal),
      backoff: this.backoff,
      batchPoints: parts.batchPoints ?? 500,
      onRejected: (error, point) => parts.onRejected?.(error, point),
      onError: (error) => this.failed(error),
    });
  }

  /** Whether the platform sends commands at present. */
  get connected(): boolean {
    return this.isConnected;
  }

  /** Points that are not sent yet, and points that were dropped because the buffer was full. */
  get telemetry(): { waiting: number; dropped: number } {
    return { waiting: this.buffer.size, dropped: this.buffer.dropped };
  }

  /** The shared attributes as far as the device knows them. */
  get attributes(): Readonly<JsonObject> {
    return Object.fromEntries(this.shared);
  }

  /** Adds a point. It is in the buffer when this returns, and sent as soon as the platform can be reached. */
  record(values: Values, time = new Date()): void {
    this.buffer.add(pointOf(values, time));
    this.sender.wake();
  }

  /** Resolves once every recorded point is stored by the platform. */
  flush(): Promise<void> {
    return this.sender.flush();
  }

  /**
   * Sets attributes of the scope `client`; null removes one. Changes that are made while the platform cannot be reached
   * are sent together. Resolves once they are stored; those of a process that ends before are lost. Rejects if the
   * platform refuses them.
   */
  setAttributes(changes: JsonObject): Promise<void> {
    Object.assign(this.changes, changes);
    return new Promise((resolve, reject) => {
      this.waitingForChanges.push({ resolve, reject });
      if (this.isConnected) this.scheduleChanges();
    });
  }

  /**
   * Connects and works until the signal aborts (`stopped`) or an image waits to be started (`restart`): then the program
   * ends, and is started again by `startImage`. Throws if the key is no longer valid.
   */
  async run(signal: AbortSignal): Promise<'stopped' | 'restart'> {
    const stop = new AbortController();
    this.stop = stop;
    const end = (): void => stop.abort(signal.reason);
    signal.addEventListener('abort', end);
    if (signal.aborted) end();
    const { slots } = this.parts;
    const updater = slots && new Updater(this.parts.transport, slots, this.insisting());
    let isRestart = false;
    let failure: unknown;
    const restart = (): void => {
      isRestart = true;
      stop.abort(new Error('the device restarts'));
    };
    const work = [
      this.sender.run(stop.signal),
      this.listen(updater, restart),
      ...(updater && slots.state.trial ? [this.endTrial(updater, restart)] : []),
    ].map((task) =>
      task.catch((error: unknown) => {
        if (stop.signal.aborted) return;
        failure = error;
        stop.abort(error);
      }),
    );
    try {
      await Promise.all(work);
      await Promise.allSettled([this.commands, this.updates, this.sendingChanges]);
    } finally {
      signal.removeEventListener('abort', end);
      this.isConnected = false;
    }
    if (failure !== undefined) throw failure as Error;
    return isRestart ? 'restart' : 'stopped';
  }

  /**
   * Connects a device without its own connection through this gateway, and returns it. Like any device it works while
   * its `run` does, and over gRPC and MQTT while the gateway's does too. Retries until the platform can be reached or the
   * signal aborts. Throws if the platform refuses the child, for example because another gateway has it.
   */
  async connectChild(child: Child, parts: ChildParts = {}): Promise<Device> {
    const { transport } = this.parts;
    const { signal = new AbortController().signal, ...rest } = parts;
    const insisting = { backoff: this.backoff, signal, onError: parts.onError };
    const deviceId = await insist(() => transport.connectChild(child, signal), insisting);
    const calls = transport.child(deviceId);
    const listen = calls.listen.bind(calls);
    // Again after a loss: meanwhile another gateway may have taken the child over.
    calls.listen = async (listener, listening) => {
      await transport.connectChild(child, listening);
      await listen(listener, listening);
    };
    const { api_key } = this.identity;
    return new Device({ backoff: this.backoff, ...rest, identity: { device_id: deviceId, api_key }, transport: calls });
  }

  /** Gives a child up, so that another gateway may connect it. Its `run` must have ended. */
  async disconnectChild(child: Device, signal: AbortSignal = new AbortController().signal): Promise<void> {
    const insisting = { backoff: this.backoff, signal, onError: this.parts.onError };
    await insist(() => this.parts.transport.disconnectChild(child.identity.device_id, signal), insisting);
  }

  /** Closes the connection and the buffer. */
  async close(): Promise<void> {
    this.buffer.close();
    await this.parts.transport.close();
  }

  private failed(error: unknown): void {
    if (!this.stop.signal.aborted) this.parts.onError?.(error);
  }

  /** Errors of tasks that are not awaited. */
  private background(task: Promise<unknown>): void {
    task.catch((error: unknown) => this.failed(error));
  }

  private insisting(): Insisting {
    return { backoff: this.backoff, signal: this.stop.signal, onError: (error) => this.failed(error) };
  }

  private async listen(updater: Updater | undefined, restart: () => void): Promise<void> {
    const { signal } = this.stop;
    for (let failures = 0; !signal.aborted;) {
      try {
        const listener = {
          onReady: () => {
            failures = 0;
            this.ready(updater);
          },
          onCommand: (command: Command) => this.take(command, updater, restart),
        };
        await this.parts.transport.listen(listener, signal);
      } catch (error) {
        // ABORTED: another connection with this identity has taken over. Retrying would not change that.
        const isReplaced = error instanceof DeviceError && error.code === 'ABORTED';
        if (isReplaced || reactionTo(error) === 'stop') throw error;
        this.isConnected = false;
        this.failed(error);
        failures += 1;
        await pause(pauseMilliseconds(this.backoff, failures, error, Math.random()), signal);
      }
    }
  }

  private ready(updater: Updater | undefined): void {
    this.isConnected = true;
    this.sender.retry();
    this.background(this.readAttributes());
    this.scheduleChanges();
    if (updater) this.background(updater.report());
  }

  /** Reads the changes that were made while the device was disconnected, because `attributes_changed` expires. */
  private async readAttributes(): Promise<void> {
    const { shared } = await this.parts.transport.getAttributes(this.stop.signal);
    const removed = [...this.shared.keys()].filter((name) => !(name in shared));
    const isChanged = (name: string, value: unknown): boolean =>
      JSON.stringify(this.shared.get(name)) !== JSON.stringify(value);
    const changed = Object.entries(shared)
      .map(([name, { value }]) => [name, value] as const)
      .filter(([name, value]) => isChanged(name, value));
    this.applyAttributes({ changed: Object.fromEntries(changed), removed });
    this.isFirstReady = false;
  }

  private applyAttributes({ changed, removed }: AttributeChange): void {
    for (const name of removed) this.shared.delete(name);
    for (const [name, value] of Object.entries(changed)) this.shared.set(name, value);
    const isEmpty = removed.length === 0 && Object.keys(changed).length === 0;
    if (!isEmpty || this.isFirstReady) this.parts.onAttributes?.({ changed, removed });
  }

  /** Sends one request at a time: a repeated older value must not replace a newer one. */
  private scheduleChanges(): void {
    this.sendingChanges = this.sendingChanges.then(() => this.sendChanges());
  }

  private async sendChanges(): Promise<void> {
    const changes = this.changes;
    const waiting = this.waitingForChanges;
    if (waiting.length === 0) return;
    this.changes = {};
    this.waitingForChanges = [];
    try {
      await insist(() => this.parts.transport.setAttributes(changes, this.stop.signal), this.insisting());
      for (const { resolve } of waiting) resolve();
    } catch (error) {
      if (this.stop.signal.aborted) {
        // Kept for the next run; what was set since then is newer.
        this.changes = { ...changes, ...this.changes };
        this.waitingForChanges.unshift(...waiting);
        return;
      }
      for (const { reject } of waiting) reject(error);
    }
  }

  private take(command: Command, updater: Updater | undefined, restart: () => void): void {
    const { correlation_id: id, method } = command;
    const begun = this.memory.begin(id);
    if (begun.kind === 'repeat') {
      if (begun.response) this.background(this.respond(id, begun.response));
      return;
    }
    if (method === 'ota_start' && updater) {
      this.updates = this.updates.then(() => this.update(id, updater, restart)).catch((error) => this.failed(error));
    } else {
      this.commands = this.commands.then(() => this.carryOut(command)).catch((error) => this.failed(error));
    }
  }

  private async update(id: string, updater: Updater, restart: () => void): Promise<void> {
    try {
      // The report is the response.
      const outcome = await updater.update();
      if (outcome === 'installed') restart();
      if (outcome === 'left') this.memory.forget(id);
    } catch (error) {
      this.memory.forget(id);
      throw error;
    }
  }

  private async carryOut(command: Command): Promise<void> {
    const { correlation_id: id, method, params = {} } = command;
    let response: Response;
    try {
      if (method === 'ota_start') throw new Error('this device has no updates');
      if (method === 'attributes_changed') this.applyAttributes(params as unknown as AttributeChange);
      const { onCommand } = this.parts;
      if (method !== 'attributes_changed' && !onCommand) throw new Error(`unknown command ${method}`);
      const result = method === 'attributes_changed' ? undefined : await onCommand?.(command);
      response = { success: true, ...(result && { response: result }) };
    } catch (error) {
      response = { success: false, error: error instanceof Error ? error.message : String(error) };
    }
    this.memory.responded(id, response);
    await this.respond(id, response);
  }

  private async respond(id: string, response: Response): Promise<void> {
    await insist(() => this.parts.transport.respond(id, response, this.stop.signal), this.insisting());
  }

  /** Confirms the image on trial once it is healthy and reaches the platform, or rolls it back. */
  private async endTrial(updater: Updater, restart: () => void): Promise<void> {
    const { signal } = this.stop;
    const limit = AbortSignal.any([signal, AbortSignal.timeout((this.parts.confirmSeconds ?? 600) * 1000)]);
    try {
      while (!this.isConnected && !limit.aborted) await pause(100, limit);
      if (!signal.aborted && limit.aborted) throw new Error('the platform was not reached in time');
      await Promise.race([
        Promise.resolve(this.parts.checkHealth?.()),
        new Promise((_resolve, reject) =>
          limit.addEventListener('abort', () => reject(new Error('the health check did not end in time'))),
        ),
      ]);
      if (signal.aborted) return;
    } catch (error) {
      if (signal.aborted) return;
      await updater.rollBack(error instanceof Error ? error.message : String(error));
      return restart();
    }
    await updater.confirm();
    await updater.report();
  }
}
