// Limits how many calls callers have open at a time: each takes some twenty kibibytes, besides its metadata, and may stay open for a
// minute, or a stream for an hour.
import { Tally } from '../../platform/concurrency/tally.ts';
import { resourceExhausted } from '../../platform/errors.ts';
import type { Caller } from '../../platform/rpc.ts';

/** Streams of a device, and of all users and services of a tenant. */
export const maximumStreams = { ofDevice: 16, ofOthers: 1000 } as const;

/** A call that is not over. */
interface OpenCall {
  /** Ends it, because others need its place. */
  readonly end: () => void;
}

/** Counts the calls of a process that have been admitted and are not over. */
export class OpenCalls {
  private readonly maximum: number;
  private readonly streams = new Tally();
  /** By tenant, oldest first. */
  private readonly calls = new Map<string, Set<OpenCall>>();
  private count = 0;

  constructor(maximum: number) {
    this.maximum = maximum;
  }

  /**
   * Counts a call until the returned function is called. If there are too many, the oldest of the tenant with most of them is ended, or
   * if that is the caller's, it throws RESOURCE_EXHAUSTED, as it does if the caller has too many streams, or its tenant if it is no device.
   */
  enter(
    { kind, tenantId, deviceId }: Pick<Caller, 'kind' | 'tenantId' | 'deviceId'>,
    { isStream, end }: { readonly isStream: boolean; readonly end: () => void },
  ): () => void {
    const isDevice = kind === 'device';
    const key = isDevice ? `${tenantId}/${deviceId}` : tenantId;
    const most = isDevice ? maximumStreams.ofDevice : maximumStreams.ofOthers;
    if (isStream && this.streams.of(key) >= most)
      throw resourceExhausted(`at most ${most} streams may be open: end another one first`, 1);
    if (this.count >= this.maximum) this.makeRoom(tenantId);
    const leaveStreams = isStream ? this.streams.enter(key) : undefined;
    const call = { end };
    const ofTenant = this.calls.get(tenantId);
    if (ofTenant) ofTenant.add(call);
    else this.calls.set(tenantId, new Set([call]));
    this.count += 1;
    return () => {
      leaveStreams?.();
      this.remove(tenantId, call);
    };
  }

  private makeRoom(tenantId: string): void {
    const [largest, calls] = [...this.calls].reduce((one, other) => (other[1].size > one[1].size ? other : one));
    if (calls.size <= (this.calls.get(tenantId)?.size ?? 0) + 1)
      throw resourceExhausted('too many calls are open: try again', 1);
    const [oldest] = calls;
    this.remove(largest, oldest!);
    oldest!.end();
  }

  private remove(tenantId: string, call: OpenCall): void {
    const calls = this.calls.get(tenantId);
    if (calls?.delete(call) !== true) return;
    this.count -= 1;
    if (calls.size === 0) this.calls.delete(tenantId);
  }
}
