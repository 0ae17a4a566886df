// What a refusal of the data plane means for a resource: which condition tells it, and whether waiting can mend it.
import type { Refusal } from '@kellet/proto/ts/kellet/control/v1/control';
import { fails, type Finding } from './conditions.ts';

/** The aspect that a refusal is about. */
export type RefusedAspect = 'Accepted' | 'ReferencesResolved' | 'Verified';

/** The meaning of a refusal. */
export interface RefusalMeaning {
  aspect: RefusedAspect;
  /** Nothing but a change of the resource itself mends it. */
  final: boolean;
  /** When to ask again although nothing was heard, in milliseconds; undefined when it is final. */
  retryMs?: number;
}

const known: Record<string, RefusalMeaning> = {
  // Changes of the referents start a reconcile by themselves; asking again is for what was missed.
  ReferenceNotFound: { aspect: 'ReferencesResolved', final: false, retryMs: 30_000 },
  ReferenceNotReady: { aspect: 'ReferencesResolved', final: false, retryMs: 30_000 },
  TenantUnknown: { aspect: 'Accepted', final: false, retryMs: 5000 },
  RolloutInProgress: { aspect: 'Accepted', final: false, retryMs: 30_000 },
  SignatureRequired: { aspect: 'Accepted', final: false, retryMs: 60_000 },
  InvalidSpec: { aspect: 'Accepted', final: true },
  Immutable: { aspect: 'Accepted', final: true },
  Terminated: { aspect: 'Accepted', final: true },
  ChecksumMismatch: { aspect: 'Verified', final: true },
  SignatureInvalid: { aspect: 'Verified', final: true },
  FetchFailed: { aspect: 'Verified', final: false, retryMs: 30_000 },
};

/** @returns what a refusal means; one that is not known is told as it came and asked again */
export function meaningOf(refusal: Refusal): RefusalMeaning {
  return known[refusal.reason] ?? { aspect: 'Accepted', final: false, retryMs: 60_000 };
}

/**
 * @returns the findings of a refused resource: the aspect at fault, those judged before it, and Synced. `aspects` are those
 * that the kind has, in order.
 */
export function refusalFindings(refusal: Refusal, aspects: readonly string[]): Finding[] {
  const { aspect } = meaningOf(refusal);
  const at = aspects.indexOf(aspect);
  // A kind without the aspect at fault tells it as not accepted.
  const fault = at < 0 ? 'Accepted' : aspect;
  const reason = /^[A-Za-z][A-Za-z0-9]{0,127}$/.test(refusal.reason) ? refusal.reason : 'Refused';
  return aspects.map((type): Finding => {
    if (type === fault) return fails(type, reason, refusal.message);
    if (aspects.indexOf(type) < aspects.indexOf(fault)) return { type, status: 'True', reason: type, message: '' };
    return { type, status: 'Unknown', reason: 'Refused', message: `not judged: ${fault} does not hold` };
  });
}
