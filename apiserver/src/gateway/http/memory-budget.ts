// Bytes that clients make a process hold, bounded over the process and for each owner. What is too much is taken from those who
// have held theirs longest: a client that does its part holds nothing for long.

/** The bytes held for one request, answer or socket. */
export interface Hold {
  /** Sets how many bytes are held. Evicts the oldest holds, which may be this one, while the sums are above the limits. */
  set(bytes: number): void;
  /** Ends the hold without evicting it. */
  release(): void;
}

/** The greatest sums of bytes. One hold alone may be larger: its size is limited elsewhere. */
export interface MemoryLimits {
  readonly total: number;
  /** Of one owner, such as a tenant or an address. */
  readonly perOwner: number;
}

/** The holds of one owner, oldest first. */
class Owner {
  bytes = 0;
  readonly holdings = new Set<Holding>();
}

/** A budget of bytes. Its operations take constant time, evictions aside. */
export class MemoryBudget {
  readonly limits: MemoryLimits;
  readonly owners = new Map<string, Owner>();
  /** Oldest first. */
  readonly holdings = new Set<Holding>();
  /** Bytes held now. */
  bytes = 0;

  constructor(limits: MemoryLimits) {
    this.limits = limits;
  }

  /** Begins a hold of no bytes. `evict` is called at most once, when the bytes have to go; they no longer count then. */
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
