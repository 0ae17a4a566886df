// For tests: what the data plane observed of a rollout, with everything that a test does not state at zero.
import { OtaRolloutObserved, RolloutCounts } from '@kellet/proto/ts/kellet/control/v1/control';

/** The fields that a test states. */
export type ObservedFields = Partial<Omit<OtaRolloutObserved, 'counts'>> & { counts?: Partial<RolloutCounts> };

/** @returns a whole observation */
export function makeObserved({ counts, ...fields }: ObservedFields): OtaRolloutObserved {
  return {
    ...OtaRolloutObserved.fromPartial({}),
    ...fields,
    counts: { ...RolloutCounts.fromPartial({}), ...counts },
  };
}
