// Sends the points of a buffer, oldest first and one request at a time, until each is stored or refused for good.
import { type Backoff, pause, pauseMilliseconds } from '../backoff.ts';
import { DeviceError, reactionTo } from '../errors.ts';
import type { Ingested, Point, PointError } from '../messages.ts';
import type { Batch, TelemetryBuffer } from './buffer.ts';

/** What a sender needs. */
export interface SenderParts {
  readonly buffer: TelemetryBuffer;
  readonly send: (points: readonly Point[], requestKey: string, signal: AbortSignal) => Promise<Ingested>;
  readonly backoff: Backoff;
  /** Points per request at most. */
  readonly batchPoints: number;
  /** Called with points that the platform will never store; `point` is unknown over MQTT. */
  readonly onRejected: (error: Omit<PointError, 'index'>, point: Point | undefined) => void;
  readonly onError: (error: unknown) => void;
}

/**
 * Returns the number of points of the next request. After a refusal of the whole request it is halved, so that one bad
 * point is found among many; then it doubles again.
 */
export function nextBatchPoints(current: number, isRefused: boolean, maximum: number): number {
  return isRefused ? Math.max(1, Math.floor(current / 2)) : Math.min(maximum, current * 2);
}

/** Points that exceed a quota are valid: they wait until the quota allows them. */
const isQuotaUsedUp = ({ accepted, errors }: Ingested): boolean =>
  accepted === 0 && errors.length > 0 && errors.every(({ code }) => code === 'RESOURCE_EXHAUSTED');

/** Sends points while it runs. */
export class TelemetrySender {
  private readonly parts: SenderParts;
  private wakeUp: () => void = () => undefined;
  private isWoken = false;
  private isIdle = false;
  private readonly flushed: (() => void)[] = [];

  constructor(parts: SenderParts) {
    this.parts = parts;
  }

  /** Called when there are new points. */
  wake(): void {
    this.isWoken = true;
    if (this.isIdle) this.wakeUp();
  }

  /** Ends a pause after an error, because the platform can be reached again. */
  retry(): void {
    this.isWoken = true;
    this.wakeUp();
  }

  /** Resolves once the buffer is empty. */
  async flush(): Promise<void> {
    if (this.parts.buffer.size === 0) return;
    await new Promise<void>((resolve) => {
      this.flushed.push(resolve);
      this.wake();
    });
  }

  /** Sends until the signal aborts. Throws if the key is no longer valid. */
  async run(signal: AbortSignal): Promise<void> {
    const { buffer, batchPoints, backoff } = this.parts;
    let limit = batchPoints;
    let failures = 0;
    let current: { batch: Batch; key: string } | undefined;
    while (!signal.aborted) {
      this.isWoken = false;
      try {
        // A repeated request has its points and its key, so that the platform recognises it.
        current ??= { batch: buffer.peek(limit), key: crypto.randomUUID() };
        if (current.batch.points.length === 0) {
          current = undefined;
          for (const resolve of this.flushed.splice(0)) resolve();
          await this.idle(signal);
          continue;
        }
        const { batch, key } = current;
        const ingested = await this.parts.send(batch.points, key, signal);
        // The request has its response, which another one with this key would only repeat.
        current = undefined;
        if (isQuotaUsedUp(ingested)) throw new DeviceError('RESOURCE_EXHAUSTED', ingested.errors[0]!.message);
        buffer.remove(batch.end);
        failures = 0;
        limit = nextBatchPoints(limit, false, batchPoints);
        for (const { index, code, message } of ingested.errors) {
          this.rejected({ code, message }, index === undefined ? undefined : batch.points[index]);
        }
      } catch (error) {
        if (signal.aborted) return;
        if (reactionTo(error) === 'stop') throw error;
        if (current && error instanceof DeviceError && error.code === 'INVALID_ARGUMENT') {
          const { points, end } = current.batch;
          limit = nextBatchPoints(points.length, true, batchPoints);
          current = undefined;
          if (points.length === 1) {
            buffer.remove(end);
            this.rejected({ code: error.code, message: error.message }, points[0]);
          }
          continue;
        }
        this.parts.onError(error);
        failures += 1;
        await this.interruptible(pauseMilliseconds(backoff, failures, error, Math.random()), signal);
      }
    }
  }

  /** An error of the program's own function must not stop the sending. */
  private rejected(...rejection: Parameters<SenderParts['onRejected']>): void {
    try {
      this.parts.onRejected(...rejection);
    } catch (error) {
      this.parts.onError(error);
    }
  }

  private async idle(signal: AbortSignal): Promise<void> {
    this.isIdle = true;
    if (!this.isWoken) await this.interruptible(2 ** 31 - 1, signal);
    this.isIdle = false;
  }

  /** Waits until the time is over, `wakeUp` is called or the signal aborts. */
  private async interruptible(milliseconds: number, signal: AbortSignal): Promise<void> {
    const woken = new AbortController();
    this.wakeUp = () => woken.abort();
    await pause(milliseconds, AbortSignal.any([signal, woken.signal]));
    this.wakeUp = () => undefined;
  }
}
