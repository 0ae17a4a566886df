// For tests: builds observations of rollouts; fields that a test does not set are zero.
import { OtaRolloutObserved, RolloutCounts } from '@kellet/proto/ts/kellet/control/v1/control';

/** Fields that a test sets. */
export type ObservedFields = Partial<Omit<OtaRolloutObserved, 'counts'>> & { counts?: Partial<RolloutCounts> };

/** Returns a complete observation. */
export function makeObserved({ counts, ...fields }: ObservedFields): OtaRolloutObserved {
  return {
    ...OtaRolloutObserved.fromPartial({}),
    ...fields,
    counts: { ...RolloutCounts.fromPartial({}), ...counts },
  };
}
