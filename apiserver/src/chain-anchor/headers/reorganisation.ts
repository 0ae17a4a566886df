// Decides by work, difficulty and depth whether headers offered by a source replace the stored chain.
import { targetOf, workOf } from '@kellet/verify';

export type Network = 'main' | 'test' | 'local';

/** What the headers of a network must satisfy beyond their own target. */
export interface HeaderRules {
  /** The easiest target that a header may have. */
  readonly easiestTarget: bigint;
  /**
   * Whether difficulty changes slowly, so that a sudden drop indicates a forgery. On test networks it may drop at any
   * block.
   */
  readonly isDifficultySteady: boolean;
  /** Maximum number of stored headers that a branch may replace without operator approval. */
  readonly deepestReorganisation: number;
}

const rulesByNetwork: Readonly<Record<Network, HeaderRules>> = {
  main: { easiestTarget: targetOf(0x1d00ffff), isDifficultySteady: true, deepestReorganisation: 20 },
  test: { easiestTarget: targetOf(0x1d00ffff), isDifficultySteady: false, deepestReorganisation: 100 },
  local: { easiestTarget: targetOf(0x207fffff), isDifficultySteady: false, deepestReorganisation: Infinity },
};

/** Returns the rules of a network; a non-zero `deepest` overrides its limit on the depth of a reorganisation. */
export function rulesOf(network: Network, deepest = 0): HeaderRules {
  const rules = rulesByNetwork[network];
  return deepest === 0 ? rules : { ...rules, deepestReorganisation: deepest };
}

/** The fields of a header that a branch is judged by. */
export interface BranchHeader {
  readonly height: number;
  /** Display hex. */
  readonly blockHash: string;
  /** The target in compact form. */
  readonly bits: number;
}

/**
 * What to do with the offered headers: keep the stored ones, store the offered ones from a height on, or refuse them
 * and report it.
 */
export type BranchVerdict =
  | { readonly action: 'keep' }
  | { readonly action: 'take'; readonly from: number }
  | { readonly action: 'refuse'; readonly depth: number; readonly reason: string };

/** Number of headers over which the difficulty is averaged: a day of the main network. */
export const difficultyWindow = 144;

/**
 * The inverse of the smallest fraction a header's work may be of the mean over the headers before it. The main network
 * sets each target from the work and time of 144 blocks, with the time clamped to between half a day and two days: no
 * block has less than half the mean work of those, or less than a quarter of the previous block's.
 */
const steepestDrop = 8n;

/**
 * Judges the headers that a source offers against the stored ones. Both lists start at the same height or overlap, are
 * in order, without gaps, linked, and meet their own targets. `stored` may start earlier (its headers are the reference
 * for difficulty) and ends at the stored tip.
 *
 * The branch with more work wins; a tie keeps the stored one. Refuses headers below the network's minimum difficulty,
 * sudden drops in difficulty, and branches that replace more than the rules allow. A branch that shares no header with
 * the stored ones replaces more than all of them.
 */
export function judgeBranch(
  stored: readonly BranchHeader[],
  offered: readonly BranchHeader[],
  rules: HeaderRules,
): BranchVerdict {
  const storedHashes = new Map(stored.map(({ height, blockHash }) => [height, blockHash]));
  const shared = offered.findLastIndex(({ height, blockHash }) => storedHashes.get(height) === blockHash);
  const fresh = offered.slice(shared + 1);
  const [first] = fresh;
  if (first === undefined) return { action: 'keep' };
  const replaced = stored.filter(({ height }) => height >= first.height);
  if (replaced.length > 0 && totalWork(fresh) <= totalWork(replaced)) return { action: 'keep' };
  const before = stored.filter(({ height }) => height < first.height);
  const depth = replaced.length;
  const problem = difficultyProblem(before, fresh, rules);
  if (problem !== undefined) return { action: 'refuse', depth, reason: problem };
  const isForeign = stored.length > 0 && before.length === 0 && rules.deepestReorganisation !== Infinity;
  if (isForeign) return { action: 'refuse', depth, reason: 'the branch shares no header with the stored chain' };
  if (depth > rules.deepestReorganisation) {
    const reason = `the branch replaces ${depth} headers, more than ${rules.deepestReorganisation}`;
    return { action: 'refuse', depth, reason };
  }
  return { action: 'take', from: first.height };
}

/** Returns what is wrong with the difficulty of headers that follow `before`, or undefined. */
function difficultyProblem(
  before: readonly BranchHeader[],
  fresh: readonly BranchHeader[],
  rules: HeaderRules,
): string | undefined {
  const window = before.slice(-difficultyWindow).map(({ bits }) => workOf(bits));
  let sum = window.reduce((total, work) => total + work, 0n);
  for (const { height, bits } of fresh) {
    if (targetOf(bits) > rules.easiestTarget) return `header ${height} is easier than the network allows`;
    const work = workOf(bits);
    if (rules.isDifficultySteady && work * BigInt(window.length) * steepestDrop < sum) {
      return `header ${height} is far easier than the headers before it`;
    }
    window.push(work);
    sum += work;
    if (window.length > difficultyWindow) sum -= window.shift()!;
  }
  return undefined;
}

function totalWork(headers: readonly BranchHeader[]): bigint {
  return headers.reduce((sum, { bits }) => sum + workOf(bits), 0n);
}
