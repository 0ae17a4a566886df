// Whose sealed batch is submitted next: tenants take turns, whatever each of them has waiting. Pure.
import type { Lane } from '../transactions/store.ts';

/** One round of submissions: lanes in turn, until all are empty or `most` turns are taken. */
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

  /** The lane whose turn it is; undefined when the round is over. */
  take(): Lane | undefined {
    if (this.left === 0 || this.lanes.length === 0) return undefined;
    this.left -= 1;
    this.next %= this.lanes.length;
    return this.lanes[this.next++];
  }

  /** Takes a lane out: it is empty, or its quota is used up. */
  drop(lane: Lane): void {
    const index = this.lanes.indexOf(lane);
    if (index === -1) return;
    this.lanes.splice(index, 1);
    if (index < this.next) this.next -= 1;
  }
}
