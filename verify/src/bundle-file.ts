// Verifies many bundles one after the other, such as those of a whole tenant, in constant memory.
import { verifyBundleText } from './bundle.ts';
import type { Pin } from './pins.ts';
import type { Statement, Verdict, VerdictName } from './verdict.ts';

/** The verdict on one of the bundles; `line` counts from 1. */
export interface BundleVerdict {
  line: number;
  verdict: VerdictName;
  /** As the bundle says, if it does. */
  data_hash?: string;
  /** Why it is not proven; absent if it is. */
  reason?: string;
}

/** The verdict on all: the worst one; malformed if there are none. */
export interface BundlesVerdict {
  verdict: VerdictName;
  counts: Record<VerdictName, number>;
}

/** Returns the trusted blocks at these heights. */
export type PinsAt = (first: number, last: number) => Promise<readonly Pin[]>;

/** Verifies bundles. */
export class BundleFileVerifier {
  private readonly counts: BundlesVerdict['counts'] = { proven: 0, refuted: 0, malformed: 0, mined: 0 };
  private readonly pinsAt: PinsAt;
  private line = 0;
  /** The blocks of the last bundle: most bundles are in the same as the one before. */
  private span = { first: 0, last: -1 };
  private pins: readonly Pin[] = [];

  constructor(pinsAt: PinsAt) {
    this.pinsAt = pinsAt;
  }

  /** Verifies the next bundle. */
  async add(text: string): Promise<BundleVerdict> {
    let verdict = verifyBundleText(text, { pins: this.pins });
    if (verdict.statement && (await this.takePins(verdict.statement))) {
      verdict = verifyBundleText(text, { pins: this.pins });
    }
    return this.count(verdict, /"data_hash"\s*:\s*"([0-9a-f]{64})"/.exec(text)?.[1]);
  }

  /** Counts a bundle that could not be read. */
  addUnreadable(reason: string): BundleVerdict {
    return this.count({ verdict: 'malformed', reason });
  }

  /** Returns the verdict on all. */
  finish(): BundlesVerdict {
    const order = ['refuted', 'malformed', 'mined', 'proven'] as const;
    return { verdict: order.find((verdict) => this.counts[verdict] > 0) ?? 'malformed', counts: this.counts };
  }

  private count({ verdict, reason }: Pick<Verdict, 'verdict' | 'reason'>, hash?: string): BundleVerdict {
    this.line += 1;
    this.counts[verdict] += 1;
    return {
      ...{ line: this.line, verdict },
      ...(hash === undefined ? {} : { data_hash: hash }),
      ...(reason === undefined ? {} : { reason }),
    };
  }

  /** Takes the pins of the blocks of a bundle. Returns false if it has them. */
  private async takePins({ block_height: height, proven_depth: depth }: Statement): Promise<boolean> {
    const span = { first: height, last: height + depth - 1 };
    if (span.first === this.span.first && span.last === this.span.last) return false;
    this.pins = await this.pinsAt(span.first, span.last);
    this.span = span;
    return true;
  }
}
