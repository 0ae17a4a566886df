// Conditions of a status: made from findings, merged into what was there, summarised as Ready.
import type { Condition } from '@kellet/crds';

/** What a reconcile found about one aspect. */
export interface Finding {
  /** CamelCase, for example Synced. */
  type: string;
  status: 'True' | 'False' | 'Unknown';
  /** CamelCase, for programs. */
  reason: string;
  /** For people. */
  message: string;
}

const longestMessage = 2048;

/** @returns a finding that holds */
export function holds(type: string, reason: string, message = ''): Finding {
  return { type, status: 'True', reason, message };
}

/** @returns a finding that does not hold */
export function fails(type: string, reason: string, message: string): Finding {
  return { type, status: 'False', reason, message };
}

/** @returns a finding that is not known yet */
export function unknown(type: string, reason: string, message: string): Finding {
  return { type, status: 'Unknown', reason, message };
}

/**
 * Adds the summary Ready: it fails with the first finding that fails, is unknown with the first that is unknown, else holds.
 * Types that do not bear on readiness are left out of the judgement by `ignoring`.
 */
export function withReady(
  findings: Finding[],
  ready: { reason: string; message: string },
  ignoring: string[] = [],
): Finding[] {
  const bearing = findings.filter((finding) => !ignoring.includes(finding.type));
  const worst = bearing.find(({ status }) => status === 'False') ?? bearing.find(({ status }) => status === 'Unknown');
  return [...findings, worst ? { ...worst, type: 'Ready' } : holds('Ready', ready.reason, ready.message)];
}

/**
 * Makes the conditions of a status. A condition keeps its time while its status stays the same; what is no longer found is
 * dropped. `now` is in milliseconds since 1970.
 */
export function toConditions(
  previous: Condition[] | undefined,
  findings: Finding[],
  generation: number,
  now: number,
): Condition[] {
  return findings.map((finding) => {
    const before = previous?.find(({ type }) => type === finding.type);
    return {
      type: finding.type,
      status: finding.status,
      observedGeneration: generation,
      lastTransitionTime: before?.status === finding.status ? before.lastTransitionTime : kubernetesTime(now),
      reason: finding.reason,
      message:
        finding.message.length > longestMessage ? `${finding.message.slice(0, longestMessage - 1)}…` : finding.message,
    };
  });
}

/** @returns a time as Kubernetes writes it, in whole seconds */
export function kubernetesTime(milliseconds: number): string {
  return `${new Date(milliseconds).toISOString().slice(0, 19)}Z`;
}

/** @returns the condition of that type, if the status has it */
export function findCondition(object: { status?: { conditions?: Condition[] } }, type: string): Condition | undefined {
  return object.status?.conditions?.find((condition) => condition.type === type);
}

/** Whether a condition of that type is True. */
export function isTrue(object: { status?: { conditions?: Condition[] } }, type: string): boolean {
  return findCondition(object, type)?.status === 'True';
}
