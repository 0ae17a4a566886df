// Classifies failed flushes. Pure.
import { isConnectionError } from '../../platform/database/connection/database-errors.ts';
import { sqlState } from '../../platform/errors.ts';

/**
 * lost: it is unknown whether the flush was committed. fenced: the writer was taken over. behind: the previous flush
 * failed. chain_moved: another writer has extended one of the chains. rules_changed: rules may have to see more points
 * than the flush hands them. later: the database cannot do it now. data:
 * something in the flush is rejected permanently.
 */
export type FlushFailure = 'lost' | 'fenced' | 'behind' | 'chain_moved' | 'rules_changed' | 'later' | 'data';

const own: Record<string, FlushFailure> = {
  KL001: 'fenced',
  KL002: 'behind',
  KL003: 'chain_moved',
  KL004: 'rules_changed',
  // The result of an update is in another flush already.
  KL005: 'data',
};

/** SQLSTATE classes that concern the data: cardinality, data exception, integrity constraint. */
const ofTheData = /^(21|22|23)/;

/** Classifies the error of a flush. */
export function flushFailure(error: unknown): FlushFailure {
  const state = sqlState(error);
  if (state === undefined || isConnectionError(error)) return 'lost';
  return own[state] ?? (ofTheData.test(state) ? 'data' : 'later');
}

/** Why the database did not take a flush, for operators. */
export const failureCauses = ['disk_full', 'connection', 'data', 'other'] as const;
type FailureCause = (typeof failureCauses)[number];

/** PostgreSQL's code for a full disk. */
const diskFull = '53100';

/** Returns the cause of a failure, or undefined for one that belongs to normal operation: the flush is repeated at once. */
export function failureCause(kind: FlushFailure, error: unknown): FailureCause | undefined {
  if (sqlState(error) === diskFull) return 'disk_full';
  if (kind === 'lost') return 'connection';
  if (kind === 'data') return 'data';
  return kind === 'later' ? 'other' : undefined;
}
