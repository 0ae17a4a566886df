// What errors of PostgreSQL, of pg and of the network say about the database.
import pg from 'pg';
import { codes, KelletError, sqlState } from '../../errors.ts';

/**
 * Returns a failed transaction's span attributes: the server's SQLSTATE, or why it was not reached. An error decided by
 * the application within the transaction is not a failure of it.
 */
export function failureOf(error: unknown): { state?: string; type?: string } {
  if (error instanceof KelletError) {
    if (codes[error.code].http < 500) return {};
    return error.cause === undefined ? { type: error.code } : { ...failureOf(error.cause), type: error.code };
  }
  if (error instanceof pg.DatabaseError) return { state: error.code, type: error.code };
  return { type: error instanceof Error ? error.name : 'error' };
}

/** The message for a statement that the server cancelled. */
export const tookTooLong = 'the database took too long';

const lockTimeout = '55P03';

/** Reports whether a statement waited for a lock too long, or a transaction has failed because one of its statements did. */
export const isLockTimeout = (error: unknown): boolean =>
  sqlState(error instanceof KelletError ? error.cause : error) === lockTimeout;

/** Reports whether the server cancelled a statement because it ran or waited for a lock too long. */
export const isTimeout = (error: unknown): boolean => ['57014', lockTimeout].includes(sqlState(error) ?? '');

/** Reports whether the server rejects writes: a standby that has not been promoted. */
export const isReadOnlyServer = (error: unknown): boolean => sqlState(error) === '25006';

// Class 08: connection exception; 25P03 and 25P04: a transaction that idled or took too long; 57P01–57P05: shutting
// down, starting up or dropped; 53300: too many connections.
const connectionStates = /^(08...|25P0[34]|57P0[1-5]|53300)$/;
const connectionCodes = new Set([
  ...['ECONNREFUSED', 'ECONNRESET', 'ECONNABORTED', 'EPIPE', 'ETIMEDOUT', 'ENOENT'],
  ...['EHOSTUNREACH', 'EHOSTDOWN', 'ENETUNREACH', 'ENETDOWN', 'ENOTFOUND', 'EAI_AGAIN'],
]);
// pg's own errors, which have no code.
const connectionMessages =
  /Connection terminated|Query read timeout|timeout expired|timeout exceeded when trying to connect|Client has encountered a connection error|Client was closed/;

/** Reports whether there was no response at all, as when packets are dropped. */
export const isSilence = (error: unknown): boolean =>
  error instanceof Error &&
  ('code' in error
    ? ['ETIMEDOUT', 'EHOSTUNREACH', 'EHOSTDOWN', 'ENETUNREACH', 'ENETDOWN'].includes(String(error.code))
    : /timeout expired|Query read timeout/.test(error.message));

/**
 * Reports whether an error means that the server is unavailable or has disconnected, rather than that the statement was
 * wrong.
 */
export function isConnectionError(error: unknown): boolean {
  if (!(error instanceof Error)) return false;
  const code = 'code' in error && typeof error.code === 'string' ? error.code : '';
  return connectionStates.test(code) || connectionCodes.has(code) || connectionMessages.test(error.message);
}
