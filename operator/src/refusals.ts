// Maps refusals of the data plane to conditions and retries.
import type { Refusal } from '@kellet/proto/ts/kellet/control/v1/control';
import { fails, type Finding } from './conditions.ts';

/** Condition type that a refusal affects. */
export type RefusedAspect = 'Accepted' | 'ReferencesResolved' | 'Verified';

/** How to handle a refusal. */
export interface RefusalMeaning {
  aspect: RefusedAspect;
  /** Only a change of the resource itself can resolve it. */
  final: boolean;
  /** Milliseconds until the next attempt without a change; undefined if the refusal is final. */
  retryMilliseconds?: number;
}

const known: Record<string, RefusalMeaning> = {
  // Changes of the referenced resource trigger a reconcile; the retry is a fallback.
  ReferenceNotFound: { aspect: 'ReferencesResolved', final: false, retryMilliseconds: 30_000 },
  ReferenceNotReady: { aspect: 'ReferencesResolved', final: false, retryMilliseconds: 30_000 },
  TenantUnknown: { aspect: 'Accepted', final: false, retryMilliseconds: 5000 },
  RolloutInProgress: { aspect: 'Accepted', final: false, retryMilliseconds: 30_000 },
  SignatureRequired: { aspect: 'Accepted', final: false, retryMilliseconds: 60_000 },
  InvalidSpec: { aspect: 'Accepted', final: true },
  Immutable: { aspect: 'Accepted', final: true },
  // Restoring the tenant triggers a reconcile.
  TenantDeleted: { aspect: 'Accepted', final: false, retryMilliseconds: 300_000 },
  Terminated: { aspect: 'Accepted', final: true },
  ChecksumMismatch: { aspect: 'Verified', final: true },
  SignatureInvalid: { aspect: 'Verified', final: true },
  FetchFailed: { aspect: 'Verified', final: false, retryMilliseconds: 30_000 },
};

/** Returns how to handle a refusal. Unknown reasons are reported as they are and retried. */
export function meaningOf(refusal: Refusal): RefusalMeaning {
  return known[refusal.reason] ?? { aspect: 'Accepted', final: false, retryMilliseconds: 60_000 };
}

/**
 * Returns the findings of a refused resource: aspects before the refused one are True, that one is False, and later
 * ones are Unknown. `aspects` are those of the kind, in the order of evaluation.
 */
export function refusalFindings(refusal: Refusal, aspects: readonly string[]): Finding[] {
  const { aspect } = meaningOf(refusal);
  const at = aspects.indexOf(aspect);
  // A kind without this aspect reports it as not accepted.
  const fault = at < 0 ? 'Accepted' : aspect;
  const reason = /^[A-Za-z][A-Za-z0-9]{0,127}$/.test(refusal.reason) ? refusal.reason : 'Refused';
  return aspects.map((type): Finding => {
    if (type === fault) return fails(type, reason, refusal.message);
    if (aspects.indexOf(type) < aspects.indexOf(fault)) return { type, status: 'True', reason: type, message: '' };
    return { type, status: 'Unknown', reason: 'Refused', message: `not evaluated: ${fault} is False` };
  });
}
