// Many simulated devices in one process.
import { type DeviceOptions, type Reading, SimulatedDevice } from './device.ts';

/** Runs `work` for all items with limited concurrency. The first error cancels the remaining items and is thrown. */
async function forEachBounded<Item>(
  items: readonly Item[],
  concurrency: number,
  work: (item: Item, index: number) => Promise<void>,
): Promise<void> {
  let next = 0;
  let failed = false;
  const worker = async () => {
    while (next < items.length && !failed) {
      const index = next++;
      try {
        await work(items[index]!, index);
      } catch (error) {
        failed = true;
        throw error;
      }
    }
  };
  await Promise.all(Array.from({ length: Math.min(concurrency, items.length) }, worker));
}

/** A fleet of simulated devices. */
export class Fleet {
  readonly devices: readonly SimulatedDevice[];
  private readonly concurrency: number;
  private abort: AbortController | undefined;
  private running: Promise<unknown> | undefined;

  /** `concurrency` limits claims and telemetry; every device polls on a separate connection. */
  constructor(devices: readonly DeviceOptions[], concurrency = 8) {
    this.devices = devices.map((options) => new SimulatedDevice(options));
    this.concurrency = concurrency;
  }

  /** Claims the identities of all devices. Returns the responses in device order. */
  async claim(provisionKey: string, onClaimed?: (count: number) => void) {
    const identities: { device_id: string; api_key: string }[] = [];
    let count = 0;
    await forEachBounded(this.devices, this.concurrency, async (device, index) => {
      identities[index] = await device.claim(provisionKey);
      onClaimed?.(++count);
    });
    return identities;
  }

  /**
   * Sends the readings of all devices, `batch` points per request. Returns the number of accepted and rejected points
   * and of requests.
   */
  async send(
    readingsOf: (device: SimulatedDevice, index: number) => readonly Reading[],
    batch: number,
    onSent?: (accepted: number) => void,
  ): Promise<{ accepted: number; rejected: number; requests: number }> {
    const total = { accepted: 0, rejected: 0, requests: 0 };
    await forEachBounded(this.devices, this.concurrency, async (device, index) => {
      const readings = readingsOf(device, index);
      for (let first = 0; first < readings.length; first += batch) {
        const response = await device.send(readings.slice(first, first + batch));
        total.accepted += response.accepted;
        total.rejected += response.rejected;
        total.requests++;
        onSent?.(total.accepted);
      }
    });
    return total;
  }

  /** Starts executing commands on all devices. A permanent error rejects the next `stop`. */
  start(): void {
    if (this.abort) throw new Error('the fleet is running');
    const stop = new AbortController();
    this.abort = stop;
    // Each device has a signal of its own: adding a listener to a signal takes time for each listener that it has, which would grow
    // with the square of the fleet.
    const stops = this.devices.map(() => new AbortController());
    stop.signal.addEventListener('abort', () => stops.forEach((each) => each.abort()));
    this.running = Promise.all(this.devices.map((device, index) => device.run(stops[index]!.signal)));
    this.running.catch(() => stop.abort());
  }

  /** Stops polling. Resolves when all devices have stopped. */
  async stop(): Promise<void> {
    this.abort?.abort();
    this.abort = undefined;
    const running = this.running;
    this.running = undefined;
    await running;
  }
}
