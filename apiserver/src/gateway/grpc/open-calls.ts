// Limits how many calls callers have open at a time: each takes some twenty kibibytes, besides its metadata, and may stay open for a
// minute, or a stream for an hour, and after that until its client has read its end, or for two minutes.
import { Tally } from '../../platform/concurrency/tally.ts';
import { resourceExhausted } from '../../platform/errors.ts';
import type { Caller } from '../../platform/rpc.ts';

/** Streams of a device, and of all users and services of a tenant. */
export const maximumStreams = { ofDevice: 16, ofOthers: 1000 } as const;

/** A call that is counted. */
interface OpenCall {
  /** Ends it, because others need its place. */
  readonly end: () => void;
}

/** Those of a tenant, oldest first. */
interface CallsOfTenant {
  readonly goingOn: Set<OpenCall>;
  /** They are over, but their clients have not read all. */
  readonly unread: Set<OpenCall>;
}

const sizeOf = (calls: CallsOfTenant | undefined): number => (calls ? calls.goingOn.size + calls.unread.size : 0);

/** What is to be called when a call is over, and when nothing is kept for it any more. */
export interface EnteredCall {
  readonly isOver: () => void;
  readonly leave: () => void;
}

/** Counts the calls of a process that have been admitted, until their clients have read their ends. */
export class OpenCalls {
  private readonly maximum: number;
  private readonly streams = new Tally();
  /** By tenant. */
  private readonly calls = new Map<string, CallsOfTenant>();
  private count = 0;

  constructor(maximum: number) {
    this.maximum = maximum;
  }

  /**
   * Counts a call. If there are too many, one of the tenant with most of them is ended: the oldest that is unread, or the oldest of all
   * unless that tenant is the caller's: then it throws RESOURCE_EXHAUSTED, as it does if the caller has too many streams that are not
   * over, or its tenant if it is no device.
   */
  enter(
    { kind, tenantId, deviceId }: Pick<Caller, 'kind' | 'tenantId' | 'deviceId'>,
    { isStream, end }: { readonly isStream: boolean; readonly end: () => void },
  ): EnteredCall {
    const isDevice = kind === 'device';
    const key = isDevice ? `${tenantId}/${deviceId}` : tenantId;
    const most = isDevice ? maximumStreams.ofDevice : maximumStreams.ofOthers;
    if (isStream && this.streams.of(key) >= most)
      throw resourceExhausted(`at most ${most} streams may be open: end another one first`, 1);
    if (this.count >= this.maximum) this.makeRoom(tenantId);
    const leaveStreams = isStream ? this.streams.enter(key) : undefined;
    const call = { end };
    let calls = this.calls.get(tenantId);
    if (!calls) this.calls.set(tenantId, (calls = { goingOn: new Set(), unread: new Set() }));
    const { goingOn, unread } = calls;
    goingOn.add(call);
    this.count += 1;
    return {
      isOver: () => {
        leaveStreams?.();
        if (goingOn.delete(call)) unread.add(call);
      },
      leave: () => {
        leaveStreams?.();
        this.remove(tenantId, call);
      },
    };
  }

  private makeRoom(tenantId: string): void {
    const [largest, calls] = [...this.calls].reduce((one, other) => (sizeOf(other[1]) > sizeOf(one[1]) ? other : one));
    if (calls.unread.size === 0 && sizeOf(calls) <= sizeOf(this.calls.get(tenantId)) + 1)
      throw resourceExhausted('too many calls are open: try again', 1);
    const [oldest] = calls.unread.size > 0 ? calls.unread : calls.goingOn;
    this.remove(largest, oldest!);
    oldest!.end();
  }

  private remove(tenantId: string, call: OpenCall): void {
    const calls = this.calls.get(tenantId);
    if (!calls || !(calls.goingOn.delete(call) || calls.unread.delete(call))) return;
    this.count -= 1;
    if (sizeOf(calls) === 0) this.calls.delete(tenantId);
  }
}
