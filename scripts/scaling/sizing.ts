// The arithmetic of docs/scaling.md: what a plan needs, from measured costs.

/** Processor time of one operation in microseconds. */
export interface Cost {
  readonly apiserver: number;
  readonly postgres: number;
  readonly from: string;
}

/** A size in bytes. */
export interface Size {
  readonly value: number;
  readonly from: string;
}

/** The content of costs.yaml. */
export interface Costs {
  readonly requestMicroseconds: Cost;
  readonly pointMicroseconds: Cost;
  readonly pollMicroseconds: Cost;
  readonly chunkMicroseconds: Cost;
  readonly claimMicroseconds: Cost;
  readonly streamBytes: Size;
  readonly hotPointBytes: Size;
  readonly coldPointBytes: Size;
}

/** A fleet and what it does. */
export interface Plan {
  readonly devices: number;
  /** Seconds between two points of a device. */
  readonly pointSeconds: number;
  /** Points that a device sends in one request. */
  readonly pointsPerRequest: number;
  /** Seconds between two polls for commands; 0: devices hold a stream open instead. */
  readonly pollSeconds: number;
  /** Size of an update, and hours in which the whole fleet downloads one. */
  readonly artifactMegabytes: number;
  readonly rolloutHours: number;
  /** Hours before points turn cold. */
  readonly hotHours: number;
}

/** What is assumed about machines. */
export const assumptions = {
  /** Part of a core that is planned to be in use; the rest is for peaks, and for pods that are being replaced. */
  utilisation: 0.5,
  /** Devices that hold a connection to one gateway: the default of KELLET_MAXIMUM_CONNECTIONS. */
  connectionsPerGateway: 10_000,
  /** Cores of the PostgreSQL of one cell. */
  postgresCores: 16,
  /** Points of an anchor batch: the default of KELLET_BATCH_POINTS. */
  batchPoints: 1000,
  /** Largest fleet of one cell. Not measured: so far fleets of 100,000 devices are. */
  cellDevices: 1_000_000,
} as const;

/** What a plan needs, without the rounding to whole pods unless said. */
export interface Sizing {
  readonly pointsPerSecond: number;
  readonly requestsPerSecond: number;
  readonly pollsPerSecond: number;
  readonly chunksPerSecond: number;
  /** Cores of work, at all times and more while the whole fleet is updated. */
  readonly apiserverCores: number;
  readonly postgresCores: number;
  /** Pods of the data plane at the planned utilisation, or those that hold the connections if they are more; at least 2. */
  readonly pods: number;
  readonly streamGigabytes: number;
  readonly rolloutMegabitsPerSecond: number;
  readonly hotGigabytes: number;
  readonly coldTerabytesPerYear: number;
  readonly transactionsPerSecond: number;
  readonly cells: number;
}

const chunkBytes = 65_536;

/** Returns what a plan needs. */
export function sizing(plan: Plan, costs: Costs): Sizing {
  const pointsPerSecond = plan.devices / plan.pointSeconds;
  const requestsPerSecond = pointsPerSecond / plan.pointsPerRequest;
  const pollsPerSecond = plan.pollSeconds === 0 ? 0 : plan.devices / plan.pollSeconds;
  const chunksPerDevice = Math.ceil((plan.artifactMegabytes * 1e6) / chunkBytes);
  const chunksPerSecond = (plan.devices * chunksPerDevice) / (plan.rolloutHours * 3600);
  const coresOf = (side: 'apiserver' | 'postgres') =>
    (requestsPerSecond * costs.requestMicroseconds[side] +
      pointsPerSecond * costs.pointMicroseconds[side] +
      pollsPerSecond * costs.pollMicroseconds[side] +
      chunksPerSecond * costs.chunkMicroseconds[side]) /
    1e6;
  const apiserverCores = coresOf('apiserver');
  const postgresCores = coresOf('postgres');
  const streams = plan.pollSeconds === 0 ? plan.devices : 0;
  const { utilisation, connectionsPerGateway, batchPoints, cellDevices } = assumptions;
  return {
    ...{ pointsPerSecond, requestsPerSecond, pollsPerSecond, chunksPerSecond, apiserverCores, postgresCores },
    pods: Math.max(2, Math.ceil(apiserverCores / utilisation), Math.ceil(streams / connectionsPerGateway)),
    streamGigabytes: (streams * costs.streamBytes.value) / 1e9,
    rolloutMegabitsPerSecond: (plan.devices * plan.artifactMegabytes * 8) / (plan.rolloutHours * 3600),
    hotGigabytes: (pointsPerSecond * plan.hotHours * 3600 * costs.hotPointBytes.value) / 1e9,
    coldTerabytesPerYear: (pointsPerSecond * 365 * 86_400 * costs.coldPointBytes.value) / 1e12,
    transactionsPerSecond: pointsPerSecond / batchPoints,
    cells: Math.max(
      1,
      Math.ceil(postgresCores / (assumptions.postgresCores * utilisation)),
      Math.ceil(plan.devices / cellDevices),
    ),
  };
}
