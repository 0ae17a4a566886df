// Decides whose sealed batch is submitted next: tenants take turns, however many each has waiting.
import type { Lane } from '../transactions/anchor-store.ts';

/** One round of submissions: lanes take turns until all are empty or `most` turns are used. */
export class Turns {
  private readonly lanes: Lane[];
  private left: number;
  private next = 0;

  constructor(lanes: readonly Lane[], most: number) {
    this.lanes = [...lanes];
    this.left = most;
  }

  /** Whether lanes are left. */
  get hasLanes(): boolean {
    return this.lanes.length > 0;
  }

  /** Returns the lane whose turn it is, or undefined when the round is over. */
  take(): Lane | undefined {
    if (this.left === 0 || this.lanes.length === 0) return undefined;
    this.left -= 1;
    this.next %= this.lanes.length;
    return this.lanes[this.next++];
  }

  /** Removes a lane that is empty or whose quota is used up. */
  drop(lane: Lane): void {
    const index = this.lanes.indexOf(lane);
    if (index === -1) return;
    this.lanes.splice(index, 1);
    if (index < this.next) this.next -= 1;
  }
}
