// Decides what a point means for one rule and one device. Pure.

/** The timing of a rule. */
export interface RuleTiming {
  readonly forSeconds: number;
  readonly cooldownSeconds: number;
  /** Whether a clear expression decides when the alarm ends; otherwise it ends when the expression no longer holds. */
  readonly hasClearExpression: boolean;
}

/** The state of a rule for a device between points. */
export interface RuleState {
  /** Time of the first point since which the expression holds without a break, in nanoseconds since 1970. */
  readonly holdsSince: bigint | undefined;
  /** When actions were last taken, in milliseconds since 1970. */
  readonly actedAt: number | undefined;
}

/** The results of the expressions for a point; undefined if they could not be evaluated. */
export interface Verdict {
  readonly matches: boolean | undefined;
  /** Always undefined without a clear expression. */
  readonly clears: boolean | undefined;
}

/** The decision about a point. */
export interface Decision {
  readonly state: RuleState;
  readonly alarm: 'raise' | 'count' | 'clear' | 'leave';
  /** Whether actions are taken. */
  readonly acts: boolean;
}

export const initialState: RuleState = { holdsSince: undefined, actedAt: undefined };

const nanosecondsPerSecond = 1_000_000_000n;

/**
 * Decides about a point of `time` (nanoseconds since 1970, as the device gives it), evaluated at `now` (milliseconds
 * since 1970). An expression that cannot be evaluated changes nothing: a point without the key in question says nothing
 * about it. When both expressions are true, the alarm stays.
 */
export function decide(
  rule: RuleTiming,
  state: RuleState,
  isAlarmOpen: boolean,
  { matches, clears }: Verdict,
  time: bigint,
  now: number,
): Decision {
  if (matches === true) {
    const holdsSince = state.holdsSince ?? time;
    const held = { ...state, holdsSince };
    if (time - holdsSince < BigInt(rule.forSeconds) * nanosecondsPerSecond) {
      return { state: held, alarm: isAlarmOpen && clears === true ? 'clear' : 'leave', acts: false };
    }
    // A time to come is that of a clock that has been set back since.
    const cooled = now - (state.actedAt ?? -Infinity);
    const acts = cooled < 0 || cooled >= rule.cooldownSeconds * 1000;
    return {
      state: acts ? { ...held, actedAt: now } : held,
      alarm: isAlarmOpen ? 'count' : 'raise',
      acts,
    };
  }
  const broken = matches === false ? { ...state, holdsSince: undefined } : state;
  const ends = rule.hasClearExpression ? clears === true : matches === false;
  return { state: broken, alarm: isAlarmOpen && ends ? 'clear' : 'leave', acts: false };
}
