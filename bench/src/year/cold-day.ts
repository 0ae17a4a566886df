// Points that the thread of batches hands over to the thread of cold files: those of a tenant and a date, in flat arrays.

/** The batches of a tenant whose points have one UTC date. */
export interface ColdDay {
  readonly tenantId: string;
  /** Ids of the devices, in ascending order. */
  readonly deviceIds: readonly string[];
  readonly batches: number;
  /** Points of a batch. */
  readonly count: number;
  /** Places among `deviceIds`. */
  readonly devices: Uint32Array;
  /** Of the first point; the others follow a second apart. */
  readonly firstSeconds: Float64Array;
  readonly firstNumbers: Float64Array;
  readonly received: Float64Array;
  readonly ids: Uint8Array;
  readonly leaves: Uint8Array;
  /** Points with payloads of their own, one of a batch each, in the order of time. */
  readonly others: readonly OtherPoint[];
}

/** A point that no device sent. */
export interface OtherPoint {
  readonly deviceId: string;
  readonly seconds: number;
  readonly payload: string;
  readonly dataHash: Uint8Array;
  readonly batchId: string;
  readonly received: number;
}

/** Collects the points of a tenant and a date. */
export class ColdDayBuilder {
  readonly day: number;
  private readonly tenantId: string;
  private readonly count: number;
  private readonly deviceIds: readonly string[];
  private batches = 0;
  private devices = new Uint32Array(64);
  private firstSeconds = new Float64Array(64);
  private firstNumbers = new Float64Array(64);
  private received = new Float64Array(64);
  private ids = new Uint8Array(64 * 16);
  private leaves: Uint8Array<ArrayBuffer>;
  private readonly others: OtherPoint[] = [];

  /** `day` is the date in days since 1970; `deviceIds` are in ascending order. */
  constructor(tenantId: string, day: number, deviceIds: readonly string[], count: number) {
    this.tenantId = tenantId;
    this.day = day;
    this.deviceIds = deviceIds;
    this.count = count;
    this.leaves = new Uint8Array(64 * 32 * count);
  }

  /** Adds a batch: the place of its device, times, the number of its first point, and where its id and its leaves are. */
  add(
    batch: {
      readonly device: number;
      readonly firstSeconds: number;
      readonly firstNumber: number;
      readonly received: number;
    },
    [ids, idAt]: readonly [Buffer, number],
    [leaves, leavesAt]: readonly [Buffer, number],
  ): void {
    const { batches, count } = this;
    if (batches === this.devices.length) this.grow();
    this.devices[batches] = batch.device;
    this.firstSeconds[batches] = batch.firstSeconds;
    this.firstNumbers[batches] = batch.firstNumber;
    this.received[batches] = batch.received;
    ids.copy(this.ids, batches * 16, idAt, idAt + 16);
    leaves.copy(this.leaves, batches * 32 * count, leavesAt, leavesAt + 32 * count);
    this.batches += 1;
  }

  addOther(point: OtherPoint): void {
    this.others.push(point);
  }

  /** Returns the day, and the buffers that are handed over with it. */
  end(): { readonly day: ColdDay; readonly buffers: ArrayBuffer[] } {
    const { devices, firstSeconds, firstNumbers, received, ids, leaves } = this;
    const { tenantId, deviceIds, batches, count, others } = this;
    return {
      day: { tenantId, deviceIds, batches, count, devices, firstSeconds, firstNumbers, received, ids, leaves, others },
      buffers: [devices, firstSeconds, firstNumbers, received, ids, leaves].map((array) => array.buffer),
    };
  }

  private grow(): void {
    const size = this.batches * 2;
    const copied = <T extends Uint32Array<ArrayBuffer> | Float64Array<ArrayBuffer> | Uint8Array<ArrayBuffer>>(
      from: T,
      to: T,
    ): T => {
      to.set(from);
      return to;
    };
    this.devices = copied(this.devices, new Uint32Array(size));
    this.firstSeconds = copied(this.firstSeconds, new Float64Array(size));
    this.firstNumbers = copied(this.firstNumbers, new Float64Array(size));
    this.received = copied(this.received, new Float64Array(size));
    this.ids = copied(this.ids, new Uint8Array(size * 16));
    this.leaves = copied(this.leaves, new Uint8Array(size * 32 * this.count));
  }
}
