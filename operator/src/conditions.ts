// Builds the conditions of a status from findings, merges them with the previous ones, and summarises them as Ready.
import type { Condition } from '@kellet/crds';

/** Result of a reconcile for one condition type. */
export interface Finding {
  /** CamelCase, for example Synced. */
  type: string;
  status: 'True' | 'False' | 'Unknown';
  /** Machine-readable, in CamelCase. */
  reason: string;
  /** Human-readable. */
  message: string;
}

const maxMessage = 2048;

/** Returns a finding with status True. */
export function holds(type: string, reason: string, message = ''): Finding {
  return { type, status: 'True', reason, message };
}

/** Returns a finding with status False. */
export function fails(type: string, reason: string, message: string): Finding {
  return { type, status: 'False', reason, message };
}

/** Returns a finding with status Unknown. */
export function unknown(type: string, reason: string, message: string): Finding {
  return { type, status: 'Unknown', reason, message };
}

/**
 * Appends the summary Ready: a copy of the first finding that is False, else of the first that is Unknown, else True
 * with the given reason. Types listed in `ignoring` do not affect it.
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
 * Returns the conditions of a status. A condition keeps its transition time while its status stays the same; conditions
 * without a finding are dropped. `now` is in milliseconds since 1970.
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
      message: finding.message.length > maxMessage ? `${finding.message.slice(0, maxMessage - 1)}…` : finding.message,
    };
  });
}

/** Formats a time like Kubernetes, in whole seconds. */
export function kubernetesTime(milliseconds: number): string {
  return `${new Date(milliseconds).toISOString().slice(0, 19)}Z`;
}

/** Returns the condition of the given type, or undefined. */
export function findCondition(object: { status?: { conditions?: Condition[] } }, type: string): Condition | undefined {
  return object.status?.conditions?.find((condition) => condition.type === type);
}

/** Reports whether the condition of the given type is True. */
export function isTrue(object: { status?: { conditions?: Condition[] } }, type: string): boolean {
  return findCondition(object, type)?.status === 'True';
}
