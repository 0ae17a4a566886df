// Limits how many streams callers have open at a time: each takes some twenty kibibytes, and may stay open for an hour.
import { resourceExhausted } from '../../platform/errors.ts';
import type { Caller } from '../../platform/rpc.ts';

/** Streams of a device, and of all users and services of a tenant. */
export const maximumStreams = { ofDevice: 16, ofOthers: 1000 } as const;

/** Counts the open streams of a process. */
export class OpenStreams {
  private readonly counts = new Map<string, number>();

  /**
   * Counts a stream until the returned function is called. Throws RESOURCE_EXHAUSTED if the caller, or its tenant if it is no
   * device, has too many.
   */
  enter({ kind, tenantId, deviceId }: Pick<Caller, 'kind' | 'tenantId' | 'deviceId'>): () => void {
    const isDevice = kind === 'device';
    const key = isDevice ? `${tenantId}/${deviceId}` : tenantId;
    const most = isDevice ? maximumStreams.ofDevice : maximumStreams.ofOthers;
    const count = this.counts.get(key) ?? 0;
    if (count >= most) throw resourceExhausted(`at most ${most} streams may be open: end another one first`, 1);
    this.counts.set(key, count + 1);
    return () => {
      const left = this.counts.get(key)! - 1;
      if (left === 0) this.counts.delete(key);
      else this.counts.set(key, left);
    };
  }
}
