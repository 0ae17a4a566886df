// What waits to be checked again, each item once, in turns of the tenants: all calls of a large one become due at once, and a
// revocation in another must not wait for them.

/** The items of a tenant. */
interface Line<Item> {
  readonly waiting: Set<Item>;
  /** Goes through the set, also through what is added meanwhile. */
  readonly next: Iterator<Item>;
}

/** A queue whose tenants take turns. */
export class RecheckQueue<Item> {
  /** By tenant. */
  private readonly lines = new Map<string, Line<Item>>();
  /** Goes round the tenants. */
  private turns = this.lines.entries();

  get isEmpty(): boolean {
    return this.lines.size === 0;
  }

  /** Adds an item behind those of its tenant, unless it waits already. */
  add(tenantId: string, item: Item): void {
    const waiting = this.lines.get(tenantId)?.waiting;
    if (waiting) waiting.add(item);
    else {
      const first = new Set([item]);
      this.lines.set(tenantId, { waiting: first, next: first.values() });
    }
  }

  remove(tenantId: string, item: Item): void {
    const line = this.lines.get(tenantId);
    if (line?.waiting.delete(item) && line.waiting.size === 0) this.lines.delete(tenantId);
  }

  /** Removes what waits of a tenant. */
  removeAll(tenantId: string): void {
    this.lines.delete(tenantId);
  }

  /** Takes an item of the tenant whose turn it is; undefined if none waits. */
  take(): Item | undefined {
    let turn = this.turns.next();
    if (turn.done) {
      this.turns = this.lines.entries();
      turn = this.turns.next();
    }
    if (turn.done) return undefined;
    const [tenantId, line] = turn.value;
    const item = line.next.next().value as Item;
    line.waiting.delete(item);
    this.lines.delete(tenantId);
    // Behind the others, like one that comes again: the round would not end while one does.
    if (line.waiting.size > 0) this.lines.set(tenantId, line);
    return item;
  }
}
