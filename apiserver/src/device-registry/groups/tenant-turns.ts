// Whose turn it is, among tenants that wait for the same worker.

/** Tenants whose last turn is remembered. */
const mostRemembered = 1000;

/** Gives turns to the tenants that were served least recently. */
export class TenantTurns {
  /** Least recently served first. */
  private readonly served = new Set<string>();
  private readonly most: number;

  constructor(most = mostRemembered) {
    this.most = most;
  }

  /** Returns the tenants in the order of their turns: first those that had none. */
  order(waiting: readonly string[]): string[] {
    const among = new Set(waiting);
    return [...waiting.filter((tenantId) => !this.served.has(tenantId)), ...this.served].filter((tenantId) =>
      among.has(tenantId),
    );
  }

  /** Notes that it was a tenant's turn. */
  took(tenantId: string): void {
    this.served.delete(tenantId);
    this.served.add(tenantId);
    if (this.served.size > this.most) for (const oldest of this.served) return void this.served.delete(oldest);
  }
}
