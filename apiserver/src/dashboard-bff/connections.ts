// Limits on the /ws sockets of a process.

/** Maximum numbers per process. */
export interface ConnectionLimits {
  /** Sockets whose token is still being validated: in total, and per address (IPv6: /64). */
  readonly unjudged: number;
  readonly unjudgedOfAddress: number;
  readonly ofUser: number;
  readonly ofTenant: number;
  /** Devices that the sockets of one tenant have subscribed to, counted for each socket, and for each group that it watches. */
  readonly subscribedOfTenant: number;
}

export const defaultConnectionLimits: ConnectionLimits = {
  unjudged: 1000,
  unjudgedOfAddress: 100,
  ofUser: 100,
  ofTenant: 2000,
  subscribedOfTenant: 200_000,
};
