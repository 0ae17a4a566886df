// Row counts of a year of data by scale: SCALE=1 is 1,000 tenants with a million devices.

/** The numbers of rows. */
export interface Sizes {
  readonly tenants: number;
  /** Half of them belong to the first tenant. */
  readonly devices: number;
  readonly groups: number;
  readonly rollouts: number;
  readonly activeRollouts: number;
  /** Devices of a rollout. */
  readonly rolloutDevices: number;
  /** Points in cold files; `hotPoints` are in the database. */
  readonly coldPoints: number;
  readonly hotPoints: number;
  readonly batches: number;
  /** Of these, batches whose transactions are pending. */
  readonly pendingBatches: number;
  readonly commands: number;
  readonly auditEvents: number;
  readonly outboxEvents: number;
  /** Rows of each other kind that accumulate over time, such as history, sessions and webhook deliveries. */
  readonly others: number;
}

/**
 * The sizes of a small house, with which the full one is compared: at least a page of everything that calls list, so that a list is
 * not faster there because it is empty. A device has as many points there, and a batch as many leaves, so that a page of proofs has as
 * many proofs of as many batches.
 */
export const smallSizes: Sizes = {
  ...{ tenants: 4, devices: 800, groups: 8, rollouts: 600, activeRollouts: 4, rolloutDevices: 100 },
  ...{ coldPoints: 80_000, hotPoints: 16_000, batches: 24_000, pendingBatches: 4 },
  ...{ commands: 2000, auditEvents: 400, outboxEvents: 100, others: 1000 },
};

/** Few tenants would make every statement read a large part of its tables. */
const leastTenants = 100;

/** Returns the sizes for a scale from 0.001 to 1. Throws RangeError for others. */
export function sizesOf(scale: number): Sizes {
  if (!(scale >= 0.001 && scale <= 1)) throw new RangeError('SCALE must be from 0.001 to 1');
  const of = (full: number, least = 1) => Math.max(least, Math.round(full * scale));
  return {
    tenants: of(1000, leastTenants),
    devices: of(1_000_000, 2 * leastTenants),
    groups: of(20_000, leastTenants),
    rollouts: of(10_000, leastTenants),
    activeRollouts: of(200, 2),
    rolloutDevices: of(1000, 150),
    coldPoints: of(100_000_000),
    hotPoints: of(20_000_000),
    batches: of(30_000_000),
    pendingBatches: of(2000, 10),
    commands: of(5_000_000),
    auditEvents: of(1_000_000),
    outboxEvents: of(100_000),
    others: of(2_000_000),
  };
}
