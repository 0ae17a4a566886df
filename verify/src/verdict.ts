// The result of verifying a bundle: a verdict, the steps that led to it, and what is proven.
import type { AnchorMode } from './bundle-schema.ts';

/**
 * proven: everything holds, and a trusted block is on the bundle's chain. mined: everything holds under the stated
 * work, but the chain is not identified. refuted: something is untrue. malformed: not a bundle.
 */
export type VerdictName = 'proven' | 'mined' | 'refuted' | 'malformed';

export type StepName =
  'schema' | 'leaf_hash' | 'merkle_path' | 'transaction' | 'commitment' | 'bump' | 'headers' | 'record' | 'pin';

/** One executed step; a refused step is the last. `passed` is false for a pin that is merely missing. */
export interface Step {
  step: StepName;
  passed: boolean;
  detail: string;
}

/** What a sound bundle proves. Times are Unix seconds; txid and block hashes are in display order. */
export interface Statement {
  tenant_id: string;
  device_id: string;
  timestamp: number;
  payload: string;
  data_hash: string;
  anchor_mode: AnchorMode;
  batch_id: string;
  leaf_index: number;
  count: number;
  merkle_root: string;
  committed_at: number;
  txid: string;
  block_height: number;
  block_hash: string;
  block_time: number;
  /** As claimed by its maker. */
  claimed_depth: number;
  /** As shown by the headers. */
  proven_depth: number;
  tip_hash: string;
  /** Expected number of hashes for the headers shown, in decimal. */
  work: string;
}

export interface Verdict {
  verdict: VerdictName;
  /** Why it is not proven; absent if it is. */
  reason?: string;
  steps: Step[];
  /** What is proven or mined; absent otherwise. */
  statement?: Statement;
}
