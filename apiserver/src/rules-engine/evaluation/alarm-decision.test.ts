import { expect } from 'chai';
import { decide, initialState, type RuleState, type RuleTiming, type Verdict } from './alarm-decision.ts';

const seconds = (count: number) => BigInt(count) * 1_000_000_000n;
const plain: RuleTiming = { forSeconds: 0, cooldownSeconds: 0, hasClearExpression: false };

/** Runs points through a rule and returns what each leads to; `*` marks actions. Times are seconds, also of the clock. */
function run(rule: Partial<RuleTiming>, points: readonly (readonly [at: number, verdict: string])[]): string[] {
  let state = initialState;
  let isOpen = false;
  return points.map(([at, text]) => {
    const verdict: Verdict = {
      matches: text.includes('?') ? undefined : text.includes('m'),
      clears: rule.hasClearExpression ? text.includes('c') : undefined,
    };
    const decision = decide({ ...plain, ...rule }, state, isOpen, verdict, seconds(at), at * 1000);
    ({ state } = decision);
    if (decision.alarm === 'raise') isOpen = true;
    if (decision.alarm === 'clear') isOpen = false;
    return decision.alarm + (decision.acts ? '*' : '');
  });
}

describe('decisions of rules', () => {
  const table: [string, Partial<RuleTiming>, [number, string][], string[]][] = [
    [
      'nothing without a match',
      {},
      [
        [0, '-'],
        [1, '-'],
      ],
      ['leave', 'leave'],
    ],
    [
      'every match counts and acts',
      {},
      [
        [0, 'm'],
        [1, 'm'],
        [2, 'm'],
      ],
      ['raise*', 'count*', 'count*'],
    ],
    [
      'the alarm clears when the expression no longer holds',
      {},
      [
        [0, 'm'],
        [1, '-'],
        [2, '-'],
        [3, 'm'],
      ],
      ['raise*', 'clear', 'leave', 'raise*'],
    ],
    [
      'an error changes nothing',
      {},
      [
        [0, '?'],
        [1, 'm'],
        [2, '?'],
        [3, 'm'],
      ],
      ['leave', 'raise*', 'leave', 'count*'],
    ],
    [
      'the cooldown limits actions, not counts',
      { cooldownSeconds: 10 },
      [
        [0, 'm'],
        [9, 'm'],
        [10, 'm'],
        [11, 'm'],
      ],
      ['raise*', 'count', 'count*', 'count'],
    ],
    [
      'the cooldown outlasts the alarm',
      { cooldownSeconds: 10 },
      [
        [0, 'm'],
        [1, '-'],
        [2, 'm'],
        [12, 'm'],
      ],
      ['raise*', 'clear', 'raise', 'count*'],
    ],
    [
      'the expression has to hold',
      { forSeconds: 5 },
      [
        [0, 'm'],
        [4, 'm'],
        [5, 'm'],
        [6, 'm'],
      ],
      ['leave', 'leave', 'raise*', 'count*'],
    ],
    [
      'a break starts the time again',
      { forSeconds: 5 },
      [
        [0, 'm'],
        [4, '-'],
        [5, 'm'],
        [9, 'm'],
        [10, 'm'],
      ],
      ['leave', 'leave', 'leave', 'leave', 'raise*'],
    ],
    [
      'an error is no break',
      { forSeconds: 5 },
      [
        [0, 'm'],
        [3, '?'],
        [5, 'm'],
      ],
      ['leave', 'leave', 'raise*'],
    ],
    [
      'a clear expression decides alone',
      { hasClearExpression: true },
      [
        [0, 'm'],
        [1, '-'],
        [2, 'c'],
        [3, 'c'],
      ],
      ['raise*', 'leave', 'clear', 'leave'],
    ],
    [
      'a clear expression decides also when the other cannot be evaluated',
      { hasClearExpression: true },
      [
        [0, 'm'],
        [1, '?c'],
      ],
      ['raise*', 'clear'],
    ],
    [
      'a match keeps the alarm although it could be cleared',
      { hasClearExpression: true },
      [
        [0, 'm'],
        [1, 'mc'],
      ],
      ['raise*', 'count*'],
    ],
    [
      'an open alarm is cleared while a new time runs',
      { hasClearExpression: true, forSeconds: 5 },
      [
        [0, 'm'],
        [5, 'm'],
        [6, '-'],
        [7, 'mc'],
      ],
      ['leave', 'raise*', 'leave', 'clear'],
    ],
  ];
  for (const [name, rule, points, expected] of table) {
    it(name, () => expect(run(rule, points)).to.deep.equal(expected));
  }

  it('actions that were taken by a clock that was ahead keep none from being taken now', () => {
    const rule = { ...plain, cooldownSeconds: 10 };
    let state: RuleState = { holdsSince: 0n, actedAt: 3_600_000 };
    const acts = [20, 25, 30].map((at) => {
      const decision = decide(rule, state, true, { matches: true, clears: undefined }, seconds(at), at * 1000);
      ({ state } = decision);
      return decision.acts;
    });
    expect(acts).to.deep.equal([true, false, true]);
  });
});
