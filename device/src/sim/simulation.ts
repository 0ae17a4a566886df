// Runs simulated devices: one timer for all of them, messages spread evenly over the devices and over time.
import { createHash } from 'node:crypto';
import { defaultBackoff, insist, type Insisting, pause, pauseMilliseconds } from '../backoff.ts';
import { CommandMemory } from '../commands/command-memory.ts';
import { DeviceError, reactionTo } from '../errors.ts';
import type { Command, Identity, Point } from '../messages.ts';
import type { Protocol, Transport } from '../transports/transport.ts';
import { refuseImage } from '../update/image-check.ts';
import { downloadArtifact } from '../update/updater.ts';
import type { SimOptions } from './options.ts';
import type { Statistics } from './statistics.ts';

const tickMilliseconds = 10;
/** Connections that are opened at once: the platform refuses too many. */
const connectingAtOnce = 50;
/** How long a stopped simulation waits for responses. */
const lastMilliseconds = 10_000;
/** Share of the messages at which a failing device loses its connection. */
const cutShare = 0.1;

/** Reports whether a device fails. Failing ones are spread evenly. */
export const isFailing = (index: number, share: number): boolean =>
  Math.floor((index + 1) * share + 1e-9) > Math.floor(index * share + 1e-9);

/** Returns the number of messages that are due by now but were not sent. */
export const dueMessages = (elapsedMilliseconds: number, perSecond: number, sent: number): number =>
  Math.max(0, Math.floor((elapsedMilliseconds * perSecond) / 1000) - sent);

interface SimulatedDevice {
  readonly transport: Transport;
  readonly isFailing: boolean;
  readonly memory: CommandMemory;
  /** Breaks the connection. */
  cut: AbortController;
}

/** A fleet that sends points until the signal aborts. */
export class Simulation {
  private readonly options: SimOptions;
  private readonly statistics: Statistics;
  private readonly devices: readonly SimulatedDevice[];
  private readonly stop = new AbortController();
  private readonly links: Promise<void>[] = [];
  private inFlight = 0;
  private connecting = 0;
  /** Devices that have connected, or could not at their first attempt. */
  private settled = 0;
  private readonly waiting: (() => void)[] = [];
  private count = 0;

  constructor(options: SimOptions, protocol: Protocol, identities: readonly Identity[], statistics: Statistics) {
    this.options = options;
    this.statistics = statistics;
    this.devices = identities.map((identity, index) => ({
      transport: protocol.open(identity),
      isFailing: isFailing(index, options.failures),
      memory: new CommandMemory(16),
      cut: new AbortController(),
    }));
  }

  /** Connects the devices, if they take commands. Resolves once each has connected or failed to. */
  async connect(signal: AbortSignal): Promise<void> {
    if (!this.options.commands) return;
    this.links.push(...this.devices.map((device) => this.link(device, this.stop.signal)));
    while (this.settled < this.devices.length && !signal.aborted) await pause(tickMilliseconds, signal);
  }

  /** Sends points until the signal aborts, and then waits for the last responses. */
  async run(signal: AbortSignal): Promise<void> {
    const { rate, batch } = this.options;
    const begin = performance.now();
    let sent = 0;
    const perSecond = rate / batch;
    const timer = setInterval(() => {
      const due = dueMessages(performance.now() - begin, perSecond, sent);
      for (let index = 0; index < due; index++, sent++) {
        const device = this.devices[sent % this.devices.length]!;
        if (this.inFlight >= this.options.inFlight) this.statistics.skipped += 1;
        else void this.send(device, begin + (sent * 1000) / perSecond, this.stop.signal);
      }
    }, tickMilliseconds);
    await pause(2 ** 31 - 1, signal);
    clearInterval(timer);
    const last = performance.now();
    while (this.inFlight > 0 && performance.now() - last < lastMilliseconds) {
      await new Promise((resolve) => setTimeout(resolve, tickMilliseconds));
    }
  }

  /** Disconnects the devices. */
  async close(): Promise<void> {
    this.stop.abort();
    await Promise.allSettled(this.links);
    await Promise.allSettled(this.devices.map(({ transport }) => transport.close()));
  }

