// Faults that tests can inject. They are kept only in memory: a restarted devchain is healthy.

/** Injected faults (POST /dev/faults). Counts decrease with each affected submission. */
export interface Faults {
  /** Callbacks are dropped. */
  drop_callbacks: boolean;
  /** Callbacks are sent this much later. */
  delay_callbacks_ms: number;
  /** Extra copies of every callback. */
  duplicate_callbacks: number;
  /** The next new transactions are REJECTED; their inputs stay unspent. */
  reject_next: number;
  /** The inputs of the next new transactions are spent by a competitor, which the next block confirms. */
  double_spend_next: number;
  /** The next new transactions stay SEEN_IN_ORPHAN_MEMPOOL until DELETE /dev/faults. */
  orphan_next: number;
  /** No block is mined on the timer; POST /dev/mine and /dev/fund still mine. */
  pause_mining: boolean;
  /** The processor's and the header source's routes return 503 for this long, and callbacks are held. */
  unavailable_ms: number;
}

export const noFaults: Readonly<Faults> = {
  drop_callbacks: false,
  delay_callbacks_ms: 0,
  duplicate_callbacks: 0,
  reject_next: 0,
  double_spend_next: 0,
  orphan_next: 0,
  pause_mining: false,
  unavailable_ms: 0,
};

const largest: Readonly<Record<string, number>> = {
  delay_callbacks_ms: 86_400_000,
  duplicate_callbacks: 100,
  unavailable_ms: 86_400_000,
};

/**
 * Parses the fields of a POST /dev/faults body. Returns the change, or a message describing what is wrong with the
 * body.
 */
export function parseFaults(body: unknown): Partial<Faults> | string {
  if (typeof body !== 'object' || body === null || Array.isArray(body)) return 'the body must be a JSON object';
  for (const [name, value] of Object.entries(body)) {
    if (!Object.hasOwn(noFaults, name)) return `unknown fault: ${name}`;
    if (typeof noFaults[name as keyof Faults] === 'boolean') {
      if (typeof value !== 'boolean') return `${name} must be true or false`;
    } else {
      const max = largest[name] ?? 1_000_000;
      if (!Number.isInteger(value) || (value as number) < 0 || (value as number) > max)
        return `${name} must be a whole number from 0 to ${max}`;
    }
  }
  return body;
}

/** A fault of a submission. */
export type SubmissionFault = 'reject_next' | 'double_spend_next' | 'orphan_next';

/** The active faults. `unavailable_ms` counts down from the moment of the request. */
export class FaultBoard {
  private faults: Faults = { ...noFaults };
  private unavailableUntil = 0;
  private readonly now: () => number;

  /** `now` returns the milliseconds of a monotonic clock. */
  constructor(now: () => number) {
    this.now = now;
  }

  /** Returns the active faults as GET /dev/state shows them. */
  get current(): Readonly<Faults> {
    const unavailable_ms = Math.max(0, Math.ceil(this.unavailableUntil - this.now()));
    return { ...this.faults, unavailable_ms };
  }

  merge(change: Partial<Faults>): void {
    this.faults = { ...this.faults, ...change };
    if (change.unavailable_ms !== undefined) this.unavailableUntil = this.now() + change.unavailable_ms;
  }

  clear(): void {
    this.faults = { ...noFaults };
    this.unavailableUntil = 0;
  }

  /**
   * Consumes one counted fault for a new transaction, if any is active: rejection first, then double spend, then
   * orphan.
   */
  takeForSubmission(): SubmissionFault | undefined {
    const struck = (['reject_next', 'double_spend_next', 'orphan_next'] as const).find((name) => this.faults[name] > 0);
    if (struck !== undefined) this.faults[struck] -= 1;
    return struck;
  }
}
