// Bounds the bytes that clients make a process hold, in total and per owner. The oldest holds are evicted first: a
// client that keeps up never holds memory for long.

/** Bytes held for one request, response or socket. */
export interface Hold {
  /** Sets the number of bytes. Evicts the oldest holds, possibly this one, while a limit is exceeded. */
  set(bytes: number): void;
  /** Ends the hold without evicting it. */
  release(): void;
}

/** Limits in bytes. A single hold may exceed them: its size is limited elsewhere. */
export interface MemoryLimits {
  readonly total: number;
  /** Limit per owner, such as a tenant or an address. */
  readonly perOwner: number;
}

/** The holds of one owner, oldest first. */
class Owner {
  bytes = 0;
  readonly holdings = new Set<Holding>();
}

/** A budget of bytes. Operations take constant time, apart from evictions. */
export class MemoryBudget {
  readonly limits: MemoryLimits;
  readonly owners = new Map<string, Owner>();
  /** Oldest first. */
  readonly holdings = new Set<Holding>();
  /** Bytes currently held. */
  bytes = 0;

  constructor(limits: MemoryLimits) {
    this.limits = limits;
  }

  /**
   * Creates a hold of zero bytes. `evict` is called at most once, when the bytes must be freed; they no longer count by
   * then.
   */
  hold(owner: string, evict: () => void): Hold {
    return new Holding(this, owner, evict);
  }
}

class Holding implements Hold {
  private readonly budget: MemoryBudget;
  private readonly name: string;
  private readonly owner: Owner;
  private readonly evict: () => void;
  private bytes = 0;

  constructor(budget: MemoryBudget, name: string, evict: () => void) {
    this.budget = budget;
    this.name = name;
    this.evict = evict;
    this.owner = budget.owners.get(name) ?? new Owner();
    budget.owners.set(name, this.owner);
    this.owner.holdings.add(this);
    budget.holdings.add(this);
  }

  set(bytes: number): void {
    const { budget, owner } = this;
    if (!budget.holdings.has(this)) return;
    owner.bytes += bytes - this.bytes;
    budget.bytes += bytes - this.bytes;
    this.bytes = bytes;
    while (owner.bytes > budget.limits.perOwner && owner.holdings.size > 1) evictOldest(owner.holdings);
    while (budget.bytes > budget.limits.total && budget.holdings.size > 1) evictOldest(budget.holdings);
  }

  release(): void {
    const { budget, owner } = this;
    if (!budget.holdings.delete(this)) return;
    owner.holdings.delete(this);
    owner.bytes -= this.bytes;
    budget.bytes -= this.bytes;
    if (owner.holdings.size === 0) budget.owners.delete(this.name);
  }

  end(): void {
    this.release();
    this.evict();
  }
}

function evictOldest(holdings: ReadonlySet<Holding>): void {
  const [oldest] = holdings;
  oldest!.end();
}
