// What a failed flush means for the points in it. Pure.
import { isConnectionError } from '../../platform/database/database.ts';
import { sqlState } from '../../platform/errors.ts';

/**
 * lost: nobody knows whether it was committed. fenced: the writer was taken over. behind: the flush before it failed.
 * chain_moved: another writer has added to one of the chains. later: the database cannot do it now. data: something in the
 * flush is refused for good.
 */
export type FlushFailure = 'lost' | 'fenced' | 'behind' | 'chain_moved' | 'later' | 'data';

const own: Record<string, FlushFailure> = { KL001: 'fenced', KL002: 'behind', KL003: 'chain_moved' };

/** Classes of SQLSTATE that speak of the data: cardinality, data exception, integrity. */
const ofTheData = /^(21|22|23)/;

/** Judges the error with which a flush was answered. */
export function flushFailure(error: unknown): FlushFailure {
  const state = sqlState(error);
  if (state === undefined || isConnectionError(error)) return 'lost';
  return own[state] ?? (ofTheData.test(state) ? 'data' : 'later');
}
