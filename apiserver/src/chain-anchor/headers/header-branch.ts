// Whether the headers that a source offers may become the stored chain: by work, difficulty and depth. Pure.
import { targetOf, workOf } from '@kellet/verify';

export type Network = 'main' | 'test' | 'local';

/** What headers of a network must meet beyond their own target. */
export interface HeaderRules {
  /** The easiest target that a header may name. */
  readonly easiestTarget: bigint;
  /** Whether difficulty changes slowly, so that a sudden drop is a forgery. On test networks it may drop at any block. */
  readonly isDifficultySteady: boolean;
  /** The most stored headers that a branch may replace without an operator's word. */
  readonly deepestReorganisation: number;
}

const rulesByNetwork: Readonly<Record<Network, HeaderRules>> = {
  main: { easiestTarget: targetOf(0x1d00ffff), isDifficultySteady: true, deepestReorganisation: 20 },
  test: { easiestTarget: targetOf(0x1d00ffff), isDifficultySteady: false, deepestReorganisation: 100 },
  local: { easiestTarget: targetOf(0x207fffff), isDifficultySteady: false, deepestReorganisation: Infinity },
};

/** The rules of a network; `deepest` is the operator's word on the deepest reorganisation, 0 leaves it to the network. */
export function rulesOf(network: Network, deepest = 0): HeaderRules {
  const rules = rulesByNetwork[network];
  return deepest === 0 ? rules : { ...rules, deepestReorganisation: deepest };
}

/** A header as far as a branch is judged by it. */
export interface BranchHeader {
  readonly height: number;
  /** Display hex. */
  readonly blockHash: string;
  /** The target in compact form. */
  readonly bits: number;
}

/** What to do with the headers offered: nothing, store those from a height on, or refuse them and tell the operator. */
export type BranchVerdict =
  | { readonly action: 'keep' }
  | { readonly action: 'take'; readonly from: number }
  | { readonly action: 'refuse'; readonly depth: number; readonly reason: string };

/** Headers over which the difficulty is averaged: a day of the main network. */
export const difficultyWindow = 144;

/**
 * The least share of the mean work of the headers before it that a header must have, as its inverse. The main network sets
 * each target from the work and the time of 144 blocks, with the time held between half a day and two days: no block has
 * less than half of the work of the mean of those, nor less than a quarter of the one before it.
 */
const steepestDrop = 8n;

/**
 * Judges the headers that a source offers against the stored ones. Both begin at the same height or at heights that
 * overlap, are in order and without gaps, and each list is known to hold together and to meet its own targets; `stored` may
 * begin earlier (its headers are what difficulty is compared with) and reaches to the stored tip.
 *
 * The branch with more work wins, and of two with equal work the stored one. Refused are headers below the network's least
 * difficulty, headers whose difficulty drops suddenly, and branches that replace more than the rules allow; a branch that
 * shares no header with the stored ones replaces all of them and more.
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

/** What is wrong with the difficulty of headers that follow `before`; undefined when nothing is. */
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
