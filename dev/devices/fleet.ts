// Many simulated devices in one process.
import type { IngestAnswer, Reading } from './device.ts';
import { SimulatedDevice } from './device.ts';
import type { DeviceOptions } from './device.ts';

/** Runs `work` over all items, so many at a time. The first error stops what has not begun, and is thrown. */
export async function forEachBounded<Item>(
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
  readonly #concurrency: number;
  #stop: AbortController | undefined;
  #running: Promise<unknown> | undefined;

  /** `concurrency` bounds claims and telemetry; every device polls on a connection of its own. */
  constructor(devices: readonly DeviceOptions[], concurrency = 8) {
    this.devices = devices.map((options) => new SimulatedDevice(options));
    this.#concurrency = concurrency;
  }

  /** Every device claims its identity. Answers what the claims answered, in the order of the devices. */
  async claim(provisionKey: string, onClaimed?: (count: number) => void) {
    const answers: { device_id: string; api_key: string }[] = [];
    let count = 0;
    await forEachBounded(this.devices, this.#concurrency, async (device, index) => {
      answers[index] = await device.claim(provisionKey);
      onClaimed?.(++count);
    });
    return answers;
  }

  /**
   * Every device sends its readings, `batch` points a request. Answers the sum of what was accepted and rejected, and how
   * many requests it took.
   */
  async send(
    readingsOf: (device: SimulatedDevice, index: number) => readonly Reading[],
    batch: number,
    onSent?: (accepted: number) => void,
  ): Promise<{ accepted: number; rejected: number; requests: number }> {
    const total = { accepted: 0, rejected: 0, requests: 0 };
    await forEachBounded(this.devices, this.#concurrency, async (device, index) => {
      const readings = readingsOf(device, index);
      for (let first = 0; first < readings.length; first += batch) {
        const answer: IngestAnswer = await device.send(readings.slice(first, first + batch));
        total.accepted += answer.accepted;
        total.rejected += answer.rejected;
        total.requests++;
        onSent?.(total.accepted);
      }
    });
    return total;
  }

  /** All devices begin to take commands. An error that patience cannot mend rejects the next `stop`. */
  start(): void {
    if (this.#stop) throw new Error('the fleet is running');
    const stop = new AbortController();
    this.#stop = stop;
    this.#running = Promise.all(this.devices.map((device) => device.run(stop.signal)));
    this.#running.catch(() => stop.abort());
  }

  /** Resolves when no device polls any more. */
  async stop(): Promise<void> {
    this.#stop?.abort();
    this.#stop = undefined;
    const running = this.#running;
    this.#running = undefined;
    await running;
  }
}
