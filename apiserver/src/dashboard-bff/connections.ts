// How many sockets of /ws a process keeps, and for whom.

/** The most that one process keeps at a time. */
export interface ConnectionLimits {
  /** Sockets whose token is not judged yet: in all, and of one address (IPv6: /64). */
  readonly unjudged: number;
  readonly unjudgedOfAddress: number;
  readonly ofUser: number;
  readonly ofTenant: number;
  /** Devices that the sockets of one tenant watch, a device once for each socket. */
  readonly watchedOfTenant: number;
}

export const defaultConnectionLimits: ConnectionLimits = {
  unjudged: 1000,
  unjudgedOfAddress: 100,
  ofUser: 100,
  ofTenant: 2000,
  watchedOfTenant: 200_000,
};

/** Counts what is kept, by name; a name without any is forgotten. */
export class Tally {
  private readonly counts = new Map<string, number>();

  of(name: string): number {
    return this.counts.get(name) ?? 0;
  }

  add(name: string, count: number): void {
    const sum = this.of(name) + count;
    if (sum > 0) this.counts.set(name, sum);
    else this.counts.delete(name);
  }

  /** Counts one more, until the function that comes back is called. */
  enter(name: string): () => void {
    this.add(name, 1);
    let isIn = true;
    return () => {
      if (isIn) this.add(name, -1);
      isIn = false;
    };
  }
}