  private points(): Point[] {
    const now = Date.now();
    return Array.from({ length: this.options.batch }, (_, index) => {
      // A slow wave changes and compresses like the values of sensors.
      const value = Math.round(2000 + 500 * Math.sin(this.count++ / 1000)) / 100;
      return {
        timestamp: new Date(now - this.options.batch + 1 + index).toISOString(),
        numeric_values: Object.fromEntries(this.options.keys.map((key) => [key, value])),
      };
    });
  }

  private async send(device: SimulatedDevice, due: number, signal: AbortSignal): Promise<void> {
    this.inFlight += 1;
    try {
      const points = this.points();
      const { accepted, rejected, errors } = await device.transport.send(points, crypto.randomUUID(), signal);
      this.statistics.responded(performance.now() - due);
      this.statistics.accepted += accepted;
      this.statistics.rejected += rejected;
      for (const { message } of errors.slice(0, 1)) this.statistics.error(message);
    } catch (error) {
      this.statistics.failed += 1;
      this.statistics.error(error);
    } finally {
      this.inFlight -= 1;
    }
    if (device.isFailing && Math.random() < cutShare) device.cut.abort();
  }

  /** Keeps a device connected, and carries out its commands. */
  private async link(device: SimulatedDevice, signal: AbortSignal): Promise<void> {
    let isFirst = true;
    for (let failures = 0; !signal.aborted;) {
      await this.mayConnect();
      let isReady = false;
      let isConnecting = true;
      const connected = (): void => {
        if (isConnecting) this.connectionMade();
        isConnecting = false;
        if (isFirst) this.settled += 1;
        isFirst = false;
      };
      device.cut = new AbortController();
      try {
        const listener = {
          onReady: () => {
            connected();
            if (!isReady) this.statistics.connected += 1;
            isReady = true;
            failures = 0;
          },
          onCommand: (command: Command) => void this.obey(device, command, signal),
        };
        await device.transport.listen(listener, AbortSignal.any([signal, device.cut.signal]));
      } catch (error) {
        this.statistics.error(error);
        connected();
        if (reactionTo(error) === 'stop' || (error instanceof DeviceError && error.code === 'ABORTED')) return;
        await pause(pauseMilliseconds(defaultBackoff, ++failures, error, Math.random()), signal);
      } finally {
        connected();
        if (isReady) this.statistics.connected -= 1;
      }
    }
  }

  private async mayConnect(): Promise<void> {
    if (this.connecting >= connectingAtOnce) await new Promise<void>((resolve) => this.waiting.push(resolve));
    else this.connecting += 1;
  }

  private connectionMade(): void {
    const next = this.waiting.shift();
    if (next) next();
    else this.connecting -= 1;
  }

  private async obey(device: SimulatedDevice, command: Command, signal: AbortSignal): Promise<void> {
    const { correlation_id: id, method } = command;
    const insisting: Insisting = { backoff: defaultBackoff, signal, onError: (error) => this.statistics.error(error) };
    const begun = device.memory.begin(id);
    let response = begun.kind === 'repeat' ? begun.response : undefined;
    try {
      if (begun.kind === 'new') {
        this.statistics.commands += 1;
        if (method === 'ota_start') await this.update(device, insisting);
        else response = device.isFailing ? { success: false, error: 'simulated failure' } : { success: true };
        if (response) device.memory.responded(id, response);
      }
      const made = response;
      if (made) await insist(() => device.transport.respond(id, made, signal), insisting);
    } catch (error) {
      device.memory.forget(id);
      if (!signal.aborted) this.statistics.error(error);
    }
  }

  private async update({ transport, ...device }: SimulatedDevice, insisting: Insisting): Promise<void> {
    const { signal } = insisting;
    const assigned = await insist(() => transport.assignedPackage(signal), insisting);
    if (!assigned) return;
    const hash = createHash('sha256');
    let sizeBytes = 0;
    const append = async (bytes: Uint8Array): Promise<void> => {
      hash.update(bytes);
      sizeBytes += bytes.length;
    };
    if (!(await downloadArtifact({ transport, assigned, present: 0, append, insisting }))) return;
    const refusal = refuseImage({ sizeBytes, sha256: hash.digest() }, assigned, []);
    const error = refusal ?? (device.isFailing ? 'simulated failure' : '');
    const { rollout_id, version: firmware_version } = assigned;
    const status = error === '' ? 'success' : 'failure';
    await insist(() => transport.report({ rollout_id, status, firmware_version, error }, signal), insisting);
    this.statistics.updates += 1;
  }
}
